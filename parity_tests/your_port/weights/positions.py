"""Read where a function puts PyTorch's numbers, by sending numbers through it that say their own positions.

The user writes one function that loads PyTorch's weights into JAX's. It is called a few times: with zeros, with ones,
with each number's own position, and with random numbers. What comes out says of which numbers each entry is made, and
by which factors, however kernels are transposed, split, stacked or summed. So whatever has the form of JAX's weights
(gradients, moments) is known under PyTorch's names, and the function need not be differentiable, nor keep float64.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parity_tests.your_port.measure.arrays import Arrays, is_floating
from parity_tests.your_port.measure.width import enable_x64

_BASE = 256
"""Positions are sent digit by digit, since bfloat16 holds no larger integers exactly."""


@dataclass(frozen=True)
class Term:
    """What one weight of PyTorch gives to an array of JAX."""

    places: np.ndarray
    """Which of the weight's numbers goes to each entry."""
    scales: np.ndarray
    """By which factor; 0 where none does."""


@dataclass(frozen=True)
class Affine:
    """An array of JAX, made of PyTorch's weights: its own value, and the sum of the terms."""

    own: np.ndarray
    terms: Mapping[str, Term]
    """By the weight's name."""
    again: Callable[[Mapping[str, Any]], Any] | None = None
    """Makes the array of PyTorch's weights, if it is no such sum but computed in another way."""

    @property
    def names(self) -> list[str]:
        return list(self.terms)

    @property
    def counts(self) -> Any:
        """Of how many numbers each entry is made."""
        return sum((term.scales != 0).astype(int) for term in self.terms.values())

    @property
    def is_moved(self) -> bool:
        """Whether each entry is one of PyTorch's numbers, unchanged."""
        is_whole = all(np.isin(term.scales, (0, 1)).all() for term in self.terms.values())
        return self.again is None and is_whole and bool(np.all(self.counts == 1)) and not self.own.any()

    def fill(self, weights: Mapping[str, Any], _: Any = None) -> Any:
        """Make the array of PyTorch's weights, by operations of NumPy or JAX.

        A program of JAX gets copies of its own: see `enable_x64`.
        """
        if self.again is not None or not self.terms:
            return self.own.copy() if self.again is None else self.again(weights)
        filled: Any = 0
        for name, term in self.terms.items():
            taken = weights[name].reshape(-1)[term.places.copy()]
            filled = filled + (taken if (term.scales == 1).all() else taken * term.scales.astype(taken.dtype))
        return filled + self.own.astype(filled.dtype) if self.own.any() else filled

    def blocks(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape: each number is a block of its own."""
        return shape

    def count_uses(self, uses: Mapping[str, np.ndarray]) -> None:
        """Count how often each number is taken."""
        for name, term in self.terms.items():
            np.add.at(uses[name].reshape(-1), term.places[term.scales != 0], 1)

    def __str__(self) -> str:
        return (" + " if np.any(self.counts > 1) else ", ").join(self.terms) or "—"

    @property
    def words(self) -> str:
        """What was done to the numbers."""
        if self.again is not None or not self.terms:
            return "its own value" if self.again is None else "computed by load"
        scales = np.unique(np.concatenate([term.scales[term.scales != 0] for term in self.terms.values()]))
        factor = f"{scales[0]:.4g}" if len(scales) == 1 else f"{scales[0]:.4g} to {scales[-1]:.4g}"
        moved = "numbers moved" if (scales == 1).all() else f"{factor} times"
        return f"{moved}, plus its own value" if self.own.any() else moved


def read_places(
    load: Callable[[Any], Mapping[str, Any]], shapes: Mapping[str, tuple[int, ...]], first: Mapping[str, str]
) -> dict[str, Affine]:
    """Find how `load` (arrays by PyTorch name -> arrays by JAX name) makes each of its floating results.

    Args:
        shapes: of PyTorch's weights.
        first: the name of each weight; of the second name of a tied one, its first.
    """
    slices, size = dict[str, slice](), 0  # all numbers in a row
    for name in (name for name in shapes if first[name] == name):
        slices[name] = slice(size, size := size + int(np.prod(shapes[name])))
    slices |= {name: slices[first[name]] for name in shapes}

    def send(numbers: np.ndarray) -> dict[str, Any]:
        given = {name: numbers[slices[name]].reshape(shape).copy() for name, shape in shapes.items()}
        return {path: x for path, x in load(given).items() if is_floating(x)}

    def read(numbers: np.ndarray) -> np.ndarray:
        loaded = send(numbers)
        return np.concatenate([np.zeros(0), *(np.asarray(loaded[path]).astype(np.float64).ravel() for path in own)])

    own = send(np.zeros(size))
    roundoff = np.concatenate(
        [np.zeros(0), *(np.full(np.size(x), float(jnp.finfo(x.dtype).eps)) for x in own.values())]
    )
    found, is_known = _find_terms(read, roundoff, {name: slices[name] for name in shapes if first[name] == name}, size)
    results, begin = {}, 0
    for path, x in own.items():
        here, shape = slice(begin, begin := begin + int(np.prod(x.shape))), x.shape
        terms: dict[str, Term] = {}
        for name, entries, places, scales in found:
            inside = (entries >= here.start) & (entries < here.stop)
            if inside.any():
                term = terms.setdefault(name, Term(np.zeros(shape, np.int64), np.zeros(shape)))
                term.places.flat[entries[inside] - here.start] = places[inside]
                term.scales.flat[entries[inside] - here.start] = scales[inside]
        again = None if is_known[here].all() else lambda weights, path=path: load(dict(weights))[path]
        results[path] = Affine(np.asarray(x).astype(np.float64), terms, again)
    return results


_Found = list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]
"""A weight, the entries that it gives something to, its numbers that these get, and the factors."""


def _find_terms(
    read: Callable[[np.ndarray], np.ndarray], roundoff: np.ndarray, slices: Mapping[str, slice], size: int
) -> tuple[_Found, np.ndarray]:
    """Find of which numbers a function (all numbers -> all entries) makes its entries, and which are sums of these.

    One number of PyTorch's in an entry is read from its position, digit by digit. Where there are several, each half
    of the weights is sent alone, and so on.
    """
    zero, rng = read(np.zeros(size)), np.random.default_rng(0)
    noise = [2.0 * rng.integers(-_BASE // 2, _BASE // 2, size) + 1 for _ in range(2)]
    digits = [np.arange(size) // _BASE**power % _BASE for power in range(1 + int(np.log(max(size, 2)) / np.log(_BASE)))]
    found: _Found = []

    def search(names: Sequence[str], entries: np.ndarray) -> None:
        is_sent = np.zeros(size)
        for name in names:
            is_sent[slices[name]] = 1
        scales, *rest = (read(x * is_sent) - zero for x in (np.ones(size), *digits, *noise))
        position = sum(np.rint(x / scales) * _BASE**power for power, x in enumerate(rest[:-2]))
        places = np.where((position >= 0) & (position < size), position, 0).astype(np.int64)
        is_one, is_none = entries & (scales != 0), entries.copy()
        for x, sent in zip(rest[-2:], noise, strict=True):
            is_one &= _close(x, scales * (sent * is_sent)[places], roundoff)
            is_none &= x == 0
        for name in names:
            mine = is_one & (places >= slices[name].start) & (places < slices[name].stop)
            found.append((name, np.flatnonzero(mine), places[mine] - slices[name].start, scales[mine]))
        several = entries & ~is_one & ~is_none
        if several.any() and len(names) > 1:
            search(names[: len(names) // 2], several)
            search(names[len(names) // 2 :], several)

    with np.errstate(all="ignore"):
        search(list(slices), np.isfinite(zero))
        numbers = rng.normal(size=size) * 10.0 ** rng.uniform(-2, 3, size)  # which a cast or a clip changes
        made, largest = zero.copy(), np.abs(zero)
        for name, entries, places, scales in found:
            parts = scales * numbers[slices[name]][places]
            np.add.at(made, entries, parts)
            np.add.at(largest, entries, np.abs(parts))
        return found, _close(made, read(numbers), 2 * roundoff, largest)


def _close(x: np.ndarray, y: np.ndarray, roundoff: np.ndarray, zero: Any = 0.0) -> np.ndarray:
    return np.abs(x - y) <= 8 * roundoff * (np.maximum(np.abs(x), np.abs(y)) + np.abs(zero))


class Places:
    """Where each number of PyTorch's weights stands in the parameters that a training in JAX begins with."""

    def __init__(self, load: Callable[[Arrays], Any], weights: Mapping[str, np.ndarray], same: Mapping[str, str]):
        """Find it by `load` (weights -> parameters); `same` maps each parameter to itself, a tied one to its first."""
        self.shapes = {name: x.shape for name, x in weights.items() if is_floating(x)}
        self.parameters = [name for name in self.shapes if same.get(name) == name]

        def leaves(arrays: Arrays) -> dict[str, Any]:
            with enable_x64(True):
                loaded = jax.tree_util.tree_leaves_with_path(load({**weights, **arrays}))
            return {jax.tree_util.keystr(path): leaf for path, leaf in loaded}

        found = read_places(leaves, self.shapes, {name: same.get(name, name) for name in self.shapes})
        self.moved = {path: made for path, made in found.items() if made.is_moved}
        self.others = tuple(path for path in found if path not in self.moved)
        """The parameters of JAX that are not PyTorch's weights, moved."""

    def has(self, path: str, leaf: Any) -> bool:
        """Whether what has this path and shape has the form of a parameter."""
        return path in self.moved and self.moved[path].own.shape == np.shape(leaf)

    def to_torch(self, leaves: Mapping[str, np.ndarray], added: bool = False) -> Arrays:
        """Give leaves by path PyTorch's names and layouts.

        A weight that JAX holds twice gets the mean of both; `added`: their sum, as a gradient does.
        """
        total, count = ({name: np.zeros(shape) for name, shape in self.shapes.items()} for _ in range(2))
        for path, leaf in leaves.items():
            for name, here, places in self._moves(path):
                np.add.at(total[name].reshape(-1), places, leaf[here])
                np.add.at(count[name].reshape(-1), places, 1)
        dtype = np.result_type(*leaves.values())
        whole = [name for name in self.parameters if count[name].all()]
        added &= any((count[name] == 1).any() for name in whole)  # else all are held once for each device
        return {name: (total[name] if added else total[name] / count[name]).astype(dtype) for name in whole}

    def to_jax(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """Give arrays by PyTorch's names the form of JAX's leaves; a leaf of which a weight is missing is left out."""
        known = {path: made for path, made in self.moved.items() if made.terms.keys() <= arrays.keys()}
        leaves = {path: np.zeros(made.own.shape) for path, made in known.items()}
        for path, leaf in leaves.items():
            for name, here, places in self._moves(path):
                leaf[here] = arrays[name].reshape(-1)[places]
        return leaves

    def _moves(self, path: str) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Yield the weights in a leaf, where in the leaf they are, and which of their numbers stand there."""
        for name, term in self.moved[path].terms.items():
            here = term.scales != 0
            yield name, here, term.places[here]
