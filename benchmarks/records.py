"""The records: what is measured, and the measurements."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

OURS, REFERENCE, COMPILED, WITHOUT = "ours", "reference", "compiled", "without attention"
"""Implementations that are treated in a special way: compiled needs a C++ compiler, and without attention (our model
with the same widths, where every context is the encoder's final state) is not compared with the others."""

Outputs = Mapping[str, np.ndarray]


class Program(NamedTuple):
    """An implementation, built and ready to run."""

    run: Callable[[], Any]
    """Run once and wait for the result. This call is timed, unless it returns its own seconds as a float."""
    outputs: Callable[[], Outputs] = dict
    """Compute what is compared between implementations. It is called once, before `run`, and usually compiles."""


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


@dataclass(frozen=True)
class Implementation:
    """One way to compute a workload."""

    name: str
    build: Callable[[], Program]
    units: int = 1
    """How many units of the workload one call computes. Times are divided by it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its process."""
    num_examples: int | None = None
    """How many examples its outputs have, counted from the first; None means all."""


class Spread(NamedTuple):
    """A median, and the distance between the quartiles."""

    median: float
    iqr: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise at least one value."""
        several = [*values] * 2 if len(values) == 1 else values
        low, middle, high = statistics.quantiles(several, n=4, method="inclusive")
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

    @property
    def lower_is_better(self) -> bool:
        """Whether our time is in the numerator."""
        return self.below != OURS

    def met(self, value: float) -> bool:
        """Return whether the value reaches the goal."""
        return value <= self.goal if self.lower_is_better else value >= self.goal

    def of(self, entries: Entries) -> Spread | None:
        """Compute the ratio; None if an implementation did not run, or memory was not measured."""
        above = [entries[name] for name in self.above if name in entries]
        if not above or (self.below is not None and self.below not in entries):
            return None
        best = min(above, key=lambda entry: entry.spread.median)
        if self.below is None:
            return best.spread
        below = entries[self.below]
        if self.memory:
            return Spread(best.peak_bytes / below.peak_bytes) if best.peak_bytes and below.peak_bytes else None
        return Spread.of([a / b for a, b in zip(best.seconds, below.seconds, strict=True)])


@dataclass(frozen=True)
class Workload:
    """A computation that is timed in several implementations."""

    name: str
    unit: str
    """What a time belongs to: a call, a training step, a sentence."""
    implementations: Sequence[Implementation]
    ratios: tuple[Ratio, ...]
    needs: Needs = field(default_factory=dict)
    """What a unit needs at least."""
    bound: float = 1e-5
    """Bound of max|a − b| / max|b| for a tensor of floats. The default covers another order of float32 sums."""
    differing_ids: float = 0.0
    """Share of rows of ids that may differ."""
    rounds: int = 5


@dataclass
class Run:
    """Everything that was measured in one run."""

    results: dict[str, Entries] = field(default_factory=dict)
    """Workload -> implementation -> measurements."""
    speeds: Speeds = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    """What could not be measured, and why."""
