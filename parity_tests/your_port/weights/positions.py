"""Read where a function puts PyTorch's numbers, by sending numbers through it that say their own positions.

The user writes one function that loads PyTorch's weights into JAX's. It is called a few times: with zeros, with ones,
with each number's own position, and with random numbers. What comes out says of which numbers each entry is made, and
by which factors, however kernels are transposed, split, stacked or summed. So whatever has the form of JAX's weights
(gradients, moments) is known under PyTorch's names, and the function need not be differentiable, nor keep float64.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Arrays = dict[str, np.ndarray]
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
    def is_moved(self) -> bool:
        """Whether each entry is one of PyTorch's numbers, unchanged."""
        one = bool(np.all(sum(term.scales for term in self.terms.values()) == 1))
        return one and self.again is None and not self.own.any() and " + " not in str(self)

    def fill(self, weights: Mapping[str, Any]) -> Any:
        """Make the array of PyTorch's weights, by operations of NumPy or JAX."""
        if self.again is not None or not self.terms:
            return self.own if self.again is None else self.again(weights)
        filled: Any = 0
        for name, term in self.terms.items():
            taken = weights[name].reshape(-1)[term.places]
            filled = filled + (taken if (term.scales == 1).all() else taken * term.scales.astype(taken.dtype))
        return filled + self.own.astype(filled.dtype) if self.own.any() else filled

    def count_uses(self, uses: Mapping[str, np.ndarray]) -> None:
        """Count how often each number is taken."""
        for name, term in self.terms.items():
            np.add.at(uses[name].reshape(-1), term.places[term.scales != 0], 1)

    def __str__(self) -> str:
        several = sum((term.scales != 0).astype(int) for term in self.terms.values())
        return (" + " if np.any(several > 1) else ", ").join(self.terms) or "—"

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
    starts, size = {}, 0
    for name in (name for name in shapes if first[name] == name):
        starts[name], size = size, size + int(np.prod(shapes[name]))

    def send(numbers: np.ndarray) -> dict[str, Any]:
        ends = {name: starts[first[name]] + int(np.prod(shape)) for name, shape in shapes.items()}
        given = {n: numbers[starts[first[n]] : ends[n]].reshape(shape).copy() for n, shape in shapes.items()}
        return {path: x for path, x in load(given).items() if _is_floating(x)}

    own = send(np.zeros(size))
    form = {path: np.shape(x) for path, x in own.items()}
    u = np.concatenate([np.full(np.size(x), float(jnp.finfo(x.dtype).eps)) for x in own.values()] or [np.zeros(0)])

    def flat(loaded: Mapping[str, Any]) -> np.ndarray:
        arrays = [np.asarray(loaded[path]).astype(np.float64).ravel() for path in form]
        return np.concatenate(arrays or [np.zeros(0)])

    def close(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.abs(x - y) <= 8 * u * np.maximum(np.abs(x), np.abs(y))

    rng, zero = np.random.default_rng(0), flat(own)
    noise = [rng.integers(1, _BASE, size).astype(np.float64) for _ in range(2)]
    digits = [np.arange(size) // _BASE**power % _BASE for power in range(1 + int(np.log(max(size, 2)) / np.log(_BASE)))]
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    """Entries of all results, the positions of the numbers that they are made of, and the factors."""

    def search(names: Sequence[str], entries: np.ndarray) -> None:
        """Find what these weights give to these entries; where it is more than one number, ask for half of them."""
        given = np.zeros(size)
        for name in names:
            given[starts[name] : starts[name] + int(np.prod(shapes[name]))] = 1
        scales, *rest = (flat(send(x * given)) - zero for x in (np.ones(size), *digits, *noise))
        scales = np.where(scales == 0, np.nan, scales)
        read = sum(np.rint(x / scales) * _BASE**power for power, x in enumerate(rest[:-2]))
        places = np.where((read >= 0) & (read < size), read, 0).astype(np.int64)
        one, none = entries.copy(), entries.copy()
        for x, sent in zip(rest[-2:], noise, strict=True):
            one &= close(x, scales * (sent * given)[places])
            none &= x == 0
        found.append((np.flatnonzero(one), places[one], scales[one]))
        several = entries & ~one & ~none
        if several.any() and len(names) > 1:
            search(names[: len(names) // 2], several)
            search(names[len(names) // 2 :], several)

    with np.errstate(all="ignore"):
        sent = [flat(send(x)) for x in (*noise, noise[0] + noise[1])]
        is_sum = np.isfinite(zero) & (np.abs(sent[0] + sent[1] - zero - sent[2]) <= 8 * u * np.abs(sent).sum(0))
        search(list(starts), is_sum)
    made = zero.copy()
    for entries, places, scales in found:
        np.add.at(made, entries, scales * noise[0][places])
    is_known = is_sum & (np.abs(made - sent[0]) <= 16 * u * (np.abs(made) + np.abs(zero)))

    results, begin = {}, 0
    for path, shape in form.items():
        end = begin + int(np.prod(shape))
        terms: dict[str, Term] = {}
        for entries, places, scales in found:
            inside = (entries >= begin) & (entries < end)
            owners = np.searchsorted(list(starts.values()), places[inside], side="right") - 1
            for number in np.unique(owners):
                name = list(starts)[number]
                term = terms.setdefault(name, Term(np.zeros(shape, np.int64), np.zeros(shape)))
                at = entries[inside][owners == number] - begin
                term.places.flat[at] = places[inside][owners == number] - starts[name]
                term.scales.flat[at] = scales[inside][owners == number]
        again = None if is_known[begin:end].all() else lambda weights, path=path: load(dict(weights))[path]
        results[path] = Affine(zero[begin:end].reshape(shape), terms, again)
        begin = end
    return results


def _is_floating(x: Any) -> bool:
    return hasattr(x, "dtype") and bool(jnp.issubdtype(x.dtype, jnp.floating))


class Layout:
    """Where each number of PyTorch's weights stands in the parameters that a training in JAX begins with."""

    def __init__(self, load: Callable[[Arrays], Any], weights: Mapping[str, np.ndarray], same: Mapping[str, str]):
        """Find it by `load` (weights -> parameters); `same` maps each parameter to itself, a tied one to its first."""
        self.shapes = {name: x.shape for name, x in weights.items() if x.dtype.kind == "f"}
        first = {name: same.get(name, name) for name in self.shapes}
        self.names = tuple(name for name in self.shapes if same.get(name, "") == name)
        self.first: dict[str, int] = {}
        self.size = 0
        for name, shape in self.shapes.items():
            self.first[name] = self.first.get(first[name], self.size)
            self.size += int(np.prod(shape)) if self.first[name] == self.size else 0

        def leaves(arrays: Arrays) -> dict[str, Any]:
            with jax.enable_x64(True):
                loaded = jax.tree_util.tree_leaves_with_path(load({**weights, **arrays}))
            return {jax.tree_util.keystr(path): leaf for path, leaf in loaded}

        found = read_places(leaves, self.shapes, first)
        moved = {path: made for path, made in found.items() if made.is_moved}
        self.places = {
            path: sum((term.places + self.first[name]) * (term.scales != 0) for name, term in made.terms.items())
            for path, made in moved.items()
        }
        self.others = tuple(path for path in found if path not in moved)
        """The parameters of JAX that are not PyTorch's weights, moved."""

    def _slice(self, name: str) -> slice:
        return slice(self.first[name], self.first[name] + int(np.prod(self.shapes[name])))

    def to_torch(self, leaves: Mapping[str, np.ndarray], added: bool = False) -> Arrays:
        """Give leaves by path PyTorch's names and layouts.

        A weight that JAX holds twice gets the mean of both; `added`: their sum, as a gradient does.
        """
        places = np.concatenate([self.places[path].ravel() for path in leaves])
        numbers = np.concatenate([leaf.ravel() for leaf in leaves.values()])
        total, count = np.bincount(places, numbers, self.size), np.bincount(places, minlength=self.size)
        flat = (total if added else total / np.maximum(count, 1)).astype(numbers.dtype)
        whole = (name for name in self.names if count[self._slice(name)].all())
        return {name: flat[self._slice(name)].reshape(self.shapes[name]) for name in whole}

    def to_jax(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """Give arrays by PyTorch's names the form of JAX's leaves; a leaf of which a number is missing is left out."""
        flat, known = np.zeros(self.size), np.zeros(self.size, bool)
        for name, x in arrays.items():
            flat[self._slice(name)], known[self._slice(name)] = x.ravel(), True
        return {path: flat[place] for path, place in self.places.items() if known[place].all()}
