"""PyTorch's side of a comparison, as the rest of `compare` knows it: live, or read from a file. Imports no torch."""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from parity_tests.your_port.measure.arrays import flatten, is_floating, to_numpy
from parity_tests.your_port.measure.case import RUN_DTYPE, Case, JaxSide, TorchSide, Variant
from parity_tests.your_port.measure.draw import Draw
from parity_tests.your_port.weights.layouts import Layout, Layouts, Shape, tensor_layout, wanted_layout

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Weight:
    """A parameter or buffer of PyTorch."""

    name: str
    shape: Shape
    first: str
    """Its name; of the second name of a tied weight the first one."""
    role: str
    """What decides its layout in JAX (see `layouts.ROWS`)."""
    is_buffer: bool
    dtype: str = ""
    """That of the module as it was given."""

    @property
    def is_table(self) -> bool:
        """Whether ids are looked up in its rows."""
        return self.role == "embedding" and len(self.shape) == 2

    @property
    def is_first(self) -> bool:
        """Whether it is no second name of a tied weight."""
        return self.first == self.name


@dataclass(frozen=True)
class Inputs:
    """The inputs by name, and how both sides are called with them."""

    arrays: Mapping[str, Any]
    """By name: NumPy arrays, or tuples and dicts of these."""
    positional: tuple[str, ...]
    others: Mapping[str, Any]
    """What is no array: None, flags, strings."""

    @property
    def parameters(self) -> str:
        """The parameters of a function that calls a module with them, for an error: `module, x, lengths`."""
        return ", ".join(("module", *(self.positional or {**self.others, **self.arrays})))

    @property
    def advice(self) -> str:
        """What to do where JAX refuses them, for an error."""
        call = f"jax_call=lambda {self.parameters}: …"
        return f"If it needs other arguments, give {call}; if channels are last, layout={{'x': 'NHWC'}}"

    def as_arguments(self, arrays: Mapping[str, Any]) -> Arguments:
        """Return positional arguments and keywords."""
        values = {**self.others, **arrays}
        return tuple(values[name] for name in self.positional), {} if self.positional else values


@dataclass(frozen=True)
class Original:
    """A PyTorch program with its inputs."""

    name: str
    torch: TorchSide
    inputs: Inputs
    weights: tuple[Weight, ...] = ()
    given: Mapping[str, np.ndarray] | None = None
    """The values of weights and buffers by name, where they are not drawn."""
    kept: dict[Any, Any] = field(default_factory=dict, repr=False)
    """The runs that were made: see `Draw`."""
    integers: Mapping[str, np.ndarray] = field(default_factory=dict)
    """The integers and booleans of the state by name, such as an index of positions or a mask."""

    @property
    def layouts(self) -> list[Layouts]:
        """The layouts that inputs and results may have in JAX: that of PyTorch, and if there are channels, others.

        Convolutions and batch norms have channels. Beside images, tensors of three axes may be sentences, which stay.
        """
        has_channels = any(w.role.endswith("convolution") or w.name.endswith("running_mean") for w in self.weights)
        given = flatten(dict(self.inputs.arrays))[0].values() if has_channels else ()
        axes = {x.ndim for x in given if x is not None}
        last = [{"*": "NHWC"}] * (max(axes, default=0) > 2) + [{"*": (0, 2, 3, 1)}] * (4 in axes)
        return [{}, *last]

    def case(self) -> Case:
        """Make the case, without its JAX side."""
        arrays = self.inputs.arrays
        variant = Variant("given inputs", arrays, {"dtype": RUN_DTYPE}, weights=self.given)
        floating = {name: x for name, x in flatten(dict(arrays))[0].items() if is_floating(x)}
        constants = frozenset(name for name, x in floating.items() if not np.isfinite(x).all())
        return Case(self.name, (variant,), self.torch, JaxSide(lambda *_: None), constants=constants)

    def draw(self, dtype: str) -> Draw:
        """The runs in a dtype, each made once."""
        case = self.case()
        return Draw(case, case.variants[0], dtype, self.kept)


def read_inputs(inputs: Any, program: Any) -> Inputs:
    """Give positional arguments the names that the program has for them."""
    keywords = isinstance(inputs, Mapping)
    if not keywords:
        inputs = inputs if isinstance(inputs, tuple | list) else (inputs,)
        inputs = dict(zip(_parameters(program, len(inputs)), inputs, strict=True))
    read = {name: _as_array(value) for name, value in inputs.items()}
    arrays = {name: value for name, value in read.items() if _holds_arrays(value)}
    if not arrays:
        raise ValueError(
            "inputs must hold an array: an array, a tuple of arguments, a dict of keywords, or an iterator of "
            "such batches, as iter(loader)"
        )
    for name, x in flatten(arrays)[0].items():
        if not isinstance(x, np.ndarray | int | float | None):
            raise ValueError(
                f"{name} of the inputs is no array but {type(x).__name__}, beside arrays: leave it out, and give it to "
                "both sides by torch_call and jax_call"
            )
    return Inputs(arrays, () if keywords else tuple(inputs), {n: v for n, v in read.items() if n not in arrays})


def _parameters(program: Any, count: int) -> list[str]:
    function = getattr(program, "forward", program)  # of a module of PyTorch
    try:
        signature = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        signature = []
    named = [p.name for p in signature if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [*named, *(f"input{number}" for number in range(len(named), count))][:count]


def _as_array(value: Any) -> Any:
    """Make NumPy arrays of the arrays of any library, floats in float64; all else stays."""
    if isinstance(value, Mapping):
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        return kind((name, _as_array(part)) for name, part in value.items())
    if isinstance(value, tuple | list):
        return tuple(_as_array(part) for part in value)
    if not hasattr(value, "shape"):
        return value
    array = to_numpy(value)
    return array.astype(np.float64) if jnp.issubdtype(array.dtype, jnp.floating) else array


def in_given_order(tree: Any, given: Any) -> Any:
    """Put the keys of dicts into the order in which they were given: JAX sorts them."""
    if isinstance(given, Mapping):
        return type(tree)((name, in_given_order(tree[name], part)) for name, part in given.items())
    return tuple(map(in_given_order, tree, given)) if isinstance(given, tuple) else tree


def _holds_arrays(value: Any) -> bool:
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else ()
    return isinstance(value, np.ndarray) or any(map(_holds_arrays, parts))


def to_jax_layout(inputs: Mapping[str, Any], layouts: Layouts) -> dict[str, Any]:
    """Bring the inputs into the layouts that they have in JAX."""
    return _changed(dict(inputs), layouts, Layout.apply) if layouts else dict(inputs)


def to_torch_layout(results: Any, layouts: Layouts) -> Any:
    """Bring the results of JAX into the layouts that they have in PyTorch."""
    return _changed(results, layouts, Layout.undo) if layouts else results


def _changed(tree: Any, layouts: Layouts, change: Callable[[Layout, Any], Any]) -> Any:
    flat, rebuild = flatten(tree)
    for name, x in flat.items():
        if x is not None:
            wish = wanted_layout(layouts, name, name.partition(".")[0], rank=x.ndim)
            flat[name] = change(tensor_layout(name, x.ndim, wish), x)
    return rebuild(flat)
