"""The numbers that both sides of a variant are given: inputs, weights and directions, rounded to the run's dtype."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from parity_tests.case import RUN_DTYPE, Case, Variant, make_direction, make_weights
from parity_tests.taps import Trace
from parity_tests.tree import flatten

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """The results of one framework. The gradient of an input or weight x is called `gradient of x`."""

    tensors: dict[str, np.ndarray | None]
    max_score: float = 0.0
    """The largest finite number that entered a softmax; only PyTorch's side knows it."""
    trace: Trace | None = None
    """The intermediate tensors, if they were recorded."""

    def gradients(self) -> dict[str, Any]:
        """The gradients by the name of their input or weight."""
        prefix = "gradient of "
        return {name.removeprefix(prefix): x for name, x in self.tensors.items() if name.startswith(prefix)}

    def outputs(self) -> dict[str, Any]:
        """The results that are no gradients."""
        return {name: x for name, x in self.tensors.items() if not name.startswith("gradient of ")}


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

    def directions(self, like: Run) -> dict[str, np.ndarray]:
        """The directions for the floating outputs of PyTorch's run; none if it has no gradients."""
        if not like.gradients():
            return {}
        floating = {name: x for name, x in like.outputs().items() if x is not None and is_floating(x)}
        return {name: self.direction(name, x.shape) for name, x in floating.items()}


def make_numbers(case: Case, variant: Variant, dtype: str) -> Numbers:
    """Draw and round a variant's inputs, weights and directions, or read them from PyTorch's record."""
    if case.torch.golden is not None:
        return case.torch.golden.numbers(variant.name, dtype)
    shapes = {}
    if case.torch.build is not None:
        module = case.torch.build(variant.options, variant.inputs)
        shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}

    def direction(name: str, shape: Shape) -> np.ndarray:
        return rounded(make_direction(case, variant, name, shape), dtype)

    return given_numbers(case, variant.inputs, make_weights(case, variant, shapes), direction, dtype)


def given_numbers(
    case: Case,
    inputs: Mapping[str, Any],
    weights: Mapping[str, np.ndarray],
    direction: Callable[[str, Shape], np.ndarray],
    dtype: str | None,
) -> Numbers:
    """Round given inputs and weights to `dtype`; None leaves each as it is."""
    flat, rebuild = flatten(dict(inputs))
    arrays = {name: rounded(array, dtype) for name, array in flat.items()}
    floating = (name for name, array in arrays.items() if array is not None and is_floating(array))
    differentiated = tuple(name for name in floating if name.split(".")[0] not in case.constants)
    return Numbers(arrays, rebuild, {n: rounded(w, dtype) for n, w in weights.items()}, differentiated, direction)


def options_in(variant: Variant, dtype: Any) -> dict[str, Any]:
    """A variant's options, with a side's own dtype object where they ask for the run's dtype."""
    return {name: dtype if value == RUN_DTYPE else value for name, value in variant.options.items()}


def is_floating(array: np.ndarray) -> bool:
    """Whether an array is floating, including bfloat16, which NumPy does not count as such."""
    return bool(jnp.issubdtype(array.dtype, jnp.floating))


def rounded(array: np.ndarray | None, dtype: str | None) -> Any:
    """A floating array in `dtype`; all others unchanged."""
    if array is None or dtype is None or not is_floating(array):
        return array
    return array.astype(jnp.dtype(dtype))
