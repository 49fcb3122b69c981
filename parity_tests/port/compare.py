"""Compare a PyTorch module with its JAX port in one call."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from jax_attn.weights import to_numpy
from parity_tests.case import DTYPES, RUN_DTYPE, Case, JaxSide, TorchSide, Variant
from parity_tests.comparison import Measurement, compare_runs, compare_variant, relative_error, run_both, unit_roundoff
from parity_tests.diagnosis.bisect import find_divergence
from parity_tests.jax_side import forget_programs_of, run_jax, without_jit
from parity_tests.numbers import Numbers, Run, make_numbers
from parity_tests.port.adapters import Arguments, Port, make_port
from parity_tests.port.layouts import CHANNELS_LAST, channels_first, channels_last
from parity_tests.port.match import Layouts, Names, match_weights, wanted_layout
from parity_tests.port.report import Report
from parity_tests.port.weight_map import Leaf, WeightMap, match_paths
from parity_tests.torch_side import run_torch, to_tensor
from parity_tests.tree import flatten, plain


def compare(
    torch_module: Any,
    jax_module: Any,
    inputs: Any,
    *,
    weights: Mapping[str, Any] | None = None,
    names: Names | None = None,
    layout: Layouts | None = None,
    buffers: bool = False,
    gradients: bool = True,
    bound: float | None = None,
    inside: str = "",
    dtypes: Sequence[str] = ("float64", "float32"),
    torch_call: Callable[..., Any] | None = None,
    jax_call: Callable[..., Any] | None = None,
    variables: Any = None,
    name: str = "",
) -> Report:
    """Compare a PyTorch module with its JAX port: outputs, every gradient, jit against no jit.

        print(compare(torch.nn.GRUCell(4, 5), nnx.GRUCell(4, 5, rngs=nnx.Rngs(0)), (x, h)))

    Both are run in evaluation mode with the same weights, which are put into the port by a map (`print(report.map)`).

    Args:
        torch_module: an nn.Module, or a function of the inputs.
        jax_module: a module of Flax NNX, Flax Linen or Equinox, or a function of (weights, inputs). A function gets a
            dict with PyTorch's names and layouts, or the structure of `variables`.
        inputs: an array, a tuple of positional arguments or a dict of keywords, for both sides.
        weights: a state dict, such as a checkpoint's or `torch_module.state_dict()`; by default all are drawn, biases
            and running statistics too, since zeros and ones hide mistakes.
        names: JAX's name or a part of it -> PyTorch's, where they are not alike: `{"h_{i}": "transformer.h.{i}"}`.
        layout: names of weights, inputs or outputs, with * -> their layout in JAX: `{"conv*": "NHWC"}`.
        buffers: also take a step of training, and compare its outputs, gradients and running statistics.
        gradients: False compares the outputs alone.
        bound: of the relative error in float64, in the place of 1e-12.
        inside: "float32" where a softmax or a norm is computed in float32 whatever comes in.
        dtypes: those in which both are run.
        torch_call: (torch_module, inputs) -> what is to be compared, in the place of calling it.
        jax_call: (module with weights in place, inputs) -> what is to be compared, in the place of calling it.
        variables: Linen's variables or a function's weights, where the weights cannot be seen otherwise; values do not
            matter.
        name: what the report calls the two.

    Raises:
        ValueError, TypeError: the two cannot be compared; the message says what to do.
    """
    _check_arguments(torch_module, jax_module, dtypes, inside)
    layout, title = dict(layout or {}), name or _name_of(torch_module)
    given = _Inputs.read(inputs, torch_module)
    torch_side = _torch_side(torch_module, torch_call, given, train=False, gradients=gradients)
    variant = Variant("given inputs", given.arrays, {"dtype": RUN_DTYPE}, weights=_as_numpy(weights))
    infinite = {name for name, x in flatten(given.arrays)[0].items() if not np.isfinite(x).all()}
    draft = Case(
        title,
        (variant,),
        torch_side,
        JaxSide(lambda *_: None),
        constants=frozenset(name.partition(".")[0] for name in infinite),
        bound=bound,
        inside=inside,
        adaptive=True,
        layouts=layout,
    )
    _check_weights(torch_module, variant.weights)
    numbers = make_numbers(draft, variant, "float64")
    _check_inputs_stay(draft, numbers)
    truth = _check_torch(draft, variant, numbers, gradients)

    module = torch_module if isinstance(torch_module, torch.nn.Module) else None
    state = {} if module is None else module.state_dict()
    leaves = {path: Leaf(tuple(x.shape)) for path, x in state.items() if x.is_floating_point()}
    port = make_port(jax_module, jax_call, variables, given.as_shapes(layout), leaves)
    found = match_weights(module, port.leaves, port.kind, names, layout)

    def case_of(weight_map: WeightMap, train: bool = False) -> Case:
        side = _jax_side(port, weight_map, given, layout, train, match_paths(module, weight_map))
        torch_side = _torch_side(torch_module, torch_call, given, train=train, gradients=gradients)
        return replace(draft, jax=side, torch=torch_side, name=f"{title}, a training step" if train else title)

    found = found.choose(lambda tried: _forward_error(case_of(tried), variant, numbers, truth))
    cases = [case_of(found), *([case_of(found, train=True)] if buffers else [])]
    measured = []
    for case in cases:
        run = truth if case.name == title else _check_torch(case, variant, numbers, gradients)
        _check_structure(case, numbers, run)
        measured += [m for dtype in dtypes for m in compare_variant(case, variant, dtype)]
    measured += _without_jit(cases[0], variant, numbers, measured) if "float64" in dtypes else []
    failed = next((m for m in measured if m.failed), None)
    parted = next(c for c in cases if failed is None or c.name == failed.case)
    divergence = None if failed is None else find_divergence(parted, dtype=failed.dtype.partition(" ")[0])
    for case in cases:
        forget_programs_of(case)
    left = _left_over(cases[0], variant, numbers, found) if failed and found.left_in_torch else ""
    if divergence is not None and left:
        divergence = replace(divergence, traps=(left,))
    note = _float32_inside(parted, numbers, found, measured)
    return Report(title, port, found, tuple(measured), divergence, note, cases[0])


@dataclass(frozen=True)
class _Inputs:
    """The inputs by name, and how both sides are called with them."""

    arrays: dict[str, Any]
    """By name: NumPy arrays, or tuples and dicts of these."""
    positional: tuple[str, ...]
    others: dict[str, Any]
    """What is no array: None, flags, strings."""

    @classmethod
    def read(cls, inputs: Any, torch_module: Any) -> "_Inputs":
        """Give positional arguments the names that PyTorch's module has for them."""
        keywords = isinstance(inputs, Mapping)
        if not keywords:
            inputs = inputs if isinstance(inputs, tuple | list) else (inputs,)
            inputs = dict(zip(_parameters(torch_module, len(inputs)), inputs, strict=True))
        read = {name: _as_array(value) for name, value in inputs.items()}
        arrays = {name: value for name, value in read.items() if _holds_arrays(value)}
        if not arrays:
            raise ValueError("inputs must hold an array: an array, a tuple of arguments, or a dict of keywords")
        return cls(arrays, () if keywords else tuple(inputs), {n: v for n, v in read.items() if n not in arrays})

    def as_arguments(self, arrays: Mapping[str, Any]) -> Arguments:
        """Return positional arguments and keywords."""
        values = {**self.others, **arrays}
        return tuple(values[name] for name in self.positional), {} if self.positional else values

    def as_shapes(self, layout: Layouts) -> Arguments:
        """Return the arguments as JAX gets them, as shapes."""
        arrays = to_jax_layout(self.arrays, layout)
        return self.as_arguments(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, _jax_dtype(x)), arrays))


def _jax_dtype(x: np.ndarray) -> Any:
    return jnp.float32 if np.issubdtype(x.dtype, np.floating) else jax.dtypes.canonicalize_dtype(x.dtype)


def _parameters(torch_module: Any, count: int) -> list[str]:
    function = torch_module.forward if isinstance(torch_module, torch.nn.Module) else torch_module
    try:
        signature = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        signature = []
    named = [p.name for p in signature if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [*named, *(f"input{number}" for number in range(len(named), count))][:count]


def _as_array(value: Any) -> Any:
    """Make NumPy arrays of the arrays of any library, floats in float64; all else stays."""
    if isinstance(value, Mapping):
        return {name: _as_array(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_as_array(part) for part in value)
    if not hasattr(value, "shape"):
        return value
    array = to_numpy(value)
    return array.astype(np.float64) if jnp.issubdtype(array.dtype, jnp.floating) else array


def _holds_arrays(value: Any) -> bool:
    return any(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(value))


def _as_numpy(weights: Mapping[str, Any] | None) -> dict[str, np.ndarray] | None:
    return None if weights is None else {name: to_numpy(weight) for name, weight in weights.items()}


def _name_of(module: Any) -> str:
    return type(module).__name__ if isinstance(module, torch.nn.Module) else getattr(module, "__name__", "function")


def _check_weights(module: Any, weights: Mapping[str, np.ndarray] | None) -> None:
    if weights is not None and isinstance(module, torch.nn.Module):
        try:
            copy.deepcopy(module).load_state_dict({name: to_tensor(x, None) for name, x in weights.items()})
        except RuntimeError as error:
            raise ValueError(f"weights must be a state dict of the PyTorch module: {error}") from error


# The two sides


def _torch_side(module: Any, call: Any, given: _Inputs, *, train: bool, gradients: bool) -> TorchSide:
    is_module = isinstance(module, torch.nn.Module)

    def run(built: Any, inputs: Any, _: Any) -> Any:
        args, kwargs = given.as_arguments(inputs)
        target = built if is_module else module
        if train:
            _train(built)
        context: AbstractContextManager[Any] = nullcontext() if gradients else torch.no_grad()
        with context:
            results = target(*args, **kwargs) if call is None else call(target, *args, **kwargs)
        if not train:
            return results
        after = {f"{n} after a step": x.clone() for n, x in built.named_buffers() if "running_" in n}
        return {"result": plain(results), **after}

    return TorchSide(run, (lambda options, inputs: copy.deepcopy(module).cpu()) if is_module else None)


def _train(module: torch.nn.Module) -> None:
    """Turn training on, except for dropout, which is random."""
    module.train()
    for part in module.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.eval()


def _jax_side(
    port: Port, weight_map: WeightMap, given: _Inputs, layout: Layouts, train: bool, paths: Mapping[str, str]
) -> JaxSide:
    def run(weights: Any, inputs: Any, options: Any) -> Any:
        arguments = given.as_arguments(to_jax_layout(inputs, layout))
        results, after = port.run(weight_map.place(weights), arguments, options["dtype"], train)
        results = _to_torch_layout(plain(results), layout)
        if not train:
            return results
        return {"result": results, **{f"{n} after a step": x for n, x in _statistics(weight_map, after).items()}}

    return JaxSide(run, port.model, port.kind, paths)


def _statistics(weight_map: WeightMap, after: Mapping[str, Any]) -> dict[str, Any]:
    """Name running statistics as PyTorch does."""
    sources = {path: entry.source for path, entry in weight_map.entries.items()}
    return {
        source.pieces[0].name: after[path].reshape(source.shape)
        for path, source in sources.items()
        if path in after and "running_" in source.pieces[0].name
    }


def to_jax_layout(inputs: Mapping[str, Any], layout: Layouts) -> dict[str, Any]:
    """Move the channels of the inputs that are channels last in JAX."""
    flat, rebuild = flatten(dict(inputs))
    return rebuild({n: channels_last(x.ndim).apply(x) if _is_last(n, x, layout) else x for n, x in flat.items()})


def _to_torch_layout(results: Any, layout: Layouts) -> Any:
    flat, rebuild = flatten(results)
    return rebuild({n: channels_first(x.ndim).apply(x) if _is_last(n, x, layout) else x for n, x in flat.items()})


def _is_last(name: str, x: Any, layout: Layouts) -> bool:
    return x is not None and wanted_layout(layout, name, name.partition(".")[0]) in CHANNELS_LAST


# Checks before the comparison: what cannot be compared is an error that says what to do


def _check_arguments(torch_module: Any, jax_module: Any, dtypes: Sequence[str], inside: str) -> None:
    if not callable(torch_module) or isinstance(jax_module, torch.nn.Module):
        raise TypeError(f"torch_module comes first and jax_module second; got {_name_of(torch_module)} first")
    if not dtypes or isinstance(dtypes, str) or set(dtypes) - set(DTYPES):
        raise ValueError(f"dtypes must be some of {DTYPES}; got {dtypes!r}")
    if inside not in ("", "float32"):
        raise ValueError(f"inside must be 'float32' or left out; got {inside!r}")


def _check_inputs_stay(case: Case, numbers: Numbers) -> None:
    """Raise ValueError if PyTorch writes into its inputs."""
    tensors = {name: to_tensor(x, "float64") for name, x in numbers.inputs.items()}
    before = {name: x.clone() for name, x in tensors.items() if x is not None}
    module = None if case.torch.build is None else case.torch.build({}, {}).eval().double()
    try:
        with torch.no_grad():
            case.torch.call(module, numbers.rebuild(tensors), {})
    except Exception as error:
        raise ValueError(
            f"PyTorch's module cannot be run in float64 on these inputs: {type(error).__name__}: {error}. If it needs "
            "other arguments, give them in inputs, or torch_call=lambda module, x: …"
        ) from error
    for name, x in before.items():
        if not torch.equal(torch.nan_to_num(tensors[name]), torch.nan_to_num(x)):
            raise ValueError(
                f"PyTorch's module changes its input {name} in place, so its gradient has no meaning. Give it a copy: "
                f"torch_call=lambda module, {name}: module({name}.clone())"
            )


def _check_torch(case: Case, variant: Variant, numbers: Numbers, gradients: bool) -> Run:
    """Run PyTorch alone, twice: raise ValueError for random layers, NaN, and no gradient."""
    run, again = (run_torch(case, variant, numbers, "float64") for _ in range(2))
    pairs: Any = ((name, x, again.tensors[name]) for name, x in run.tensors.items() if x is not None)
    different = [name for name, x, y in pairs if not np.array_equal(x, y, equal_nan=x.dtype.kind == "f")]
    if different:
        raise ValueError(
            f"PyTorch's {different[0]} is not the same in two runs on the same numbers: a random layer, such as "
            "dropout, is on. Set its probability to 0, or turn it off in torch_call"
        )
    for name, x in run.tensors.items():
        count = 0 if x is None or x.dtype.kind != "f" else int(np.isnan(x).sum())
        if x is not None and count:
            raise ValueError(
                f"PyTorch's {name} has NaN in {count} of {x.size} places, where nothing can be compared. Choose inputs "
                "without it: no row that is masked everywhere, no division by 0. Or leave it out by torch_call and "
                "jax_call"
            )
    if gradients and (numbers.weights or numbers.differentiated) and not run.gradients():
        raise ValueError(
            "no result of PyTorch has a gradient path to a weight or an input: torch.no_grad, detach or integer "
            "results. Return what is before them by torch_call and jax_call, or compare results alone: gradients=False"
        )
    return run


def _check_structure(case: Case, numbers: Numbers, truth: Run) -> None:
    """Raise ValueError if the JAX side cannot be called, or returns another structure."""
    try:
        with jax.enable_x64(True):
            given = jax.tree.map(jnp.asarray, ({**numbers.buffers, **numbers.weights}, numbers.rebuild(numbers.inputs)))
            shapes = jax.eval_shape(lambda *given: case.jax.call(*given, {"dtype": jnp.dtype("float64")}), *given)
    except Exception as error:
        raise ValueError(
            f"the JAX module cannot be run in float64 on these inputs: {type(error).__name__}: {error}. If it needs "
            "other arguments, give jax_call=lambda module, x: …; if channels are last, layout={'x': 'NHWC'}"
        ) from error
    in_torch, in_jax = truth.outputs(), flatten(plain(shapes), case.outputs)[0]
    if in_torch.keys() != in_jax.keys():
        texts = [", ".join(f"{n} {list(np.shape(x))}" for n, x in sorted(side.items())) for side in (in_torch, in_jax)]
        raise ValueError(
            f"the results are not of the same structure: PyTorch returns {texts[0]}; JAX returns {texts[1]}. Let both "
            "return the same by torch_call=lambda module, x: … or jax_call=lambda module, x: …"
        )


# Measurements


def _forward_error(case: Case, variant: Variant, numbers: Numbers, truth: Run) -> float:
    try:
        run = run_jax(case, variant, numbers, "float64", {})
        found = run.outputs()
        errors = [relative_error(found[n], x) for n, x in truth.outputs().items() if x is not None]
    except (TypeError, ValueError, KeyError):
        return np.inf
    finally:
        forget_programs_of(case)
    return max(errors, default=np.inf)


def _without_jit(case: Case, variant: Variant, numbers: Numbers, compiled: list[Measurement]) -> list[Measurement]:
    """Measure JAX without jit; return what is right in only one of the two ways."""
    runs = run_both(case, variant, numbers, "float64", transform=without_jit)
    failed = {m.tensor for m in compiled if m.failed and m.dtype == "float64"}
    measured = compare_runs(case, variant, "float64", runs)
    return [replace(m, dtype="float64 without jit") for m in measured if m.failed != (m.tensor in failed)]


def _left_over(case: Case, variant: Variant, numbers: Numbers, weight_map: WeightMap) -> str:
    """Name the weights that have no place in JAX, if the outputs agree once PyTorch does without them too."""
    weights = dict(numbers.weights)
    for piece in weight_map.left_in_torch:
        if piece.name in weights:
            weights[piece.name] = piece.cleared(weights[piece.name])
    with torch.no_grad():
        runs = run_both(case, variant, replace(numbers, weights=weights), "float64", jax_numbers=numbers)
    if any(m.failed for m in compare_runs(case, variant, "float64", runs)):
        return ""
    left = [str(piece) for piece in weight_map.left_in_torch]
    return f"{', '.join(left)} {'is' if len(left) == 1 else 'are'} missing in JAX"


def _float32_inside(case: Case, numbers: Numbers, weight_map: WeightMap, measured: list[Measurement]) -> str:
    """Say what is computed in float32 although the run is in float64, if that can explain every difference."""
    failed = [m for m in measured if m.failed]
    u = unit_roundoff("float32")
    if not failed or any(m.mismatch or m.dtype != "float64" or m.error > 2 * m.torch_error + 8 * u for m in failed):
        return ""
    with jax.enable_x64(True):
        given = ({**numbers.buffers, **numbers.weights}, numbers.rebuild(numbers.inputs))
        program = jax.make_jaxpr(lambda *given: case.jax.call(*given, {"dtype": jnp.dtype("float64")}))(*given)
    used = {piece.name for entry in weight_map.entries.values() for piece in entry.source.pieces}
    tables = [name for name in numbers.buffers if name not in used]
    if "new_dtype=float32" in str(program):
        return "JAX casts to float32 inside"
    if run_torch(case, case.variants[0], numbers, "float64").is_narrow_inside:
        return "PyTorch casts to float32 inside"
    return f"PyTorch's {tables[0]} is a table made in float32" if tables else ""
