"""Contestants timed in turn, and what is said of the times.

In each round every contestant has one turn, in an order that moves on by one from round to round, for as many calls as
take about a third of a second (short ones after one that does not count); the round's time is the median of its calls.
A ratio is computed in each round, between times that are seconds apart, and what is reported is the median of the
rounds' ratios: a machine that slows down for a minute slows both. The spread is the distance between the quartiles.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

BURST_SECONDS = 0.35
MOST_CALLS = 200


class Spread(NamedTuple):
    """A median, and the distance between the quartiles."""

    median: float
    iqr: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        if len(values) == 1:
            return cls(values[0], 0.0, tuple(values))
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, high - low, tuple(values))

    @property
    def relative(self) -> float:
        """The spread as a share of the median."""
        return self.iqr / abs(self.median) if self.median else 0.0


def calls_for(seconds: float) -> int:
    """How many calls fill a burst."""
    return max(1, min(MOST_CALLS, round(BURST_SECONDS / max(seconds, 1e-9))))


def take_turns(
    runs: Mapping[str, Callable[[int], list[float]]], rounds: int, report: Callable[[int], None] = lambda done: None
) -> dict[str, list[float]]:
    """Seconds a call of each contestant, one number a round; `runs[name](k)` are the seconds of k calls."""
    names = list(runs)
    calls = {name: calls_for(runs[name](1)[0]) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for done in range(rounds):
        start = done % len(names)
        for name in names[start:] + names[:start]:
            if calls[name] > 1:
                runs[name](1)  # fills the caches that another emptied
            seconds[name].append(statistics.median(runs[name](calls[name])))
        report(done + 1)
    return seconds


def ratio_of(above: Sequence[Sequence[float]], below: Sequence[float]) -> Spread:
    """above / below round by round; of several above, that with the smallest median."""
    best = min(above, key=statistics.median)
    return Spread.of([a / b for a, b in zip(best, below, strict=True)])
