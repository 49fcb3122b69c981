"""Measure workloads: compare the outputs of all implementations, then time them in turn.

In each round every implementation has one turn of about a third of a second, and the round's time is the median of
its calls. The order changes from round to round. A ratio is computed in each round, between times that are seconds
apart, and the median of these ratios is reported: a machine that slows down for a minute slows both. The spread is the
distance between the quartiles.
"""

import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks import process
from benchmarks.process import RETURN_MEMORY, Worker, WorkerError
from benchmarks.workloads import CEILINGS, OURS, RATIOS, Agreement, Implementation, Ratio, Workload

TURN_SECONDS = 0.35
MOST_CALLS = 200

Report = Callable[[str], None]
"""Called with what is being done."""

Outputs = Mapping[str, np.ndarray]


class Spread(NamedTuple):
    """A median, and the distance between the quartiles."""

    median: float
    iqr: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise at least one value."""
        if len(values) == 1:
            return cls(values[0])
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, high - low)

    @property
    def relative(self) -> float:
        """The spread as a share of the median."""
        return self.iqr / abs(self.median) if self.median else 0.0


def take_turns(
    runs: Mapping[str, Callable[[int], list[float]]], rounds: int, report: Callable[[int], None] = lambda done: None
) -> dict[str, list[float]]:
    """Return the seconds of a call for each implementation and round; `runs[name](k)` times k calls."""
    names = list(runs)
    calls = {name: max(1, min(MOST_CALLS, round(TURN_SECONDS / max(runs[name](1)[0], 1e-9)))) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for done in range(rounds):
        first = done % len(names)
        for name in names[first:] + names[:first]:
            if calls[name] > 1:
                runs[name](1)  # fills the caches again
            seconds[name].append(statistics.median(runs[name](calls[name])))
        report(done + 1)
    return seconds


class DisagreementError(AssertionError):
    """Two implementations have different results, so their times cannot be compared."""


def require_agreement(name: str, outputs: Outputs, expected: Outputs, bound: Agreement) -> float:
    """Return the largest error of a tensor of floats, max|a − b| / max|b|.

    The share `bound.ids` of the rows of ids (along the last axis) may differ. The floats of these examples, along the
    same first axis, are not compared then.

    Raises:
        DisagreementError: the tensors' names or shapes differ, or a difference exceeds the bound.
    """
    if set(outputs) != set(expected):
        raise DisagreementError(f"{name}: the outputs are {sorted(outputs)}, expected {sorted(expected)}")
    same: np.ndarray | None = None
    worst = 0.0
    for tensor, right in sorted(expected.items(), key=lambda item: item[1].dtype.kind == "f"):  # ids first
        found = outputs[tensor]
        if found.shape != right.shape:
            raise DisagreementError(f"{name}: {tensor} is {list(found.shape)}, expected {list(right.shape)}")
        if right.dtype.kind != "f":
            same = (found == right).reshape(len(right), -1).all(axis=1)
            if (~same).mean() > bound.ids:
                allowed = f"{bound.ids:.0%} may differ"
                raise DisagreementError(f"{name}: {tensor} differs in {(~same).sum()} of {len(same)} rows; {allowed}")
            continue
        if same is not None:
            found, right = found[same], right[same]
        scale = float(np.abs(right).max(initial=0)) or 1.0
        error = float(np.abs(found.astype(np.float64) - right).max(initial=0)) / scale
        if not error <= bound.floats:
            raise DisagreementError(f"{name}: the error of {tensor} is {error:.2g}; the bound is {bound.floats:g}")
        worst = max(worst, error)
    return worst


def compare(workload: Workload, running: Sequence[Implementation], outputs: Mapping[str, Outputs]) -> dict[str, float]:
    """Return each implementation's error against the first one that is not ours."""
    comparable = [implementation for implementation in running if implementation.comparable]
    others = [implementation.name for implementation in comparable if implementation.name != OURS]
    expected = outputs[(others or [OURS])[0]] if comparable else {}
    return {
        implementation.name: require_agreement(
            f"{workload.name}: {implementation.name}",
            outputs[implementation.name],
            {name: x[: implementation.num_examples] for name, x in expected.items()},
            workload.agreement,
        )
        for implementation in comparable
    }


@dataclass(frozen=True)
class Entry:
    """The measurements of one implementation. The seconds are those of one unit."""

    seconds: tuple[float, ...]
    """One number for each round."""
    compile_seconds: float = 0.0
    """How much longer the first call took than the others."""
    peak_bytes: int | None = None
    error: float = 0.0
    """The largest difference from the expected outputs, by tensor."""

    @property
    def spread(self) -> Spread:
        return Spread.of(self.seconds)


@dataclass(frozen=True)
class Measured:
    """The measurements of a workload."""

    workload: Workload
    entries: dict[str, Entry]
    left_out: dict[str, str] = field(default_factory=dict)
    """Implementation -> why it did not run."""

    def ratio(self, ratio: Ratio) -> Spread | None:
        """Compute a ratio; None if an implementation did not run."""
        above = [self.entries[name] for name in ratio.numerator if name in self.entries]
        if not above:
            return None
        best = min(above, key=lambda entry: entry.spread.median)
        if ratio.denominator is None:
            return best.spread
        below = self.entries.get(ratio.denominator)
        if below is None:
            return None
        if ratio.memory:
            return Spread(best.peak_bytes / below.peak_bytes) if best.peak_bytes and below.peak_bytes else None
        return Spread.of([a / b for a, b in zip(best.seconds, below.seconds, strict=True)])

    def share_of_limit(self, name: str, rates: Mapping[str, Mapping[str, float]]) -> float | None:
        """Return the workload's least time at these rates, divided by the measured time; None if a rate is missing."""
        needs = self.workload.limit
        comparable = {
            implementation.name: implementation.comparable for implementation in self.workload.implementations
        }
        if not needs or not needs.keys() <= rates.keys() or not comparable[name]:
            return None
        least = sum(amount / max(rates[ceiling].values()) for ceiling, amount in needs.items())
        return least / self.entries[name].spread.median


def measure(workload: Workload, device: str, compiler: str | None, report: Report) -> Measured:
    """Measure all implementations of one workload.

    Raises:
        WorkerError: an implementation failed.
        DisagreementError: the implementations do not compute the same.
    """
    left_out = {
        implementation.name: "torch.compile needs a C++ compiler, and none was found"
        for implementation in workload.implementations
        if implementation.needs_compiler and compiler is None
    }
    running = [implementation for implementation in workload.implementations if implementation.name not in left_out]
    first: dict[str, float] = {}
    outputs: dict[str, Outputs] = {}
    runs: dict[str, Callable[[int], list[float]]] = {}
    with ExitStack() as stack:
        for implementation in running:
            name = implementation.name
            report(f"{workload.name}: {name} starts")
            worker = stack.enter_context(Worker(f"{workload.name}: {name}", implementation.environment))
            runs[name] = partial(worker.ask, process.run)
            first[name], outputs[name] = worker.ask(process.prepare, implementation.build, device)
        errors = compare(workload, running, outputs)
        seconds = take_turns(
            runs, workload.rounds, lambda done: report(f"{workload.name}: round {done} of {workload.rounds}")
        )
    entries = {}
    for implementation in running:
        name, peak = implementation.name, None
        if workload.has_memory:
            report(f"{workload.name}: memory of {name}")
            with Worker(f"{workload.name}: {name}", {**implementation.environment, **RETURN_MEMORY}) as worker:
                peak = worker.ask(process.measure_memory, implementation.build, device)
        compile_seconds = max(0.0, first[name] - statistics.median(seconds[name]))
        per_unit = tuple(s / implementation.units for s in seconds[name])
        entries[name] = Entry(per_unit, compile_seconds, peak, errors.get(name, 0.0))
    return Measured(workload, entries, left_out)


@dataclass
class Run:
    """Everything that was measured in one run."""

    device: str
    results: list[Measured] = field(default_factory=list)
    rates: dict[str, dict[str, float]] = field(default_factory=dict)
    """Ceiling -> framework -> operations a second."""
    failures: list[str] = field(default_factory=list)
    """What could not be measured, and why."""

    def ratios(self) -> dict[Ratio, Spread | None]:
        """Compute every ratio; None if it was not measured."""
        results = {result.workload.name: result for result in self.results}
        return {ratio: results[ratio.workload].ratio(ratio) if ratio.workload in results else None for ratio in RATIOS}


def measure_all(workloads: Sequence[Workload], quick: bool, report: Report) -> Run:
    """Measure these workloads, and the ceilings of their limits. A failure is noted, and the others are measured."""
    report("looking at the machine")
    run, compiler = Run(find_device()), find_compiler()
    needed = {ceiling for workload in workloads for ceiling in workload.limit}
    for workload in (*workloads, *(CEILINGS[name] for name in CEILINGS if name in needed)):
        if quick:
            has_memory = any(ratio.memory and ratio.workload == workload.name for ratio in RATIOS)
            workload = replace(workload, rounds=max(3, workload.rounds // 2), has_memory=has_memory)
        try:
            result = measure(workload, run.device, compiler, report)
        except (WorkerError, DisagreementError) as error:
            run.failures.append(str(error))
            continue
        if workload.name in CEILINGS:
            rates = {framework: 1 / entry.spread.median for framework, entry in result.entries.items()}
            run.rates[workload.name] = rates
        else:
            run.results.append(result)
    return run


def find_device() -> str:
    """Return "cuda" if both JAX and PyTorch see a GPU, else "cpu"; asked in another process."""
    question = "import jax, torch; print(jax.default_backend() == 'gpu' and torch.cuda.is_available())"
    answer = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True)
    return "cuda" if answer.stdout.strip() == "True" else "cpu"


def find_compiler() -> str | None:
    """Return the C++ compiler that torch.compile uses."""
    names = (os.environ.get("CXX"), "g++", "clang++")
    return next((path for name in names if name and (path := shutil.which(name))), None)
