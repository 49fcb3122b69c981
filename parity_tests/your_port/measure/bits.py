"""Compare two arrays bit for bit, block by block, so that no copy of a large one is made."""

from collections.abc import Iterator
from math import prod

import jax.numpy as jnp
import numpy as np

from parity_tests.your_port.measure.arrays import is_floating

BLOCK = 2**20
"""How many numbers are looked at in one go."""
NARROW = ("bfloat16", "float16")
"""The dtypes through which weights may have gone."""


def are_same(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether two arrays of one shape and dtype hold the same bits."""
    return all(np.array_equal(a, b) for a, b in _blocks(_bits(x), _bits(y)))


def fingerprint(x: np.ndarray) -> tuple[str, int, int]:
    """Return what arrays have in common that hold the same bits in any order, and others by a chance of 2⁻⁶⁴."""
    total = 0
    for (block,) in _blocks(_bits(x)):
        mixed = block.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # the finaliser of SplitMix64
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        total += int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64))
    return str(x.dtype), x.size, total % 2**64


def describe_difference(x: np.ndarray, y: np.ndarray) -> str:
    """Say how JAX's array x differs from PyTorch's y, of one shape and dtype: in how many numbers, where, and how."""
    count, first = 0, None
    for start, (a, b) in enumerate(_blocks(_bits(x), _bits(y))):
        differing = a != b
        if first is None and differing.any():
            first = (start * _rows(x) + int(np.argwhere(differing)[0][0]), *map(int, np.argwhere(differing)[0][1:]))
        count += int(differing.sum())
    place = first[: x.ndim] if first is not None else ()
    values = (f"{side[place]!s} (0x{int(_bits(side)[place]):0{2 * x.itemsize}x})" for side in (x, y))
    where = f", first at {list(place)}" if place else ""
    known = next(_known_differences(x, y), "") if is_floating(x) else ""
    return (
        f"{count:,} of {x.size:,} numbers differ{where}: {' in JAX, '.join(values)} in PyTorch{known and f'; {known}'}"
    )


def _known_differences(x: np.ndarray, y: np.ndarray) -> Iterator[str]:
    """Yield what explains every number that differs."""
    if are_same(x, np.broadcast_to(x.flat[0], x.shape)) and x.size > 1:
        yield f"it is {x.flat[0]!s} everywhere in JAX"
    info = jnp.finfo(x.dtype)
    for dtype in NARROW:
        if jnp.finfo(dtype).bits < info.bits and are_same(x, y.astype(jnp.dtype(dtype)).astype(x.dtype)):
            yield f"JAX has PyTorch's rounded to {dtype}"
    near = float(4 * info.eps)
    if near > 0.1 or not (np.isfinite(x).all() and np.isfinite(y).all()):  # in 8 bits a unit is too coarse to tell
        return
    largest = np.unravel_index(np.argmax(np.abs(y)), y.shape)
    with np.errstate(all="ignore"):
        factor, offset = np.float64(x[largest]) / np.float64(y[largest]), np.float64(x.flat[0]) - np.float64(y.flat[0])
        if np.isfinite(factor) and np.allclose(x, y.astype(float) * factor, near, 0):
            yield "no more than rounding" if abs(factor - 1) < near else f"JAX has {factor:.6g} times PyTorch's"
        if np.allclose(x, y.astype(float) + offset, near, near * (abs(float(x.flat[0])) + abs(offset))):
            yield f"JAX has PyTorch's plus {offset:.6g}"


def _bits(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.itemsize}")


def _rows(x: np.ndarray) -> int:
    """How many of its rows make a block."""
    return max(1, BLOCK // max(1, prod(x.shape[1:])))


def _blocks(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Cut arrays of one shape along the first axis."""
    arrays = tuple(x.reshape(1) if x.ndim == 0 else x for x in arrays)
    rows = _rows(arrays[0])
    for start in range(0, len(arrays[0]), rows):
        yield tuple(x[start : start + rows] for x in arrays)
