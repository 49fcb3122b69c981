"""Follow two programs step by step: which results of PyTorch's functions JAX computes, too, and which it does not.

All values of both programs are noted, as numbers that depend neither on the order of their entries nor on how often all
of them are repeated. The more of JAX's values PyTorch computes, the more alike the two are: so of several mistakes each
is known by itself. And a step whose result JAX does not compute, though it computes all that goes into it, is where the
port does something else; unless JAX comes to a later result of it in another way.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from parity_tests.your_port.cause.planting import Lines, lines_of_call
from parity_tests.your_port.measure.arrays import flatten, is_mixed, plain, to_numpy
from parity_tests.your_port.measure.attention_steps import IN_STEPS, is_taken_apart
from parity_tests.your_port.measure.errors import unit_roundoff
from parity_tests.your_port.measure.taps import holds_numbers
from parity_tests.your_port.place.bisect import Search
from parity_tests.your_port.place.values import compute_values

REMEMBERED = 10_000
"""How many values of PyTorch are not looked up again: most runs compute the same ones."""
MANY_ENTRIES = 10_000_000
"""Of all steps of PyTorch together: to look at all of them takes a second for each mistake that is tried."""


@dataclass(frozen=True)
class Entries:
    """What tells the entries of an array from other ones, whatever their order and however often all are repeated."""

    size: int
    parts: tuple[float, ...]
    """How large a part is NaN, infinite, and minus infinite."""
    numbers: tuple[float, ...]
    """Of y = x / (1 + |x|), by which −1e9 of a mask hides no score beside it: the least, the largest, the means of y
    and y²."""
    scales: tuple[float, ...]
    """The sizes of what each of these numbers is made of."""

    @property
    def says_something(self) -> bool:
        """Whether its numbers differ: any two programs may compute the same zeros."""
        return self.size > 1 and (self.numbers[0] != self.numbers[1] or 0 < sum(self.parts) < 1)


def entries_of(x: np.ndarray) -> Entries:
    """Take down what depends neither on the order of the entries nor on repetitions of all of them."""
    wide = x.astype(np.float64, copy=False).ravel()
    finite, parts = np.isfinite(wide), (0.0,) * 3
    if not finite.all():
        parts = (float(np.isnan(wide).mean()), float(np.isposinf(wide).mean()), float(np.isneginf(wide).mean()))
    x = wide[finite]
    if x.size == 0:
        return Entries(wide.size, parts, (0.0,) * 4, (0.0,) * 4)
    magnitudes = np.abs(x)
    y = x / (1 + magnitudes)
    least, largest, squares, most = float(y.min()), float(y.max()), float(y @ y) / y.size, float(magnitudes.max())
    numbers, most = (least, largest, float(y.mean()), squares), most / (1 + most)
    return Entries(wide.size, parts, numbers, (most, most, float(np.abs(y).mean()), squares))


def closeness(dtype: str) -> float:
    """Return how far apart two values are, relative to their size, that are the same up to the rounding of a dtype."""
    return max(1e-9, 100 * unit_roundoff(dtype))


class Values:
    """The values that a program computes: whether some entries are among them, up to the rounding of a dtype."""

    def __init__(self, found: list[Entries], dtype: str) -> None:
        self._close = closeness(dtype)
        groups = defaultdict[Any, list[tuple[float, ...]]](list)
        for entries in dict.fromkeys(found):
            groups[entries.parts].append(entries.numbers)
        self._groups = {key: np.array(numbers) for key, numbers in groups.items()}

    def places(self, entries: Entries) -> list[tuple[Any, ...]]:
        """Return where the same entries are; [] if nowhere."""
        group = self._groups.get(entries.parts, np.zeros((0, len(entries.numbers))))
        near = np.abs(group - entries.numbers) <= self._close * np.array(entries.scales)
        return [(entries.parts, int(i)) for i in np.flatnonzero(near.all(1))]


class Step(NamedTuple):
    """A floating result of one of PyTorch's functions."""

    tensor: torch.Tensor
    """It is kept, so that no other has its id."""
    entries: Entries
    line: str
    sources: set[int]
    """The steps whose results it is made of."""
    is_made_of_data: bool
    """Whether an input or a weight goes into it, directly or by other steps."""
    is_part: bool
    """Whether it is one of several results of a function, of which some may be of no use."""


@dataclass
class Steps(TorchFunctionMode):
    """Notes what PyTorch computes, step by step, while entered."""

    with_lines: bool = False
    """Whether to find the user's line that makes each step."""
    watch: Callable[["Steps"], None] | None = None
    """Called after each step; what it raises stops the program."""
    made: list[Step] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    """The id of a result -> its step, the last of those that wrote it."""
    leading: set[int] = field(default_factory=set)
    """The steps that lead to the program's results; none where these are not known."""

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def values(self) -> list[Entries]:
        return [step.entries for step in self.made]

    @property
    def are_large(self) -> bool:
        """Whether to look at each entry again and again takes too long."""
        return sum(x.size for x in self.values) > MANY_ENTRIES

    def is_needed(self, place: int) -> bool:
        """Whether JAX has to make a step: it is made of data, and leads to a result, not to a part that is dropped."""
        return self.made[place].is_made_of_data and (place in self.leading or not self.leading)

    def selects(self, step: Step) -> bool:
        """Whether its numbers are some of those that it is made of, as in `x[:, 0]`: who has x has them, too."""
        x, *sources = (_numbers(y.tensor).astype(np.float64) for y in (step, *(self.made[i] for i in step.sources)))
        return any(x.size < y.size and bool(np.isin(x, y).all()) for y in sources)

    def end_in(self, results: Any) -> None:
        """Find the steps that lead to these results of the whole program."""
        self.leading = {self.places[id(x)] for x in flatten(plain(results))[0].values() if id(x) in self.places}
        for place in reversed(range(len(self.made))):
            if place in self.leading:
                self.leading |= self.made[place].sources

    def _changed_with(self, written: Any) -> list[torch.Tensor]:
        """Return a tensor that a function has written in place, and those that are views of the same numbers."""
        if not holds_numbers(written, or_complex=True):
            return []
        address = written.untyped_storage().data_ptr()
        alike = (step.tensor for step in self.made if step.tensor.untyped_storage().data_ptr() == address)
        return [*{id(x): x for x in (written, *alike)}.values()]

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name, options = getattr(function, "__name__", ""), kwargs or {}
        if is_taken_apart(name, args, options):  # as where a mistake is planted
            with self:
                return IN_STEPS[name](*args, **options)
        result = function(*args, **options)
        leaves = jax.tree.leaves((args, kwargs), is_leaf=is_mixed)
        given = [x for x in leaves if holds_numbers(x, or_complex=True)]
        sources = {self.places[id(x)] for x in given if id(x) in self.places}
        made_of_data = len(sources) < len(given) or any(self.made[place].is_made_of_data for place in sources)
        results = result if isinstance(result, tuple | list) else (result,)
        is_in_place = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        changed = self._changed_with(args[0] if is_in_place and args else options.get("out"))
        for x in {id(x): x for x in (*results, *changed)}.values():
            if holds_numbers(x, or_complex=True):
                line = _line_and_caller(lines_of_call()) if self.with_lines else ""
                before = {self.places[id(x)]} if id(x) in self.places else set[int]()
                self.places[id(x)] = len(self.made)
                entries = entries_of(_numbers(x))
                self.made.append(Step(x, entries, line, sources | before, made_of_data, len(results) > 1))
                if self.watch is not None:
                    self.watch(self)
        return result


def _numbers(x: torch.Tensor) -> np.ndarray:
    """Return the numbers of a tensor; of a complex one its two parts."""
    found = to_numpy(x)
    return np.stack((found.real, found.imag)) if np.iscomplexobj(found) else found


def _line_and_caller(lines: Lines) -> str:
    """Name the line of a step, and the one that calls the function in which it stands, but for that of a decorator."""
    line, *callers = [*filter(None, lines)][::2] or [""]  # beside each stands its whole line
    callers = [caller for caller in callers if not caller.endswith("(*args, **kwargs)")]
    return ", called at ".join([line, *callers[:1]])


class Progress(NamedTuple):
    """How much of two programs is alike."""

    covered: frozenset[Any]
    """The values of JAX that PyTorch computes; what JAX is given, in whatever order, is none of them."""
    missing: int
    """The steps of PyTorch whose results JAX does not compute, and that lead to none that it computes."""
    parted: frozenset[Any]
    """The results of those of them for which JAX computes all that goes into them."""

    def is_beyond(self, other: "Progress") -> bool:
        """Whether more is alike on both sides: to do harmless things in JAX's way covers more, and misses no less.

        One value more may be an intermediate one of JAX, such as W x of W x + b, so two have to be. And one of the
        steps where the two parted has to be gone: else what is alike lies behind a step that was left out.
        """
        is_more = len(self.covered) > len(other.covered) + 1 and self.missing < other.missing
        return is_more and not other.parted <= self.parted


class InJax:
    """What JAX computes on a draw."""

    def __init__(self, search: Search) -> None:
        self._search = search
        given, values = compute_values(search.draw, entries_of)
        self._given = Values(given, search.judge.rule)
        self._values = Values([x for x in values if x.says_something], search.judge.rule)
        self._places = lru_cache(REMEMBERED)(self._find)

    def _find(self, x: Entries) -> tuple[bool, frozenset[Any]]:
        """Return whether JAX has these entries, and where it computes them."""
        if not x.says_something or self._given.places(x):
            return True, frozenset()
        found = frozenset(self._values.places(x))
        return bool(found), found

    @cached_property
    def _sorted(self) -> list[np.ndarray]:
        """The finite entries of each value."""
        _, values = compute_values(self._search.draw, lambda x: np.sort(x[np.isfinite(x)].astype(np.float64)))
        return [x for x in values if x.size]

    def _has_among_others(self, x: torch.Tensor) -> bool:
        """Whether JAX computes all entries of a tensor among more, as in attention to a cache with free places."""
        wanted = np.unique(_numbers(x).astype(np.float64))
        close = closeness(self._search.judge.rule) * (1 + np.abs(wanted))
        for held in self._sorted if np.isfinite(wanted).all() else ():
            if held.size > x.numel():
                above = np.searchsorted(held, wanted).clip(1, held.size - 1)
                if (np.minimum(np.abs(held[above] - wanted), np.abs(held[above - 1] - wanted)) <= close).all():
                    return True
        return False

    def covered(self, values: Iterable[Entries]) -> frozenset[Any]:
        """Return where JAX computes these values of PyTorch, so far as it does."""
        return frozenset[Any]().union(*(self._places(x)[1] for x in values))

    def progress(self, steps: Steps) -> Progress:
        """Say how much of both programs is alike."""
        known = self._known(steps)
        missing = [
            step for step, is_known in zip(steps.made, known, strict=True) if step.is_made_of_data and not is_known
        ]
        parted = (step.entries for step in missing if all(known[source] for source in step.sources))
        rounded = frozenset((x.size, x.parts, *np.round(x.numbers, 9)) for x in parted)
        return Progress(self.covered(steps.values), len(missing), rounded)

    def first_missing(self, steps: Steps) -> int | None:
        """Return the first step of PyTorch that JAX does not make, though it makes all that lead to it."""
        known = self._known(steps, among_others=not steps.are_large)
        for place, step in enumerate(steps.made):
            if steps.is_needed(place) and not known[place] and all(known[source] for source in step.sources):
                return place
        return None

    def _known(self, steps: Steps, among_others: bool = False) -> list[bool]:
        """Say of each step of PyTorch whether JAX makes it, or a later one that it leads to, or nothing reads it.

        If its entries may stand `among_others`, JAX also makes what is a part of a larger value.
        """
        known = [self._places(x)[0] for x in steps.values]
        if among_others:
            known = [
                known or (self._has_among_others(step.tensor) and not steps.selects(step))
                for known, step in zip(known, steps.made, strict=True)
            ]
        for place, step in reversed([*enumerate(steps.made)]):
            if known[place] and step.entries.size > 1:  # any two programs may come to the same single number
                for source in step.sources:
                    known[source] = True
        used = set[int]().union(*(step.sources for step in steps.made))
        return [known[place] or (step.is_part and place not in used) for place, step in enumerate(steps.made)]
