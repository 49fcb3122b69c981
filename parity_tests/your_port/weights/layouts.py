"""The ways in which JAX stores a tensor of PyTorch: a table. Another way is another row."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

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

    def between(self, torch: Shape, jax: Shape) -> "Layout | None":
        """Return it, reshaped if need be, if it makes an array of JAX's shape of one of PyTorch's.

        Axes are split or joined only if the first or the last one stays, or if one side has no other.
        """
        axes = tuple(range(len(torch))) if self.axes is None else self.axes
        if sorted(axes) != list(range(len(torch))):
            return None
        moved = tuple(torch[axis] for axis in axes)
        if moved == jax:
            return self
        if len(moved) == len(jax) or math.prod(moved) != math.prod(jax):
            return None
        splits = min(len(moved), len(jax)) < 2 or moved[0] == jax[0] or moved[-1] == jax[-1]
        return replace(self, words=f"{self.words}, reshaped", shape=jax) if splits else None


class Storage(NamedTuple):
    """A way of storing weights, and the layers whose weights are stored in it."""

    words: str
    axes: str
    """PyTorch's axes in JAX's order. s stands for those of space, from the third on, S for the same reversed."""
    roles: tuple[str, ...]

    def layout(self, rank: int) -> Layout | None:
        """Return the layout of a weight with so many axes, or None."""
        if not self.axes:
            return Layout(self.words)
        if rank < 2 or (rank > 2) == self.axes.isdigit():
            return None
        space = range(2, rank)
        axes = tuple(axis for text in self.axes for axis in (space if text in "sS" else [int(text)]))
        return Layout(self.words, axes, tuple(axes.index(axis) for axis in space) if "S" in self.axes else ())


ROWS = (
    Storage("as it is", "", ("straight", "embedding", "unknown")),
    Storage("transposed", "10", ("linear", "unknown")),
    Storage("channels last, flipped", "S01", ("transposed convolution",)),
    Storage("channels last", "s10", ("linear", "convolution", "transposed convolution", "unknown")),
    Storage("in and out exchanged, flipped", "10S", ("transposed convolution",)),
)
"""The ways of storing weights, for each role the likely ones first.

The roles: linear (PyTorch [out, in], JAX [in, out]), convolution, transposed convolution, straight (the same on both
sides), embedding (straight, too), unknown. A role decides where shapes leave more than one way.
"""
Role = Callable[[str, str], str | None]
"""(JAX name, role of the weight in PyTorch) -> its role: how a framework stores the weights of its own layers;
None if nothing is known of it."""


def find_layouts(torch: Shape, jax: Shape, role: str | None, wish: Any = None) -> tuple[Layout, ...]:
    """Find the layouts that make a JAX weight of this shape of PyTorch's; the likely ones first.

    Args:
        torch: the shape in PyTorch.
        jax: the shape in JAX.
        role: one of those of `ROWS`; None for all rows.
        wish: what the user says: as it is, transposed, or the order of PyTorch's axes. NHWC and the like tell nothing
            of a weight, whose role does.
    """
    if wish is not None and wish not in CHANNELS_LAST:
        tried = [[_wished(wish, len(torch))]]
    else:
        tried = [
            [layout for row in ROWS if wanted in (None, *row.roles) and (layout := row.layout(len(torch))) is not None]
            for wanted in (role, "unknown")
        ]
    for layouts in tried:
        if found := tuple(fitting for layout in layouts if (fitting := layout.between(torch, jax)) is not None):
            return found
    return ()


def is_usual(layout: Layout, role: str | None) -> bool:
    """Whether a framework stores the weights of this role in this layout."""
    return any(layout.words.removesuffix(", reshaped") == row.words and role in (None, *row.roles) for row in ROWS)


def tensor_layout(name: str, rank: int, wish: str | Sequence[int] | None) -> Layout:
    """Find the layout in JAX of an input or a result; with channels last, one of fewer than three axes stays.

    Raises:
        ValueError: the user names another number of axes.
    """
    if wish in CHANNELS_LAST:
        return Layout("channels last", (0, *range(2, rank), 1)) if rank > 2 else Layout()
    layout = _wished("as it is" if wish is None else wish, rank)
    if layout.axes is not None and sorted(layout.axes) != list(range(rank)):
        raise ValueError(f"layout must name {rank} axes for {name}; got {wish!r}")
    return layout


def _wished(wish: str | Sequence[int], rank: int) -> Layout:
    if not isinstance(wish, str):
        return Layout(f"axes {list(wish)}", tuple(wish))
    if wish not in ("as it is", "transposed"):
        choices = f"as it is, transposed, {', '.join(CHANNELS_LAST)}, or a tuple of axes"
        raise ValueError(f"layout must be one of {choices}; got {wish!r}")
    return Layout() if wish == "as it is" else Layout("transposed", tuple(range(rank))[::-1])


def wanted_layout(layouts: Layouts, *names: str, rank: int | None = None) -> Any:
    """Return what the user says about the layout of a tensor with one of these names.

    Args:
        rank: how many axes it has; a pattern with * and another number of axes then says nothing of it.
    """
    for pattern, wish in layouts.items():
        fits = isinstance(wish, str | None) or rank in (None, len(wish)) or "*" not in pattern
        if fits and any(fnmatchcase(name, pattern) for name in names):
            return wish
    return None
