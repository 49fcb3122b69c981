"""Measure workloads: outputs compared, then times taken in turn, each implementation in a process of its own.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
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
) -> float:
    """Return the largest error of a tensor of floats, max|a − b| / max|b|.

    The share `differing_ids` of the rows of ids (along the last axis) may differ. The floats of these examples, along
    the same first axis, are not compared then.

    Raises:
        DisagreementError: the tensors' names or shapes differ, or a difference exceeds the bound.
    """
    if set(outputs) != set(expected):
        raise DisagreementError(f"{name}: the outputs are {sorted(outputs)}, expected {sorted(expected)}")
    same: Any = slice(None)
    worst = 0.0
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
        worst = max(worst, error)
    return worst


def compare(workload: Workload, outputs: Mapping[str, Outputs]) -> dict[str, float]:
    """Return the errors of the implementations that ran, against the first one that is not ours."""
    ran = [each for each in workload.implementations if each.name in outputs and each.name != WITHOUT]
    expected = outputs[min(ran, key=lambda each: each.name == OURS).name]
    errors = {}
    for each in ran:
        examples = {name: x[: each.num_examples] for name, x in expected.items()}
        name, bounds = f"{workload.name}: {each.name}", (workload.bound, workload.differing_ids)
        errors[each.name] = require_agreement(name, outputs[each.name], examples, *bounds)
    return errors


def take_turns(
    runs: Mapping[str, Callable[[int], list[float]]],
    rounds: int,
    turn_seconds: float = TURN_SECONDS,
    report: Callable[[int], None] = lambda done: None,
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
        report(done + 1)
    return seconds


def measure(workload: Workload, device: str, compiler: str | None, report: Report) -> Entries:
    """Measure the implementations of one workload, without compiled PyTorch if there is no C++ compiler.

    Raises:
        WorkerError: an implementation failed.
        DisagreementError: the implementations do not compute the same.
    """
    running = [each for each in workload.implementations if compiler or each.name != COMPILED]
    first, outputs, runs, entries = {}, {}, {}, {}
    with ExitStack() as stack:
        for each in running:
            report(f"{workload.name}: {each.name} starts")
            worker = stack.enter_context(Worker(f"{workload.name}: {each.name}", each.environment))
            prepared = worker.ask(process.prepare, device, workloads.build, workload.name, each.name)
            first[each.name], outputs[each.name] = prepared
            runs[each.name] = partial(worker.ask, process.run)
        errors, rounds = compare(workload, outputs), workload.rounds
        progress = f"{workload.name}: round {{}} of {rounds}".format
        seconds = take_turns(runs, rounds, report=lambda done: report(progress(done)))
    for each in running:
        name, peak = each.name, None
        if workload.has_memory:
            report(f"{workload.name}: memory of {name}")
            with Worker(f"{workload.name}: {name}", {**each.environment, **RETURN_MEMORY}) as worker:
                peak = worker.ask(process.measure_memory, device, workloads.build, workload.name, name)
        compiling = max(0.0, first[name] - statistics.median(seconds[name]))
        entries[name] = Entry(tuple(s / each.units for s in seconds[name]), compiling, peak, errors.get(name, 0.0))
    return entries


def measure_speeds(operations: Iterable[Operation], device: str, report: Report) -> Speeds:
    """Measure the seconds of operations in JAX and in PyTorch."""
    speeds: dict[Operation, dict[str, float]] = {}
    builds = {"JAX": limits.jax_program, "PyTorch": limits.torch_program}
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(f"speed of {name}")) for name in builds}
        runs = {name: partial(worker.ask, process.run) for name, worker in workers.items()}
        for operation in operations:
            report(f"speed of {operation}")
            for name, worker in workers.items():
                worker.ask(process.prepare, device, builds[name], operation)
            taken = take_turns(runs, rounds=3, turn_seconds=0.1)
            speeds[operation] = {
                name: statistics.median(seconds) / limits.repeats(operation) for name, seconds in taken.items()
            }
    return speeds


def measure_all(chosen: Sequence[Workload], quick: bool, report: Report) -> Run:
    """Measure these workloads, and the speeds of their limits. A failure is noted, and the others are measured."""
    report("looking at the machine")
    run, compiler = Run(find_device()), find_compiler()
    for workload in chosen:
        if quick:
            has_memory = any(ratio.memory for ratio in workload.ratios)
            workload = replace(workload, rounds=max(3, workload.rounds // 2), has_memory=has_memory)
        try:
            run.results[workload.name] = measure(workload, run.device, compiler, report)
        except (WorkerError, DisagreementError) as error:
            run.failures.append(str(error))
    needs = limits.add(*(workload.needs for workload in chosen if workload.name in run.results))
    try:
        run.speeds = measure_speeds(needs, run.device, report) if needs else {}
    except WorkerError as error:
        run.failures.append(str(error))
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
