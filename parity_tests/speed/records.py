"""The records of the registry."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

OURS = "ours"


class Program(NamedTuple):
    """An implementation, built and ready to run."""

    run: Callable[[], Any]
    """Run once and wait for the result. This call is timed."""
    outputs: Callable[[], Mapping[str, np.ndarray]]
    """Compute what is compared between implementations. It is called once, before `run`, and usually compiles."""


@dataclass(frozen=True)
class Implementation:
    """One way to compute a workload. It runs in a process of its own."""

    name: str
    build: Callable[..., Program]
    """build(device, **settings) makes the program."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    units: int = 1
    """How many units of the workload one call computes. Times are divided by it."""
    needs_compiler: bool = False
    """Whether it needs a C++ compiler, as torch.compile does."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its process."""
    num_examples: int | None = None
    """How many examples its outputs have, counted from the first; None means all."""
    comparable: bool = True
    """False if it computes something else on purpose; then its outputs are not compared."""


class Agreement(NamedTuple):
    """How far outputs may differ."""

    floats: float = 1e-5
    """Bound of max|a − b| / max|b| for a tensor of floats. The default covers another order of float32 sums."""
    ids: float = 0.0
    """Share of rows of ids that may differ."""
    why: str = ""


EXACT = Agreement()


@dataclass(frozen=True)
class Workload:
    """A computation that is timed in several implementations."""

    name: str
    unit: str
    """What a time belongs to: a call, a training step, a sentence."""
    implementations: tuple[Implementation, ...]
    agreement: Agreement = EXACT
    limit: Mapping[str, float] = field(default_factory=dict)
    """What a unit needs at least, by ceiling; see `parity_tests.speed.limits`."""
    rounds: int = 7
    has_memory: bool = True
    """Whether to measure its peak memory."""

    def implementation(self, name: str) -> Implementation:
        return next(implementation for implementation in self.implementations if implementation.name == name)


@dataclass(frozen=True)
class Ratio:
    """A number to report: one implementation's time or memory divided by another's."""

    name: str
    workload: str
    numerator: tuple[str, ...]
    """The implementations in the numerator. If there are several, the fastest one counts."""
    denominator: str = OURS
    goal: float | None = None
    memory: bool = False
    """Divide peak memory instead of time."""
    lower_is_better: bool = False
    small: bool = False
    """Whether `--check` measures it: it takes seconds."""

    def met(self, value: float | None) -> bool | None:
        """Return whether the value reaches the goal; None without a value or a goal."""
        if value is None or self.goal is None:
            return None
        return value <= self.goal if self.lower_is_better else value >= self.goal
