"""Find which intermediate tensor of JAX is which one of PyTorch, and bring it into JAX's form.

JAX's submodules may have other names (`h_0.attn` for `h.0.attn`), its tensors other shapes (channels last, axes
joined), and its calls may be others: row by row of a batch, all time steps at once, a stack of layers in one loop.
Names, shapes and the user's `layout=` decide. Values do not: a wrong tensor may hold the right ones in another order.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np

from parity_tests.your_port.measure.taps import Tensor
from parity_tests.your_port.weights.layouts import CHANNELS_LAST

Calls = Sequence[np.ndarray]


def match_names(in_jax: Sequence[str], in_torch: Sequence[str], paths: Mapping[str, str]) -> dict[str, list[str]]:
    """Return JAX's names with PyTorch's; a loop over stacked layers has the names of all its layers.

    Args:
        in_jax, in_torch: the names of submodules and taps.
        paths: JAX's names with PyTorch's, as far as their weights say it.
    """
    same: dict[str, str] = {}
    for name in in_jax:
        known = max((path for path in paths if f"{name}.".startswith(f"{path}.")), key=len, default="")
        other = paths[known] + name.removeprefix(known) if known else name
        if other not in same.values():  # where a submodule only wraps another one, the outer one
            same[name] = other
    found = {name: [other] for name, other in same.items() if other in in_torch}
    for change in (lambda name: name, lambda name: re.sub(r"\.\d+", "", name)):  # the same name, or a stack's
        left = [name for name in in_torch if [name] not in found.values()]
        for name in (name for name in same if name not in found):
            alike = [other for other in left if _words(change(other)) == _words(same[name])]
            found |= {name: alike} if alike else {}
    return found


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())


def parts_of(tensors: Sequence[Tensor], names: Collection[str]) -> list[list[Tensor]]:
    """Return the tensors that submodules of these names return, or are given, part by part, each call by call."""
    found = defaultdict(list)
    for x in tensors:
        if x.of in names:
            found[x.part].append(x)
    return list(found.values())


def kind_of(name: str) -> str:
    """The name with a star for each number: submodules of the same kind differ in numbers alone."""
    return re.sub(r"\d+", "*", name)


def align(calls: Calls, like: Calls, wish: Any = None) -> list[np.ndarray]:
    """Bring the tensors of PyTorch's calls into the form of JAX's; [] if the shapes leave none, or more than one.

    Args:
        calls: those of PyTorch, one for each of JAX's; or one for all of them, or all for one of JAX's.
        like: those of JAX.
        wish: what the user says about the layout in JAX.
    """
    if len(calls) == 1 < len(like):
        calls = [x for axis in _axes(calls[0], like) for x in np.moveaxis(calls[0].squeeze(), axis, 0)]
    elif len(like) == 1 < len(calls):
        calls = [np.stack([x.squeeze() for x in calls], axis) for axis in _axes(like[0], calls)]
    formed = [bring(x, y.shape, wish) for x, y in zip(calls, like, strict=False)]
    found = [x for x in formed if x is not None]
    return found if len(found) == len(like) == len(calls) else []


def _axes(whole: np.ndarray, parts: Calls) -> list[int]:
    """Return the axes along which the parts make the whole, such as the rows of a batch, or time steps."""
    shape, shapes = whole.squeeze().shape, {x.squeeze().shape for x in parts}
    return [a for a in range(len(shape)) if {(*each[:a], len(parts), *each[a:]) for each in shapes} == {shape}]


def bring(x: np.ndarray, shape: tuple[int, ...], wish: Any = None) -> np.ndarray | None:
    """Bring a tensor of PyTorch to JAX's shape: as the user says, as it is, channels last, or in the only other order.

    As it is and channels last, axes may also be split or joined.
    """
    as_it_is = tuple(range(x.ndim))
    last = (0, *range(2, x.ndim), 1) if x.ndim > 2 else as_it_is
    if isinstance(wish, str):
        wish = last if wish in CHANNELS_LAST and len(wish) == x.ndim else None
    orders = [as_it_is, last] if wish is None or sorted(wish) != list(as_it_is) else [tuple(wish), as_it_is, last]
    for order in orders:
        if _splits(tuple(x.shape[axis] for axis in order), shape):
            return x.transpose(order).reshape(shape)
    sizes, flat = [size for size in shape if size != 1], x.squeeze()
    if len({*sizes}) == len(sizes) and sorted(sizes) == sorted(flat.shape):
        return flat.transpose([flat.shape.index(size) for size in sizes]).reshape(shape)
    return None


def _splits(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether one shape only splits or joins neighbouring axes of the other."""
    ends = [{1, *accumulate(shape, mul)} for shape in (one, other)]
    return max(ends[0]) == max(ends[1]) and (ends[0] <= ends[1] or ends[1] <= ends[0])
