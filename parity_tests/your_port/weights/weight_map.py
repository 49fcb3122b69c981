"""Which weight of PyTorch stands where in JAX: the map that `compare` prints, and puts weights into place by."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import lcm, prod
from typing import Any

import jax.numpy as jnp
import numpy as np

from parity_tests.your_port.weights.layouts import Layout, Shape
from parity_tests.your_port.weights.original import Weight
from parity_tests.your_port.weights.positions import Affine
from parity_tests.your_port.weights.words import modules_of

AGREES = 1e-9
"""How near outputs come if the weights are in place."""
MOST_WAYS, MOST_CONFIRMED = 256, 16
"""How many ways of placing weights are tried, and of how many of them the gradients are compared, too."""
PARTS = (2, 3, 4)
"""Into how many equal parts a weight is cut to say which of its numbers JAX lacks."""


@dataclass(frozen=True)
class Leaf:
    """A weight of the JAX side."""

    shape: Shape
    is_buffer: bool = False
    """Whether it is a running statistic or another variable without a gradient."""
    dtype: str = ""
    """That of the module as it was given."""
    sharding: Any = field(default=None, compare=False)
    """How it lies on several devices."""

    @classmethod
    def of(cls, x: Any, is_buffer: bool = False) -> "Leaf":
        """Describe an array, or one that is only described."""
        return cls(tuple(x.shape), is_buffer, str(x.dtype), getattr(x, "sharding", None))


@dataclass(frozen=True)
class Piece:
    """A weight of PyTorch, or one of `count` equal parts of it along an axis."""

    name: str
    index: int = 0
    count: int = 1
    axis: int = 0

    def of(self, weights: Mapping[str, Any]) -> Any:
        """Take it out of the weights; a view, if they are NumPy's."""
        whole = weights[self.name]
        if self.count == 1:
            return whole
        size = whole.shape[self.axis] // self.count
        here = slice(self.index * size, (self.index + 1) * size)
        return whole[(slice(None),) * self.axis + (here,)]

    def __str__(self) -> str:
        return self.name if self.count == 1 else f"{self.name}[{self.index}/{self.count}]"


@dataclass(frozen=True)
class Joined:
    """A JAX weight that is made of pieces: concatenated or stacked, and each of these a sum."""

    parts: tuple[tuple[Piece, ...], ...]
    stacked: bool = False
    """Along a new first axis."""

    @property
    def pieces(self) -> list[Piece]:
        return [piece for part in self.parts for piece in part]

    @property
    def names(self) -> list[str]:
        """PyTorch's weights."""
        return [piece.name for piece in self.pieces]

    def fill(self, weights: Mapping[str, Any], layout: Layout) -> Any:
        """Make JAX's array of PyTorch's weights, by operations of either library."""
        arrays = [sum((piece.of(weights) for piece in others), first.of(weights)) for first, *others in self.parts]
        library = np if isinstance(arrays[0], np.ndarray) else jnp
        if self.stacked:
            return library.stack([layout.apply(array) for array in arrays])
        return layout.apply(arrays[0] if len(arrays) == 1 else library.concatenate(arrays))

    def blocks(self, name: str, shape: Shape) -> Shape:
        """Into how many equal blocks it cuts a weight along each axis, to take each as a whole or not at all."""
        found = [1] * len(shape)
        for piece in (piece for piece in self.pieces if piece.name == name and piece.count > 1):
            found[piece.axis] = lcm(found[piece.axis], piece.count)
        return tuple(found)

    def count_uses(self, uses: Mapping[str, np.ndarray]) -> None:
        """Count how often each block is taken, in an array with a number for each block, by PyTorch's name."""
        for piece in self.pieces:
            piece.of(uses)[...] += 1

    def __str__(self) -> str:
        texts = [" + ".join(map(str, part)) for part in self.parts]
        return f"{texts[0]} … {texts[-1]}, stacked" if self.stacked else ", ".join(texts)


Source = Joined | Affine
"""What a JAX weight is made of: pieces, or what the user's `load` does."""


@dataclass(frozen=True)
class Uses:
    """How often each number of a weight stands in JAX."""

    name: str
    shape: Shape
    counts: np.ndarray
    """For each of the equal blocks into which the map cuts the weight: far fewer than it has numbers."""

    @property
    def unused(self) -> int:
        """How many numbers stand nowhere."""
        return int((self.counts == 0).sum()) * (prod(self.shape) // self.counts.size)

    @property
    def unused_words(self) -> str:
        """Name what stands nowhere: the weight, equal parts of it, or how many numbers; "" for nothing."""
        is_free = self.counts == 0
        for count, axis in product((1, *PARTS), range(max(1, is_free.ndim))):
            if count == 1 or (is_free.ndim and is_free.shape[axis] % count == 0):
                pieces = [Piece(self.name, index, count, axis) for index in range(count)]
                free = [piece.of({self.name: is_free}) for piece in pieces]
                if all(part.all() == part.any() for part in free):
                    return ", ".join(str(piece) for piece, part in zip(pieces, free, strict=True) if part.any())
        return f"{self.unused} of {prod(self.shape)} numbers of {self.name}"


@dataclass(frozen=True)
class Entry:
    """A line of the map."""

    source: Source
    layouts: tuple[Layout, ...]
    """Those that fit; the first is taken. More than one: the shapes leave it open."""
    remark: str = ""
    guessed: str = ""
    """By what, if neither names nor outputs decided."""
    is_computed: bool = False
    """Whether the user's function computes it, of any weights."""

    def needs(self, names: Iterable[str]) -> set[str]:
        """Return of which weights of PyTorch it is made; all `names`, if the user's function computes it."""
        return set(names if self.is_computed else self.source.names)

    def fill(self, weights: Mapping[str, Any]) -> Any:
        """Make JAX's array of PyTorch's weights."""
        return self.source.fill(weights, self.layouts[0])

    @property
    def words(self) -> str:
        """How JAX's array is made of PyTorch's weights."""
        guessed = self.guessed and f"guessed: {self.guessed}"
        return "; ".join(filter(None, (self.layouts[0].words, self.remark, guessed)))


_Way = tuple[int, ...]
"""Which of its layouts each open weight takes."""


@dataclass(frozen=True)
class WeightMap:
    """Which weight of PyTorch stands where in JAX."""

    leaves: Mapping[str, Leaf]
    entries: Mapping[str, Entry]
    """By JAX name, in PyTorch's order."""
    uses: Mapping[str, Uses] = field(default_factory=dict)
    """How often each number of PyTorch's weights and running statistics stands in JAX, by PyTorch name."""
    kept: tuple[str, ...] = ()
    """JAX's variables that keep their own values."""
    remarks: tuple[str, ...] = ()
    """What the user's `load` does beyond putting each weight into one place."""
    integers: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Integers and booleans that JAX gets beside its weights, by JAX name."""

    @property
    def left_in_torch(self) -> dict[str, Uses]:
        """Weights and running statistics that have no place in JAX, as a whole or in part, by the words for it."""
        return {words: uses for uses in self.uses.values() if (words := uses.unused_words)}

    def place(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Put PyTorch's weights into their places; differentiable where they are JAX arrays."""
        return {**self.integers, **{path: entry.fill(weights) for path, entry in self.entries.items()}}

    def choose(
        self, distance: Callable[["WeightMap"], float], confirm: Callable[["WeightMap"], bool] = lambda _: True
    ) -> "WeightMap":
        """Decide by trying the layouts that shapes leave open, if there are any.

        First weights of the same kind go the same way; then one weight after the other is changed, as long as the
        outputs come nearer; then all ways are tried, if they are few. If none agrees, the first is kept, or the nearest
        if it is more than twice as near.

        Args:
            distance: how far apart the outputs are.
            confirm: whether gradients agree, too. It is asked where the outputs agree, which they also do in the wrong
                way if a weight beside is zero.
        """
        counts = {path: len(entry.layouts) for path, entry in self.entries.items() if len(entry.layouts) > 1}
        if not counts:
            return self
        tried: dict[_Way, float] = {}
        agreeing: list[_Way] = []

        def search(ways: Iterable[_Way]) -> _Way | None:
            """Return the first way that agrees, of those that were not tried before."""
            for way in ways:
                if way in tried or len(tried) == MOST_WAYS:
                    continue
                tried[way] = distance(self._with(counts, way))
                if tried[way] < AGREES and len(agreeing) < MOST_CONFIRMED:
                    agreeing.append(way)
                    if confirm(self._with(counts, way)):
                        return way
            return None

        found, before = search(_ways_by_kind(counts)), None
        while found is None and (best := min(tried, key=tried.__getitem__)) != before:
            before = best
            for at, count in enumerate(counts.values()):
                best = min(tried, key=tried.__getitem__)
                found = found or search((*best[:at], index, *best[at + 1 :]) for index in range(count))
        all_ways = prod(counts.values())
        if found is None and all_ways <= MOST_WAYS:
            found = search(product(*map(range, counts.values())))
        if found is not None:
            return self._with(counts, found, "agrees when tried")
        if agreeing:
            return self._with(counts, agreeing[0], "its outputs agree when tried")
        first, nearest = next(iter(tried)), min(tried, key=tried.__getitem__)
        rest = f"; {all_ways - len(tried)} were not tried" if len(tried) < all_ways else ""
        chosen = nearest if tried[nearest] < 0.5 * tried[first] else first
        return self._with(counts, chosen, guessed=f"none of {len(tried)} ways agrees{rest}")

    def _with(self, paths: Iterable[str], way: _Way, remark: str = "", guessed: str = "") -> "WeightMap":
        """Take the layouts of these numbers for the weights of these paths."""
        entries = dict(self.entries)
        for path, index in zip(paths, way, strict=True):
            entry = entries[path]
            layouts = (entry.layouts[index], *entry.layouts[:index], *entry.layouts[index + 1 :])
            entries[path] = replace(entry, layouts=layouts, remark=remark, guessed=guessed or entry.guessed)
        return replace(self, entries=entries)

    def lines(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield JAX's name, its shape, PyTorch's name, and how the one is made of the other."""
        for path, entry in self.entries.items():
            yield path, str(list(self.leaves[path].shape)), str(entry.source), entry.words
        for path in self.kept:
            yield path, str(list(self.leaves[path].shape)), "—", "keeps its own value"
        for text, unused in self.left_in_torch.items():
            yield "—", str(list(unused.shape)), text, "has no place in JAX"

    def __str__(self) -> str:
        return in_columns([("JAX", "shape", "PyTorch", "layout"), *self.lines()])


def in_columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Write rows below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    texts = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(text.rstrip() for text in texts)


def _ways_by_kind(counts: Mapping[str, int]) -> Iterator[_Way]:
    """Yield the ways in which weights of the same kind go alike, the likely one first; of many kinds only that one."""
    kinds = [(path.rpartition(".")[2], count) for path, count in counts.items()]
    distinct = list(dict.fromkeys(kinds))
    few = prod(count for _, count in distinct) <= MOST_WAYS // 2
    for choice in product(*(range(count if few else 1) for _, count in distinct)):
        by_kind = dict(zip(distinct, choice, strict=True))
        yield tuple(by_kind[kind] for kind in kinds)


def count_uses(weights: Sequence[Weight], entries: Mapping[str, Entry]) -> dict[str, Uses]:
    """Count how often each number of a parameter or running statistic stands in JAX."""
    shapes = {w.name: w.shape for w in weights}
    blocks = {name: tuple(lcm(*(n for n in PARTS if size % n == 0)) for size in shapes[name]) for name in shapes}
    for entry in entries.values():
        for name in dict.fromkeys(entry.source.names):
            cut = entry.source.blocks(name, shapes[name])
            blocks[name] = tuple(lcm(*pair) for pair in zip(blocks[name], cut, strict=True))
    counts = {name: np.zeros(blocks[name], int) for name in shapes}
    for entry in entries.values():
        entry.source.count_uses(counts)
    counted = [w.name for w in weights if w.first == w.name and (not w.is_buffer or "running_" in w.name)]
    return {name: Uses(name, shapes[name], counts[name]) for name in counted}


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
            in_jax.setdefault(module, set()).update(entry.source.names)
    held: dict[frozenset[str], list[str]] = {}
    for path, names in in_torch.items():
        held.setdefault(frozenset(names), []).append(path)
    found: dict[str, str] = {}
    for own, paths in held.items():
        same = sorted((path for path, names in in_jax.items() if names == own), key=len)
        found |= dict(zip(reversed(same), reversed(paths), strict=False))
    return found
