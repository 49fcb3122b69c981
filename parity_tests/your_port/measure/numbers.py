"""The numbers that both sides of a variant are given: inputs, weights and directions, rounded to the run's dtype."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from parity_tests.your_port.measure.arrays import Arrays, flatten, is_floating, to_numpy
from parity_tests.your_port.measure.case import AFTER_A_STEP, RUN_DTYPE, Case, Variant, make_weights, random_for
from parity_tests.your_port.measure.taps import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """The results of one framework."""

    outputs: dict[str, Any]
    gradients: dict[str, Any] = field(default_factory=dict)
    """By the name of the input or weight."""
    max_score: float = 0.0
    """The largest finite number that entered a softmax; only PyTorch's side knows it."""
    trace: list[Tensor] = field(default_factory=list)
    """The intermediate tensors, if they were recorded."""
    is_narrow_inside: bool = False
    """Whether PyTorch computed something in float32 although it ran in float64."""

    @property
    def tensors(self) -> dict[str, Any]:
        """All results, under the names that a report gives them."""
        return {**self.outputs, **{gradient_of(name): x for name, x in self.gradients.items()}}

    def require_defined(self) -> None:
        """Raise ValueError for NaN in PyTorch's results, or none but empty ones, where nothing can be compared."""
        if not any(np.size(x) for x in self.outputs.values() if x is not None):
            raise ValueError("PyTorch's results have no numbers: choose inputs without an axis of length 0")
        for name, x in self.tensors.items():
            if x is not None and is_floating(x) and (count := int(np.isnan(x).sum())):
                raise ValueError(
                    f"PyTorch's {name} has NaN in {count} of {x.size} places, where nothing can be compared. Choose "
                    "inputs without it: no row that is masked everywhere, no division by 0. If a weight must be "
                    "positive, give the module's own: weights=module.state_dict(). Or leave it out by torch_call and "
                    "jax_call"
                )


def gradient_of(name: str) -> str:
    """Call the gradient of an input or weight."""
    return f"gradient of {name}"


@dataclass(frozen=True)
class Numbers:
    """The arrays of a run, rounded to its dtype: the same for both sides and for the truth in float64."""

    inputs: dict[str, Any]
    """By flat name."""
    rebuild: Callable[[Mapping[str, Any]], Any]
    """Inputs by flat name -> the arguments as the case's calls expect them."""
    weights: dict[str, np.ndarray]
    """By PyTorch name."""
    differentiated: tuple[str, ...]
    """The inputs with a gradient."""
    direction: Callable[[str, Shape], np.ndarray]
    """(name and shape of an output) -> the direction along which it is differentiated."""
    buffers: dict[str, np.ndarray] = field(default_factory=dict)
    """Running statistics, other floating buffers and frozen parameters, by PyTorch name: they have no gradient."""

    def called(self, name: str) -> str:
        """Name the gradient of an input; a weight may have the input's name."""
        return f"{name}, the input" if name in self.weights else name

    def rounded(self, dtype: str, others: Mapping[str, Any] | None = None) -> "Numbers":
        """Return them in a dtype, with `others` of some names."""
        parts = (self.inputs, self.weights, self.buffers)
        x, w, b = ({n: rounded((others or {}).get(n, x), dtype) for n, x in part.items()} for part in parts)
        return replace(self, inputs=x, weights=w, buffers=b)

    def directions(self, like: Run) -> dict[str, np.ndarray]:
        """The directions for the floating outputs of PyTorch's run; none if it has no gradients."""
        if not like.gradients:
            return {}
        floating = {name: x for name, x in like.outputs.items() if x is not None and is_floating(x)}
        return {name: self.direction(name, x.shape) for name, x in floating.items() if not name.endswith(AFTER_A_STEP)}


def make_numbers(case: Case, variant: Variant, dtype: str) -> Numbers:
    """Draw and round a variant's inputs, weights and directions, or read them from PyTorch's record."""
    if case.torch.golden is not None:
        return case.torch.golden.numbers(variant.name, dtype)
    weights, buffers = ({}, {}) if case.torch.build is None else _values(case, variant)

    def direction(name: str, shape: Shape) -> np.ndarray:
        return rounded(random_for(case.name, variant.name, "cotangent", name).normal(size=shape), dtype)

    inputs, rebuild = flatten(dict(variant.inputs))
    floating = (name for name, array in inputs.items() if array is not None and is_floating(array))
    differentiated = tuple(name for name in floating if case.constants.isdisjoint((name, name.split(".")[0])))
    return Numbers(inputs, rebuild, weights, differentiated, direction, buffers).rounded(dtype)


def state_of(module: Any) -> dict[str, Any]:
    """Return the tensors of the state of PyTorch's module; what its `get_extra_state` adds may be anything."""
    return {name: x for name, x in module.state_dict().items() if hasattr(x, "is_floating_point")}


def _values(case: Case, variant: Variant) -> tuple[Arrays, Arrays]:
    """Draw or take the parameters with a gradient, and all else that is floating in a module's state.

    Running statistics are drawn too: a port that took them for 0 and 1 would go unnoticed. The row of an embedding's
    padding is zero, as in PyTorch. Other buffers are constants, and keep their values. So do frozen parameters beside
    trained ones, such as a table of positions, unless all of one is the same number.
    """
    assert case.torch.build is not None
    module = case.torch.build(variant.options, variant.inputs)
    parameters, state = dict(module.named_parameters()), state_of(module)
    if variant.weights is not None:
        values = {name: variant.weights[name] for name in {**state, **parameters} if name in variant.weights}
    else:
        values = {name: to_numpy(x) for name, x in state.items() if name not in parameters and x.is_floating_point()}
        floating = {name: tuple(x.shape) for name, x in parameters.items() if x.is_floating_point()}
        values |= make_weights(case, variant, floating)
        statistics = make_weights(case, variant, {n: x.shape for n, x in values.items() if "running_" in n})
        values |= {name: np.exp(x) if name.endswith("var") else x for name, x in statistics.items()}
        for path, part in module.named_modules():
            table = values.get(f"{path}.weight".lstrip("."))
            if getattr(part, "padding_idx", None) is not None and table is not None:
                table[part.padding_idx] = 0
        if any(x.requires_grad for x in parameters.values()):
            frozen = {name: to_numpy(x) for name, x in parameters.items() if not x.requires_grad and x.numel()}
            values |= {name: x for name, x in frozen.items() if x.min() < x.max()}
    values = {name: x for name, x in values.items() if is_floating(x)}
    trained = {name: x for name, x in values.items() if name in parameters and parameters[name].requires_grad}
    held = (module.named_parameters, module.named_buffers)
    aliases = {name for named in held for name in {*dict(named(remove_duplicate=False))} - dict(named()).keys()}
    return trained, {name: x for name, x in values.items() if name not in trained and name not in aliases}


def options_in(variant: Variant, dtype: Any) -> dict[str, Any]:
    """A variant's options, with a side's own dtype object where they ask for the run's dtype."""
    return {name: dtype if value == RUN_DTYPE else value for name, value in variant.options.items()}


def rounded(array: np.ndarray | None, dtype: str) -> Any:
    """A floating array in `dtype`; all others unchanged."""
    return array if array is None or not is_floating(array) else array.astype(jnp.dtype(dtype))


def fresh(variant: Variant, draw: int) -> Variant:
    """Draw a variant's inputs anew; by its new name `make_numbers` draws weights and directions anew.

    Shapes, dtypes and kinds stay (see `redrawn`), so that it is another example of the same thing.
    """
    name = f"{variant.name}, fresh {draw}"
    flat, rebuild = flatten(dict(variant.inputs))
    inputs = {key: None if x is None else redrawn(np.asarray(x), random_for(name, key)) for key, x in flat.items()}
    return replace(variant, name=name, inputs=rebuild(inputs), weights=None)


def redrawn(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw an array of the same kind: a mask, whole numbers such as ids and lengths, or real numbers.

    A mask of padding keeps its form, with other lengths: a program may need it. The rows of another mask are shuffled,
    so that none is hidden as a whole; a square one stays, such as a triangle. Real
    numbers of one sign stay in their range, others have the same mean and deviation. Zeros, NaN and infinities stay in
    their places, and so do positions, padding of ids and the numbers of ignored labels.
    """
    values, kinds = x.astype(np.float64), np.unique(x).astype(np.float64)
    kept = ~np.isfinite(values) | (values == 0)
    if len(kinds) < 2 or kept.all():
        return x
    if len(kinds) == 2 and kinds[-1] in (0, 1) and (kinds[0] == 0 or kinds[0] < -1000):
        if x.shape[-2:] == x.shape[-1:] * 2:
            return x
        ragged = _ragged(values, kinds, rng)
        return rng.permuted(x, axis=-1) if ragged is None else ragged.astype(x.dtype)
    least, most = values[~kept].min(), values[~kept].max()
    is_huge = max(-least, most) >= 2**31  # another draw may be beyond what its dtype holds
    if most > 0 and not is_huge and np.array_equal(values, np.round(values)):
        padding = (values == 0) & _is_padded(values)
        lowest = 1 if padding.any() else min(1, int(max(0, values.min())))
        drawn = rng.integers(lowest, int(most), x.shape, endpoint=True).astype(np.float64)
        drawn.flat[np.argmax(values)] = most  # which may be a length of time
        kept = (values < 0) | padding | (np.diff(values) == 1).all()
    elif least < 0 < most and not is_huge:
        drawn = rng.normal(values[~kept].mean(), values[~kept].std(), x.shape)
    else:
        drawn = rng.uniform(least, most, x.shape)
    return np.where(kept, values, drawn).astype(x.dtype)


def _is_padded(values: np.ndarray) -> bool:
    """Whether zeros stand only at the ends of rows, or only at their beginnings: padding, which ids do not hold."""
    steps = np.diff((values != 0).astype(int), axis=-1)
    return values.ndim > 1 and bool((values == 0).any()) and bool((steps <= 0).all() or (steps >= 0).all())


def _ragged(mask: np.ndarray, kinds: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
    """Draw other lengths for a mask whose rows have one number first and the other one after it; None for others."""
    is_high = mask == kinds[-1]
    steps, counts = np.diff(is_high.astype(int), axis=-1), is_high.sum(-1, keepdims=True)
    is_left, is_right = (steps <= 0).all(), (steps >= 0).all()
    if counts.min() == counts.max() or not (is_left or is_right):
        return None
    drawn = rng.integers(counts.min(), counts.max(), counts.shape, endpoint=True)
    drawn.flat[np.argmax(counts)] = counts.max()
    places = np.arange(mask.shape[-1])
    return np.where(places < drawn if is_left else places >= mask.shape[-1] - drawn, kinds[-1], kinds[0])
