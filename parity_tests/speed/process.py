"""A process for each implementation: it builds the program and runs it when asked.

The process blocks between two requests, so that none of its threads competes with the implementation that is timed.

Peak memory is measured in another fresh process, whose allocator returns every array of 64 KiB or more to the kernel at
once (`RETURN_MEMORY`): a call cannot reuse what an earlier one has freed. The program runs once, so that everything is
compiled. Then Linux's high-water mark of the process (`VmHWM` in /proc/self/status) is reset by writing "5" to
/proc/self/clear_refs, one call runs, and the mark is read. What the process held before the call is subtracted:
parameters, inputs and compiled code are not counted, the result is. On a GPU the framework's allocator is asked.
Elsewhere nothing is measured.
"""

import gc
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from parity_tests.speed.records import Program
from parity_tests.speed.workloads import find_workload

Result = TypeVar("Result")

RETURN_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""Make glibc unmap arrays when they are freed."""

SETTLING_SECONDS = 0.3
"""JAX frees memory in another thread, a short time after the last reference is gone."""


class WorkerError(RuntimeError):
    """An implementation failed. The message says which one, and what it wrote last."""


class Worker:
    """An implementation in a process of its own."""

    def __init__(self, workload: str, implementation: str, device: str, environment: Mapping[str, str]) -> None:
        self.name = f"{workload}: {implementation}"
        self._program = workload, implementation, device
        self._log = tempfile.NamedTemporaryFile(prefix="speed-")  # noqa: SIM115 (closed below)
        context = get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, initializer=_write_to, initargs=(self._log.name,))
        with _environment({"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **environment}):  # several share a GPU
            self.ask(os.getpid)  # starts the process

    def prepare(self) -> tuple[float, dict[str, np.ndarray]]:
        """Build the program, compute its outputs, and run it once. Return the outputs' seconds and the outputs."""
        return self.ask(_prepare, *self._program)

    def run(self, times: int) -> list[float]:
        """Run the program and return the seconds of each call."""
        return self.ask(_run, *self._program, times)

    def measure_memory(self) -> int | None:
        """Return the bytes that one call needs at its peak; None if they cannot be measured."""
        return self.ask(_measure_memory, *self._program)

    def ask(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function in the process.

        Raises:
            WorkerError: the function raised an error, or the process died.
        """
        try:
            result, error = self._pool.submit(_guard, function, *arguments).result()
        except BrokenProcessPool:
            lines = Path(self._log.name).read_text(encoding="utf-8", errors="replace").splitlines()
            result, error = None, "\n".join(["its process died; it wrote last:", *lines[-15:]])
        if error:
            raise WorkerError(f"{self.name} failed: {error}")
        return result  # type: ignore[no-any-return]

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()
        self._log.close()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that start meanwhile."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# In the worker's process:


def _write_to(log: str) -> None:
    """Send what libraries print to a file."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)


def _guard(function: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    """Return the result and no error, or the error as text, since not every error can be sent to another process."""
    try:
        return function(*arguments), ""
    except Exception:
        return None, traceback.format_exc(limit=-3)


@cache
def _load(workload: str, implementation: str, device: str) -> Program:
    """Build the program; every further call returns the same one."""
    found = find_workload(workload).implementation(implementation)
    return found.build(device, **found.settings)


def _prepare(*names: str) -> tuple[float, dict[str, np.ndarray]]:
    program = _load(*names)
    start = time.perf_counter()
    outputs = dict(program.outputs())
    seconds = time.perf_counter() - start
    program.run()
    return seconds, outputs


def _run(workload: str, implementation: str, device: str, times: int) -> list[float]:
    program, seconds = _load(workload, implementation, device), []
    for _ in range(times):
        start = time.perf_counter()
        program.run()
        seconds.append(time.perf_counter() - start)
    return seconds


def _measure_memory(workload: str, implementation: str, device: str) -> int | None:
    run = _load(workload, implementation, device).run
    run()
    if device != "cpu":
        return _gpu_peak(run)
    return max(_linux_peak(run) for _ in range(2)) if sys.platform == "linux" else None


def _linux_peak(run: Callable[[], Any]) -> int:
    gc.collect()
    time.sleep(SETTLING_SECONDS)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    run()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    """Read a number of bytes from the process's status."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def _gpu_peak(run: Callable[[], Any]) -> int | None:
    cuda = sys.modules["torch"].cuda
    if cuda.is_initialized():
        before: int = cuda.memory_allocated()
        cuda.reset_peak_memory_stats()
        run()
        peak: int = cuda.max_memory_allocated()
        return peak - before
    statistics = sys.modules["jax"].local_devices()[0].memory_stats() or {}  # JAX never resets its peak
    return statistics.get("peak_bytes_in_use")
