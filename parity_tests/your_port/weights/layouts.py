"""The ways in which JAX stores a tensor of PyTorch: transposed, channels last, reshaped."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

CHANNELS_LAST = ("NWC", "NHWC", "NDHWC")
Shape = tuple[int, ...]
Layouts = Mapping[str, str | Sequence[int]]
"""Patterns of names -> what the user says about the layout in JAX."""


@dataclass(frozen=True)
class Layout:
    """A way from PyTorch's array to JAX's: axes moved, then some reversed, then the shape changed."""

    words: str = "as it is"
    axes: Shape | None = None
    flipped: Shape = ()
    shape: Shape | None = None

    def apply(self, x: Any) -> Any:
        """Convert an array of NumPy or JAX."""
        x = x if self.axes is None else x.transpose(self.axes)
        if self.flipped:
            x = x[tuple(slice(None, None, -1) if axis in self.flipped else slice(None) for axis in range(x.ndim))]
        return x if self.shape is None else x.reshape(self.shape)

    def undo(self, x: Any) -> Any:
        """Put axes that were moved back."""
        return x if self.axes is None else x.transpose(tuple(self.axes.index(axis) for axis in range(x.ndim)))

    def fits(self, torch: Shape, jax: Shape) -> bool:
        """Whether it makes an array of JAX's shape of one of PyTorch's."""
        axes = tuple(range(len(torch))) if self.axes is None else self.axes
        if sorted(axes) != list(range(len(torch))):
            return False
        moved = tuple(torch[axis] for axis in axes)
        return moved == jax if self.shape is None else self.shape == jax and _divides(moved, jax)


def _divides(one: Shape, other: Shape) -> bool:
    """Whether one shape splits or joins axes of the other; a first or last axis stays if there are several."""
    if math.prod(one) != math.prod(other) or len(one) == len(other):
        return False
    squeezed = [tuple(size for size in shape if size != 1) for shape in (one, other)]
    return len(one) == 1 or squeezed[0] == squeezed[1] or one[0] == other[0] or one[-1] == other[-1]


AS_IT_IS, TRANSPOSED = Layout(), Layout("transposed", (1, 0))


def tensor_layout(name: str, rank: int, wish: str | Sequence[int] | None) -> Layout:
    """Find the layout in JAX of an input or a result; with channels last, one of fewer than three axes stays.

    Raises:
        ValueError: the user names another number of axes.
    """
    if wish is None or wish == "as it is":
        return AS_IT_IS
    if wish in CHANNELS_LAST:
        return Layout("channels last", (0, *range(2, rank), 1)) if rank > 2 else AS_IT_IS
    (layout,) = _wished(wish, rank, [])
    if sorted(layout.axes or ()) != list(range(rank)):
        raise ValueError(f"layout must name {rank} axes for {name}; got {wish!r}")
    return layout


def find_layouts(torch: Shape, jax: Shape, *, role: str, wish: str | Sequence[int] | None) -> tuple[Layout, ...]:
    """Find the layouts that make a JAX weight of this shape of PyTorch's; the likely ones first.

    Args:
        torch: the shape in PyTorch.
        jax: the shape in JAX.
        role: linear (PyTorch [out, in], JAX [in, out]), convolution, transposed convolution, straight (the same on
            both sides) or unknown. It decides where the shapes leave more than one.
        wish: what the user says: as it is, transposed, NHWC or the like, or the order of PyTorch's axes.
    """
    rank, space = len(torch), tuple(range(2, len(torch)))
    kernel = Layout("channels last", (*space, 1, 0)) if rank > 2 else TRANSPOSED
    ways = {
        "straight": [AS_IT_IS],
        "linear": [kernel],
        "convolution": [kernel],
        "transposed convolution": [
            Layout("channels last, flipped", (*space, 0, 1), tuple(range(rank - 2))),
            Layout("channels last", (*space, 1, 0)),
            Layout("in and out exchanged, flipped", (1, 0, *space), space),
        ],
        "unknown": [AS_IT_IS, *([kernel] if rank > 1 else [])],
    }
    if wish is not None:
        return tuple(layout for layout in _wished(wish, rank, ways.get(role, [kernel])) if layout.fits(torch, jax))
    for candidates in (ways[role], ways["unknown"]):
        reshaped = [Layout(f"{way.words}, reshaped", way.axes, way.flipped, jax) for way in candidates]
        found = [layout for layout in (*candidates, *reshaped) if layout.fits(torch, jax)]
        if found:
            return tuple(found)
    return ()


def _wished(wish: str | Sequence[int], rank: int, kernels: list[Layout]) -> list[Layout]:
    if not isinstance(wish, str):
        return [Layout(f"axes {list(wish)}", tuple(wish))]
    if wish in CHANNELS_LAST:
        return kernels if rank > 2 else [AS_IT_IS, TRANSPOSED]
    if wish not in ("as it is", "transposed"):
        choices = f"as it is, transposed, {', '.join(CHANNELS_LAST)}, or a tuple of axes"
        raise ValueError(f"layout must be one of {choices}; got {wish!r}")
    return [AS_IT_IS if wish == "as it is" else Layout("transposed", tuple(range(rank))[::-1])]


def wanted_layout(layouts: Layouts, *names: str) -> Any:
    """Return what the user says about the layout of a tensor with one of these names."""
    return next((wish for pattern, wish in layouts.items() if any(fnmatchcase(n, pattern) for n in names)), None)
