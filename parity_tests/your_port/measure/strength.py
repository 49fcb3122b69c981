"""How much inputs can show: which are the same number everywhere, and stronger ones. Imports no torch.

With an input of ones, equal lengths, or a mask that hides nothing, two different programs may agree.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from parity_tests.your_port.measure.case import Variant, random_for
from parity_tests.your_port.measure.errors import is_floating
from parity_tests.your_port.measure.tree import flatten


def find_constant(variant: Variant) -> list[str]:
    """Say which inputs are the same number everywhere."""
    flat, _ = flatten(dict(variant.inputs))
    arrays = {name: np.asarray(x) for name, x in flat.items() if x is not None}
    return [f"{name} is {x.flat[0]:g} everywhere" for name, x in arrays.items() if _is_constant(x)]


def stronger(variant: Variant) -> Iterator[Variant]:
    """Yield variants with stronger inputs and with drawn weights; a program may refuse some of them.

    In the first one only constant inputs change. In the next all numbers do: whole ones begin at 0, so that ids meet
    the padding, and real ones have both signs. In the others an axis of one element, such as one key, has two.
    """
    flat, rebuild = flatten(dict(variant.inputs))
    arrays = {name: None if x is None else np.asarray(x) for name, x in flat.items()}
    axes = sorted({axis for x in arrays.values() if x is not None for axis, size in enumerate(x.shape) if size == 1})

    def drawn(name: str, **changed: Any) -> Variant:
        return replace(variant, name=f"{variant.name}, {name}", inputs=rebuild({**arrays, **changed}), weights=None)

    constant = {name: x for name, x in arrays.items() if x is not None and _is_constant(x)}
    yield drawn("constants drawn", **{name: _drawn(x, name, least=1) for name, x in constant.items()})
    for several in dict.fromkeys(((), *((axis,) for axis in axes), tuple(axes))):
        grown = {name: _grown(x, several) for name, x in arrays.items() if x is not None}
        yield drawn(f"all drawn {several}", **{name: _drawn(x, name, least=0) for name, x in grown.items()})


def _is_constant(x: np.ndarray) -> bool:
    return x.size > 1 and bool((x == x.flat[0]).all())


def _grown(x: np.ndarray, axes: Iterable[int]) -> np.ndarray:
    for axis in axes:
        x = np.repeat(x, 2, axis) if x.shape[axis : axis + 1] == (1,) else x
    return x


def _drawn(x: np.ndarray, name: str, least: int) -> np.ndarray:
    """Draw a mask whose rows have both values, whole numbers from `least` up to the largest one, or real numbers."""
    rng = random_for("stronger", name)
    if x.dtype == bool or (least == 0 and x.ndim > 1 and np.isin(x, (0, 1)).all()):
        if not _is_constant(x) or x.shape[-1] == 1:
            return x
        return rng.permuted(np.broadcast_to(np.arange(x.shape[-1]) % 2, x.shape), axis=-1).astype(x.dtype)
    if x.size == 0 or not np.isfinite(x).all() or (x < 0).all():
        return x
    if is_floating(x):
        return rng.normal(size=x.shape)
    drawn = rng.integers(min(least, x.max()), x.max(), x.shape, endpoint=True)
    drawn.flat[np.argmax(x)] = x.max()  # which may be a length of time
    if x.ndim > 1:
        drawn.flat[0] = min(least, x.max())  # which may be the padding
    return np.where(x < 0, x, drawn).astype(x.dtype)
