"""What is measured: workloads, the ratios that are reported, and the measurements."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

OURS, REFERENCE, COMPILED, WITHOUT = "ours", "reference", "compiled", "without attention"
TUNED = "tuned", COMPILED
"""Plain PyTorch at its best, without and with torch.compile, which needs a C++ compiler."""


class Program(NamedTuple):
    """An implementation that is ready to run."""

    run: Callable[[], Any]
    """Compute once. This call is timed until its arrays are ready, unless it returns its own seconds as a float."""
    outputs: Callable[[], Mapping[str, Any]] | None = None
    """Compute what is compared between implementations, by name. By default it is what `run` returns."""


class Operation(NamedTuple):
    """A `product` of float32 matrices [m, k] and [k, n], or `tanh`, `exp` or `copy` of an array."""

    name: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {'x'.join(map(str, self.shape))}"

    @property
    def amount(self) -> int:
        """A product's floating point operations, the values, or the bytes that a copy reads and writes."""
        return {"product": 2, "copy": 8}.get(self.name, 1) * math.prod(self.shape)


Needs = Mapping[Operation, float]
"""Operation -> how many times it is needed."""

Speeds = Mapping[Operation, Mapping[str, float]]
"""Operation -> framework -> seconds."""


def add(*needs: Needs) -> dict[Operation, float]:
    """Add up what parts of a workload need."""
    total: dict[Operation, float] = {}
    for part in needs:
        for operation, times in part.items():
            total[operation] = total.get(operation, 0.0) + times
    return total


def values(name: str, count: float) -> Needs:
    """Return what so many values of tanh or exp need, computed in pieces that the cache holds."""
    return {Operation(name, (2**18,)): count / 2**18}


class Spread(NamedTuple):
    """A median, and the distance between the quartiles."""

    median: float
    iqr: float = 0.0

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "Spread":
        low, middle, high = map(float, np.quantile(numbers, (0.25, 0.5, 0.75)))
        return cls(middle, high - low)


@dataclass(frozen=True)
class Entry:
    """The measurements of one implementation."""

    seconds: tuple[float, ...]
    """The seconds of a unit, for each round."""
    peak_bytes: int | None = None
    """The most memory that a call holds, if a ratio asks for it."""

    @property
    def spread(self) -> Spread:
        return Spread.of(self.seconds)


Entries = Mapping[str, Entry]
"""Implementation -> its measurements."""


@dataclass(frozen=True)
class Ratio:
    """A number to report: one implementation's time or memory divided by another's."""

    name: str
    above: tuple[str, ...]
    """The implementations in the numerator. If there are several, the fastest one counts."""
    goal: float
    below: str | None = OURS
    """The denominator; None reports the seconds themselves."""
    memory: bool = False
    """Divide peak memory instead of time."""

    def met(self, value: float) -> bool:
        """Return whether the value reaches the goal: a small one where our time is in the numerator."""
        return value >= self.goal if self.below == OURS else value <= self.goal

    def best(self, entries: Entries) -> str:
        """Return the implementation of the numerator."""
        return min(self.above, key=lambda name: entries[name].spread.median)

    def of(self, entries: Entries) -> Spread | None:
        """Compute the ratio; None if memory was not measured."""
        best = entries[self.best(entries)]
        if self.below is None:
            return best.spread
        below = entries[self.below]
        if self.memory:
            return Spread(best.peak_bytes / below.peak_bytes) if best.peak_bytes and below.peak_bytes else None
        return Spread.of([a / b for a, b in zip(best.seconds, below.seconds, strict=True)])


@dataclass(frozen=True, eq=False)
class Workload:
    """A computation that is timed in several implementations."""

    name: str
    unit: str
    """What a time belongs to: a call, a training step, a sentence."""
    implementations: Mapping[str, Callable[[], Program]]
    """Name -> how the program is built, in a process of its own."""
    ratios: tuple[Ratio, ...]
    needs: Needs = field(default_factory=dict)
    """What a unit needs at least."""
    bound: float = 1e-5
    """Bound of max|a − b| / max|b| for a tensor of floats. The default covers another order of float32 sums."""
    differing_ids: float = 0.0
    """Share of the examples whose ids may differ."""
    units: int = 1
    """How many units a call computes. Times are divided by it."""


@dataclass
class Run:
    """Everything that was measured in one run."""

    results: dict[Workload, Entries] = field(default_factory=dict)
    speeds: Speeds = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    """What could not be measured, and why."""
