"""Measure workloads: outputs compared, then times taken in turn, each implementation in a process of its own.

In each round every implementation has one turn of about a third of a second, and the round's time is the median of
its calls. The order changes from round to round. A ratio is computed in each round, between times that are seconds
apart, and the median of these ratios is reported: a machine that slows down for a minute slows both. The spread is the
distance between the quartiles.
"""

import os
import shutil
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from benchmarks import limits, process, workloads
from benchmarks.process import RETURN_MEMORY, Worker, WorkerError
from benchmarks.records import COMPILED, OURS, WITHOUT, Entries, Entry, Operation, Outputs, Run, Speeds, Workload

TURN_SECONDS = 0.35
MOST_CALLS = 200

Report = Callable[[str], None]
"""Called with what is being done."""


class DisagreementError(AssertionError):
    """Two implementations have different results, so their times cannot be compared."""


def require_agreement(
    name: str, outputs: Outputs, expected: Outputs, bound: float = 1e-5, differing_ids: float = 0.0
) -> None:
    """Compare tensors of floats by max|a − b| / max|b|.

    The share `differing_ids` of the rows of ids (along the last axis) may differ. The floats of these examples, along
    the same first axis, are not compared then.

    Raises:
        DisagreementError: the tensors' names or shapes differ, or a difference exceeds the bound.
    """
    if set(outputs) != set(expected):
        raise DisagreementError(f"{name}: the outputs are {sorted(outputs)}, expected {sorted(expected)}")
    same: Any = slice(None)
    for tensor, right in sorted(expected.items(), key=lambda item: item[1].dtype.kind == "f"):  # ids first
        found = outputs[tensor]
        if found.shape != right.shape:
            raise DisagreementError(f"{name}: {tensor} is {list(found.shape)}, expected {list(right.shape)}")
        if right.dtype.kind != "f":
            same = (found == right).reshape(len(right), -1).all(axis=1)
            if (~same).mean() > differing_ids:
                allowed = f"{differing_ids:.0%} may differ"
                raise DisagreementError(f"{name}: {tensor} differs in {(~same).sum()} of {len(same)} rows; {allowed}")
            continue
        found, right = found[same], right[same]
        scale = float(np.abs(right).max(initial=0)) or 1.0
        error = float(np.abs(found.astype(np.float64) - right).max(initial=0)) / scale
        if not error <= bound:
            raise DisagreementError(f"{name}: the error of {tensor} is {error:.2g}; the bound is {bound:g}")


def compare(workload: Workload, outputs: Mapping[str, Outputs]) -> None:
    """Compare the implementations that ran with the first one that is not ours."""
    ran = [each for each in workload.implementations if each.name in outputs and each.name != WITHOUT]
    expected = outputs[min(ran, key=lambda each: each.name == OURS).name]
    for each in ran:
        examples = {name: x[: each.num_examples] for name, x in expected.items()}
        name, bounds = f"{workload.name}: {each.name}", (workload.bound, workload.differing_ids)
        require_agreement(name, outputs[each.name], examples, *bounds)


def take_turns(
    runs: Mapping[str, Callable[[int], list[float]]], rounds: int, turn_seconds: float = TURN_SECONDS
) -> dict[str, list[float]]:
    """Return the seconds of a call for each implementation and round; `runs[name](k)` times k calls."""
    names = list(runs)
    calls = {name: max(1, min(MOST_CALLS, round(turn_seconds / max(runs[name](1)[0], 1e-9)))) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for done in range(rounds):
        first = done % len(names)
        for name in names[first:] + names[:first]:
            if calls[name] > 1:
                runs[name](1)  # fills the caches again
            seconds[name].append(statistics.median(runs[name](calls[name])))
    return seconds


def measure(workload: Workload, rounds: int, has_compiler: bool, report: Report) -> Entries:
    """Measure all implementations of a workload; without a C++ compiler, those that need none.

    Raises:
        WorkerError: an implementation failed.
        DisagreementError: the implementations do not compute the same.
    """
    running = [each for each in workload.implementations if has_compiler or each.name != COMPILED]
    outputs, runs, peaks = {}, {}, {}
    with ExitStack() as stack:
        for each in running:
            report(f"{workload.name}: {each.name} starts")
            worker = stack.enter_context(Worker(f"{workload.name}: {each.name}", each.environment))
            outputs[each.name] = worker.ask(process.prepare, workloads.build, workload.name, each.name)
            runs[each.name] = partial(worker.ask, process.run)
        compare(workload, outputs)
        report(f"{workload.name}: {rounds} rounds")
        seconds = take_turns(runs, rounds)
    if any(ratio.memory for ratio in workload.ratios):
        for each in running:
            report(f"{workload.name}: memory of {each.name}")
            with Worker(f"{workload.name}: {each.name}", {**each.environment, **RETURN_MEMORY}) as worker:
                peaks[each.name] = worker.ask(process.measure_memory, workloads.build, workload.name, each.name)
    return {
        each.name: Entry(tuple(s / each.units for s in seconds[each.name]), peaks.get(each.name)) for each in running
    }


def measure_speeds(operations: Iterable[Operation], report: Report) -> Speeds:
    """Measure the seconds of operations in JAX and in PyTorch: of a product, in the faster of two layouts."""
    speeds: dict[Operation, dict[str, float]] = {}
    builds = {"JAX": limits.jax_program, "PyTorch": limits.torch_program}
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(f"speed of {name}")) for name in builds}
        runs = {name: partial(worker.ask, process.run) for name, worker in workers.items()}
        for operation in operations:
            report(f"speed of {operation}")
            speeds[operation] = dict.fromkeys(builds, float("inf"))
            for is_transposed in (False, True) if operation.name == "product" else (False,):
                for name, worker in workers.items():
                    worker.ask(process.prepare, builds[name], operation, is_transposed)
                for name, seconds in take_turns(runs, rounds=3, turn_seconds=0.1).items():
                    taken = statistics.median(seconds) / limits.repeats(operation)
                    speeds[operation][name] = min(speeds[operation][name], taken)
    return speeds


def measure_all(chosen: Sequence[Workload], quick: bool, report: Report) -> Run:
    """Measure these workloads, and the speeds of their limits. A failure is noted, and the others are measured."""
    run, names = Run(), (os.environ.get("CXX"), "g++", "clang++")
    has_compiler = any(name and shutil.which(name) for name in names)  # which torch.compile needs
    for workload in chosen:
        rounds = max(3, workload.rounds // 2) if quick else workload.rounds
        try:
            run.results[workload.name] = measure(workload, rounds, has_compiler, report)
        except (WorkerError, DisagreementError) as error:
            run.failures.append(str(error))
    try:
        run.speeds = measure_speeds(limits.add(*(w.needs for w in chosen if w.name in run.results)), report)
    except WorkerError as error:
        run.failures.append(str(error))
    return run
