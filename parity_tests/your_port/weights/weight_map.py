"""Which weight of PyTorch stands where in JAX: the map that `compare` prints, and puts weights into place by."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from parity_tests.your_port.weights.layouts import Layout, Shape
from parity_tests.your_port.weights.original import Weight
from parity_tests.your_port.weights.words import modules_of


@dataclass(frozen=True)
class Leaf:
    """A weight of the JAX side."""

    shape: Shape
    is_buffer: bool = False
    """Whether it is a running statistic or another variable without a gradient."""


@dataclass(frozen=True)
class Piece:
    """A weight of PyTorch, or one of `count` equal parts of it along an axis."""

    name: str
    index: int = 0
    count: int = 1
    axis: int = 0

    def of(self, weights: Mapping[str, Any]) -> Any:
        """Take it out of the weights."""
        whole = weights[self.name]
        if self.count == 1:
            return whole
        size = whole.shape[self.axis] // self.count
        here = slice(self.index * size, (self.index + 1) * size)
        return whole[(slice(None),) * self.axis + (here,)]

    def cleared(self, whole: np.ndarray) -> np.ndarray:
        """Set it to zero in a copy of the weight."""
        copy = whole.copy()
        self.of({self.name: copy})[...] = 0
        return copy

    def __str__(self) -> str:
        return self.name if self.count == 1 else f"{self.name}[{self.index}/{self.count}]"


@dataclass(frozen=True)
class Source:
    """Where a JAX weight comes from: one piece, or several that are joined."""

    pieces: tuple[Piece, ...]
    shape: Shape
    """Of each piece; of all together where they are concatenated."""
    words: tuple[tuple[str, ...], ...]
    """The words of its name, and those of the classes of its modules."""
    position: float
    """Between 0 and 1, in the order of definition."""
    role: str = "unknown"
    is_buffer: bool = False
    join: Literal["concatenated", "stacked", "summed"] = "concatenated"
    """How several become one; they are stacked along a new first axis."""
    origin: tuple[str, ...] = ()
    """What the user wrote to ask for it."""

    def fill(self, weights: Mapping[str, Any], layout: Layout) -> Any:
        """Make JAX's array of PyTorch's weights, by operations of either library."""
        arrays = [piece.of(weights) for piece in self.pieces]
        library = np if isinstance(arrays[0], np.ndarray) else jnp
        if self.join == "stacked":
            return library.stack([layout.apply(array) for array in arrays])
        if self.join == "summed":
            return layout.apply(sum(arrays[1:], start=arrays[0]))
        return layout.apply(arrays[0] if len(arrays) == 1 else library.concatenate(arrays))

    def __str__(self) -> str:
        texts = [str(piece) for piece in self.pieces]
        if self.join == "stacked":
            return f"{texts[0]} … {texts[-1]}, stacked"
        return (" + " if self.join == "summed" else ", ").join(texts)


@dataclass(frozen=True)
class Entry:
    """A line of the map."""

    source: Source
    layouts: tuple[Layout, ...]
    """Those that fit; the first is taken. More than one: the shapes leave it open."""
    remark: str = ""
    is_guess: bool = False
    """Whether the names are not alike, so that shape and order decided."""

    @property
    def is_open(self) -> bool:
        return len(self.layouts) > 1


@dataclass(frozen=True)
class WeightMap:
    """Which weight of PyTorch stands where in JAX."""

    leaves: Mapping[str, Leaf]
    entries: Mapping[str, Entry]
    """By JAX name."""
    left_in_torch: Mapping[Piece, Shape] = field(default_factory=dict)
    """Weights and running statistics of PyTorch, or parts of them, that have no place in JAX."""
    kept: tuple[str, ...] = ()
    """JAX's variables that keep their own values."""

    def place(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Put PyTorch's weights into their places; differentiable where they are JAX arrays."""
        return {path: entry.source.fill(weights, entry.layouts[0]) for path, entry in self.entries.items()}

    def choose(self, error: Callable[["WeightMap"], float], most: int = 16) -> "WeightMap":
        """Decide the open layouts by trying: weights of the same kind of module go the same way."""
        groups: dict[Any, list[str]] = {}
        for path, entry in self.entries.items():
            if entry.is_open:
                key = (path.rpartition(".")[2], entry.source.role, len(entry.layouts))
                groups.setdefault(key, []).append(path)
        if not groups:
            return self
        for choice in islice(product(*(range(count) for _, _, count in groups)), most):
            taken = {path: index for paths, index in zip(groups.values(), choice, strict=True) for path in paths}
            tried = self._with(taken, "each way was tried; this one agrees")
            if error(tried) < 1e-9:
                return tried
        first = {path: 0 for paths in groups.values() for path in paths}
        return self._with(first, "each way was tried; none agrees")

    def _with(self, choice: Mapping[str, int], remark: str) -> "WeightMap":
        entries = dict(self.entries)
        for path, index in choice.items():
            entry = entries[path]
            layouts = (entry.layouts[index], *entry.layouts[:index], *entry.layouts[index + 1 :])
            entries[path] = replace(entry, layouts=layouts, remark=remark)
        return replace(self, entries=entries)

    def lines(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield JAX's name, its shape, PyTorch's name, and how the one is made of the other."""

        def order(item: tuple[str, Entry]) -> tuple[float, int]:
            return item[1].source.position, item[1].source.pieces[0].index

        for path, entry in sorted(self.entries.items(), key=order):
            how = "; ".join(filter(None, (entry.layouts[0].words, entry.remark)))
            yield path, str(list(self.leaves[path].shape)), str(entry.source), how
        for path in self.kept:
            yield path, str(list(self.leaves[path].shape)), "—", "keeps its own value"
        for piece, shape in self.left_in_torch.items():
            yield "—", str(list(shape)), str(piece), "has no place in JAX"

    def __str__(self) -> str:
        rows = [("JAX", "shape", "PyTorch", "layout"), *self.lines()]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        texts = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(text.rstrip() for text in texts)


def match_paths(weights: Sequence[Weight], weight_map: WeightMap) -> dict[str, str]:
    """Find the submodules of JAX and of PyTorch that hold the same weights; of nested ones the inner ones match."""
    in_torch: dict[str, set[str]] = {}
    for weight in (weight for weight in weights if not weight.is_buffer):
        for path in modules_of(weight.name):
            name = weight.first if weight.first.startswith(f"{path}.") else weight.name
            in_torch.setdefault(path, set()).add(name)
    in_jax: dict[str, set[str]] = {}
    for path, entry in weight_map.entries.items():
        for module in [] if weight_map.leaves[path].is_buffer else modules_of(path):
            in_jax.setdefault(module, set()).update(piece.name for piece in entry.source.pieces)
    held: dict[frozenset[str], list[str]] = {}
    for path, names in in_torch.items():
        held.setdefault(frozenset(names), []).append(path)
    found: dict[str, str] = {}
    for own, paths in held.items():
        same = sorted((path for path, names in in_jax.items() if names == own), key=len)
        found |= dict(zip(reversed(same), reversed(paths), strict=False))
    return found
