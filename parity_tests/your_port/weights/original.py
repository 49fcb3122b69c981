"""PyTorch's side of a comparison, as the rest of `compare` knows it: live, or read from a file. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parity_tests.your_port.measure.case import RUN_DTYPE, Case, JaxSide, TorchSide, Variant
from parity_tests.your_port.measure.tree import flatten
from parity_tests.your_port.weights.layouts import (
    CHANNELS_LAST,
    Layouts,
    Shape,
    channels_first,
    channels_last,
    wanted_layout,
)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Weight:
    """A parameter or buffer of PyTorch."""

    name: str
    shape: Shape
    first: str
    """Its name; of the second name of a tied weight the first one."""
    class_words: tuple[str, ...]
    """The words of the classes that hold it, as Linen would number them."""
    role: str
    """What decides its layout in JAX (see `layouts.find_layouts`)."""
    is_buffer: bool


@dataclass(frozen=True)
class Inputs:
    """The inputs by name, and how both sides are called with them."""

    arrays: Mapping[str, Any]
    """By name: NumPy arrays, or tuples and dicts of these."""
    positional: tuple[str, ...]
    others: Mapping[str, Any]
    """What is no array: None, flags, strings."""

    def as_arguments(self, arrays: Mapping[str, Any]) -> Arguments:
        """Return positional arguments and keywords."""
        values = {**self.others, **arrays}
        return tuple(values[name] for name in self.positional), {} if self.positional else values

    def as_shapes(self, layout: Layouts) -> Arguments:
        """Return the arguments as JAX gets them, as shapes."""
        arrays = to_jax_layout(self.arrays, layout)
        return self.as_arguments(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, _jax_dtype(x)), arrays))


@dataclass(frozen=True)
class Original:
    """A PyTorch program with its inputs."""

    name: str
    torch: TorchSide
    inputs: Inputs
    weights: tuple[Weight, ...] = ()
    given: Mapping[str, np.ndarray] | None = None
    """The values of weights and buffers by name, where they are not drawn."""

    def case(self, name: str = "given inputs") -> Case:
        """Make the case, without its JAX side."""
        arrays = self.inputs.arrays
        variant = Variant(name, arrays, {"dtype": RUN_DTYPE}, weights=self.given)
        infinite = {n for n, x in flatten(dict(arrays))[0].items() if not np.isfinite(x).all()}
        constants = frozenset(n.partition(".")[0] for n in infinite)
        return Case(self.name, (variant,), self.torch, JaxSide(lambda *_: None), constants=constants)


def _jax_dtype(x: np.ndarray) -> Any:
    return jnp.float32 if np.issubdtype(x.dtype, np.floating) else jax.dtypes.canonicalize_dtype(x.dtype)


def to_jax_layout(inputs: Mapping[str, Any], layout: Layouts) -> dict[str, Any]:
    """Move the channels of the inputs that are channels last in JAX."""
    flat, rebuild = flatten(dict(inputs))
    return rebuild({n: channels_last(x.ndim).apply(x) if _is_last(n, x, layout) else x for n, x in flat.items()})


def to_torch_layout(results: Any, layout: Layouts) -> Any:
    """Move the channels of the results that are channels last in JAX back to axis 1."""
    flat, rebuild = flatten(results)
    return rebuild({n: channels_first(x.ndim).apply(x) if _is_last(n, x, layout) else x for n, x in flat.items()})


def _is_last(name: str, x: Any, layout: Layouts) -> bool:
    return x is not None and wanted_layout(layout, name, name.partition(".")[0]) in CHANNELS_LAST
