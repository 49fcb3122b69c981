"""Measure a workload: each implementation in a process of its own, outputs compared, then times taken in turn.

In each round every implementation has one turn of about a third of a second, and the round's time is the median of
its calls. The order changes from round to round. A ratio is computed in each round, between times that are seconds
apart, and the median of these ratios is reported: a machine that slows down for a minute slows both.

All processes that are timed have the same environment. A process blocks between two requests, so that none of its
threads competes with the implementation that is timed.

Peak memory is measured in a fresh process whose allocator returns every array of 64 KiB or more to the kernel at once:
a call cannot reuse what an earlier one has freed. After a first call, Linux's high-water mark of the process (`VmHWM`)
is reset by writing "5" to /proc/self/clear_refs, and one more call runs. What the process held before is subtracted, so
the result counts, but no parameters, inputs or compiled code. Elsewhere nothing is measured.
"""

import gc
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.records import OURS, WITHOUT, Entries, Entry, Program, Workload
from jax_attn.compiler import avoid_faults

KEEP_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
}
"""Make glibc keep freed memory. Otherwise large arrays are unmapped, and zeroed by the kernel, at every call."""
RETURN_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""Make glibc unmap arrays when they are freed."""

TURN_SECONDS = 0.35
MOST_CALLS = 200

Outputs = Mapping[str, np.ndarray]
Build = Callable[..., Program]
Report = Callable[[str], None]
"""Called with what is being done."""


class MeasurementError(RuntimeError):
    """An implementation failed, or it computes other results than the others, so that times cannot be compared."""


class Worker:
    """A process that computes on the CPU, with one environment for all implementations."""

    def __init__(self, name: str, environment: Mapping[str, str] = KEEP_MEMORY) -> None:
        self.name = name
        self._pool = ProcessPoolExecutor(1, get_context("spawn"))
        before = dict(os.environ)
        os.environ.update({"JAX_PLATFORMS": "cpu", **environment})
        avoid_faults()  # as the programs do
        try:
            self.ask(os.getpid)  # starts the process
        finally:
            os.environ.clear()
            os.environ.update(before)

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the process.

        Raises:
            MeasurementError: the function raised an error, or the process died.
        """
        try:
            return self._pool.submit(function, *arguments).result()
        except Exception as error:
            raise MeasurementError(f"{self.name} failed: {error.__cause__ or error}") from error

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()


# In the worker's process:

_programs: list[Program] = []
"""The program that was prepared last."""


def prepare(build: Build, *arguments: Any) -> Outputs:
    """Build a program, without JAX's cache of compiled programs. Compute its outputs, and run it."""
    jax.config.update("jax_enable_compilation_cache", False)
    warnings.simplefilter("ignore")
    program = build(*arguments)
    _programs[:] = [program]
    outputs = (program.outputs or program.run)()
    run(1)
    return {name: np.asarray(x.detach() if hasattr(x, "detach") else x) for name, x in outputs.items()}


def run(times: int) -> list[float]:
    """Run the program and return the seconds of each call."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        result = jax.block_until_ready(_programs[0].run())
        seconds.append(result if isinstance(result, float) else time.perf_counter() - start)
    return seconds


def call_memory(build: Build) -> int | None:
    """Return the bytes that one call needs at its peak; None if they cannot be measured."""
    prepare(build)
    return max(peak_memory(_programs[0].run) for _ in range(2)) if sys.platform == "linux" else None


def peak_memory(run: Callable[[], Any]) -> int:
    """Return the most bytes that a call holds above what the process held before it."""

    def status(name: str) -> int:
        (kilobytes,) = re.findall(rf"^{name}:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
        return int(kilobytes) * 1024

    gc.collect()
    time.sleep(0.3)  # JAX frees memory in another thread, a short time after the last reference is gone
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    jax.block_until_ready(run())
    return status("VmHWM") - before


# In the first process:


def require_agreement(
    name: str, outputs: Outputs, expected: Outputs, bound: float = 1e-5, differing_ids: float = 0.0
) -> None:
    """Compare tensors of floats by max|a − b| / max|b|.

    The share `differing_ids` of the examples, the first axis, may have other ids. Their floats are not compared then.

    Raises:
        MeasurementError: the tensors' names or shapes differ, or a difference exceeds the bound.
    """
    shapes, right = ({tensor: x.shape for tensor, x in each.items()} for each in (outputs, expected))
    if shapes != right:
        raise MeasurementError(f"{name}: the outputs are {shapes}, expected {right}")
    same: Any = slice(None)
    for tensor, x in expected.items():
        if x.dtype.kind == "i":
            same = (outputs[tensor] == x).reshape(len(x), -1).all(axis=1)
            if (~same).mean() > differing_ids:
                wrong = f"{(~same).sum()} of {len(same)} examples; {differing_ids:.0%} may"
                raise MeasurementError(f"{name}: {tensor} differs in {wrong}")
    for tensor, x in expected.items():
        if x.dtype.kind == "f":
            error = np.abs(outputs[tensor][same].astype(np.float64) - x[same]).max(initial=0)
            if not (error := error / (np.abs(x[same]).max(initial=0) or 1.0)) <= bound:
                raise MeasurementError(f"{name}: the error of {tensor} is {error:.2g}; the bound is {bound:g}")


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
            seconds[name].append(float(np.median(runs[name](calls[name]))))
    return seconds


def measure(workload: Workload, rounds: int, report: Report) -> Entries:
    """Measure all implementations of a workload.

    Raises:
        MeasurementError: an implementation failed, or they do not compute the same.
    """
    builds = workload.implementations
    outputs: dict[str, Outputs] = {}
    peaks: dict[str, int | None] = {}
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(f"{workload.name}: {name}")) for name in builds}
        for name, worker in workers.items():
            report(f"{workload.name}: {name} starts")
            outputs[name] = worker.ask(prepare, builds[name])
        compared = [name for name in builds if name != WITHOUT]
        expected = min(compared, key=lambda name: name == OURS)  # the first one that is not ours
        for name in compared:
            bounds = workload.bound, workload.differing_ids
            require_agreement(f"{workload.name}: {name}", outputs[name], outputs[expected], *bounds)
        report(f"{workload.name}: {rounds} rounds")
        seconds = take_turns({name: partial(worker.ask, run) for name, worker in workers.items()}, rounds)
    if any(ratio.memory for ratio in workload.ratios):
        for name, build in builds.items():
            report(f"{workload.name}: memory of {name}")
            with Worker(f"{workload.name}: {name}", RETURN_MEMORY) as worker:
                peaks[name] = worker.ask(call_memory, build)
    return {name: Entry(tuple(s / workload.units for s in seconds[name]), peaks.get(name)) for name in builds}
