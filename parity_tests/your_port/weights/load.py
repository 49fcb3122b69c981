"""The user's own function that loads PyTorch's weights into JAX, run with numbers that say their own positions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parity_tests.your_port.measure.arrays import Arrays, is_floating
from parity_tests.your_port.weights.adapters import JaxProgram
from parity_tests.your_port.weights.layouts import Layout, Shape, find_layouts
from parity_tests.your_port.weights.original import Weight
from parity_tests.your_port.weights.positions import Affine, read_places
from parity_tests.your_port.weights.weight_map import Entry, Joined, Leaf, Piece, Uses, WeightMap, count_uses

Load = Callable[[Arrays], Any]

LISTED = 8
"""How many weights an error lists."""


def call_load(load: Load, weights: Sequence[Weight]) -> Any:
    """Call the user's function with weights that are all 0.

    Raises:
        ValueError: it fails; the message says what it gets.
    """
    try:
        loaded = load({w.name: np.zeros(w.shape) for w in weights})
    except Exception as error:
        raise ValueError(
            f"load raised {type(error).__name__}: {error}. It gets a dict of NumPy arrays by PyTorch's names: "
            f"{_some([f'{w.name} {list(w.shape)}' for w in weights])}. "
            "For a function of tensors: load=lambda arrays: convert({n: torch.tensor(x) for n, x in arrays.items()})"
        ) from error
    if loaded is None:
        raise ValueError("load must return JAX's module or weights; it returned None")
    return loaded


def map_by_load(load: Load, weights: Sequence[Weight], port: JaxProgram) -> WeightMap:
    """Find where each number of PyTorch's weights lands in JAX.

    Raises:
        ValueError: the function fails, or does not return what the JAX module has.
    """
    shapes, loaded = {w.name: w.shape for w in weights}, port.read(call_load(load, weights))
    _check({path: x for path, x in loaded.items() if is_floating(x)}, port)
    places = read_places(lambda arrays: port.read(load(arrays)), shapes, {w.name: w.first for w in weights})
    if computed := [path for path, made in places.items() if made.again is not None]:
        _check_traceable(load, weights, computed)
    entries = {path: _entry(places[path], shapes) for path in port.leaves}
    order = list(shapes)
    entries = dict(sorted(entries.items(), key=lambda e: min(map(order.index, e[1].source.names), default=len(order))))
    uses = count_uses(weights, entries)
    if computed:  # nobody sees which numbers are used there
        uses = {name: used for name, used in uses.items() if used.counts.any()}
    integers = {
        path: np.asarray(jnp.asarray(x)) for path, x in loaded.items() if _is_integer(x)
    }  # as wide as JAX's own
    return WeightMap(port.leaves, entries, uses, remarks=tuple(_remarks(entries, uses, port)), integers=integers)


def _is_integer(x: Any) -> bool:
    """Whether it is an array of integers or booleans. A counter of a weak type has the width of the run."""
    kinds = (np.integer, np.bool_)
    is_array = hasattr(x, "shape") and not getattr(x, "weak_type", False)
    return is_array and any(jnp.issubdtype(x.dtype, kind) for kind in kinds)


def _check(arrays: Arrays, port: JaxProgram) -> None:
    wrong, wanted, loaded = [], port.leaves, {path: Leaf.of(x) for path, x in arrays.items()}
    if not wanted.keys() & loaded.keys():
        has, returned = _some([*wanted]), _some([*loaded]) or "nothing that is floating"
        raise ValueError(f"load must return what the JAX module has: {has}; it returned {returned}")
    for path in {**wanted, **loaded}:
        if path not in loaded:
            wrong.append(f"no {path} {list(wanted[path].shape)}")
        elif path not in wanted or loaded[path].shape != wanted[path].shape:
            has = f" for {list(wanted[path].shape)}" if path in wanted else ", which it has not"
            wrong.append(f"{path} {list(loaded[path].shape)}{has}")
        elif loaded[path].dtype.endswith("16") and not wanted[path].dtype.endswith("16"):
            wrong.append(f"{path} in {loaded[path].dtype} for {wanted[path].dtype}")
        elif isinstance(arrays[path], jax.ShapeDtypeStruct):
            wrong.append(f"{path} {list(loaded[path].shape)} without numbers, since load does not fill it")
    if wrong:
        raise ValueError(f"load returns other weights than the JAX module has: {_some(wrong)}")


def _some(texts: Sequence[str]) -> str:
    """List the first of what is said."""
    more = [f"and {len(texts) - LISTED} more"] * (len(texts) > LISTED)
    return "; ".join([*texts[:LISTED], *more])


def _check_traceable(load: Load, weights: Sequence[Weight], computed: Sequence[str]) -> None:
    def run(arrays: Any) -> None:
        load(arrays)

    try:
        jax.eval_shape(run, {w.name: jax.ShapeDtypeStruct(w.shape, jnp.float32) for w in weights})
    except Exception as error:
        raise ValueError(
            f"load computes {', '.join(computed)} in another way than by moving, scaling and adding PyTorch's numbers. "
            "Write this in jax.numpy, so that JAX can differentiate it"
        ) from error


def _entry(made: Affine, shapes: Mapping[str, Shape]) -> Entry:
    """Describe a weight by its layout, if it is one of PyTorch's as a whole."""
    for name in made.names if made.is_moved and len(made.names) == 1 else ():
        places = made.terms[name].places
        positions = np.arange(int(np.prod(shapes[name]))).reshape(shapes[name])
        for layout in find_layouts(shapes[name], places.shape, role=None):
            if np.array_equal(layout.apply(positions), places):
                return Entry(Joined(((Piece(name),),)), (layout,))
    return Entry(made, (Layout(made.words),), is_computed=made.again is not None)


def _remarks(entries: Mapping[str, Entry], uses: Mapping[str, Uses], port: JaxProgram) -> Iterator[str]:
    for path, entry in entries.items():
        made = entry.source
        if isinstance(made, Affine) and not made.is_moved:
            if made.names or made.again is not None:
                yield f"{path} is {made.words}: {made}"
            elif not port.leaves[path].is_buffer:
                yield f"{path} gets none of PyTorch's weights"
    for name, used in uses.items():
        if used.counts.min(initial=2) > 1:
            yield f"{name} is in {' and '.join(path for path, entry in entries.items() if name in entry.source.names)}"
