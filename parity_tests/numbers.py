"""The numbers that both sides of a variant are given: inputs, weights and directions, rounded to the run's dtype."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from parity_tests.case import RUN_DTYPE, Case, Variant, make_cotangent, make_weights
from parity_tests.tree import flatten


@dataclass(frozen=True)
class Run:
    """What one framework made of one variant. A gradient's name is `gradient of <input or weight>`."""

    tensors: dict[str, np.ndarray | None]
    max_score: float = 0.0
    """The largest finite number that entered a softmax; PyTorch's side alone can tell."""


@dataclass(frozen=True)
class Numbers:
    """The arrays of a run, rounded to its dtype: the same for all sides, the float64 oracle included."""

    inputs: dict[str, Any]
    rebuild: Callable[[Mapping[str, Any]], Any]
    """Inputs by flat name -> the tree that the case's calls are given."""
    weights: dict[str, np.ndarray]
    """By PyTorch name."""
    differentiated: tuple[str, ...]
    """The inputs with a gradient."""


def make_numbers(case: Case, variant: Variant, dtype: str) -> Numbers:
    """Inputs and weights of a variant, as `dtype` can hold them."""
    flat, rebuild = flatten(dict(variant.inputs))
    inputs = {name: rounded(array, dtype) for name, array in flat.items()}
    floating = [name for name, array in inputs.items() if array is not None and is_floating(array)]
    shapes = {}
    if case.torch.build is not None:
        module = case.torch.build(variant.options, variant.inputs)
        shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    weights = {name: rounded(array, dtype) for name, array in make_weights(case, variant, shapes).items()}
    differentiated = tuple(name for name in floating if name.split(".")[0] not in case.constants)
    return Numbers(inputs, rebuild, weights, differentiated)


def make_cotangents(
    case: Case, variant: Variant, dtype: str, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """The direction along which each output is differentiated."""
    return {name: rounded(make_cotangent(case, variant, name, shape), dtype) for name, shape in shapes.items()}


def options_in(variant: Variant, dtype: Any) -> dict[str, Any]:
    """A variant's options, with a side's own dtype where they ask for that of the run."""
    return {name: dtype if value == RUN_DTYPE else value for name, value in variant.options.items()}


def is_floating(array: np.ndarray) -> bool:
    """Whether an array is floating, bfloat16 included, which NumPy does not know as such."""
    return bool(jnp.issubdtype(array.dtype, jnp.floating))


def rounded(array: np.ndarray | None, dtype: str) -> Any:
    """A floating array in `dtype`; others as they are."""
    return array.astype(jnp.dtype(dtype)) if array is not None and is_floating(array) else array
