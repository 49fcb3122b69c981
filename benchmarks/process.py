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
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

Result = TypeVar("Result")

RETURN_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""Make glibc unmap arrays when they are freed."""

FOLDER = "SPEED_FOLDER"
"""The environment variable that names a worker's folder, which is deleted with the worker."""

SETTLING_SECONDS = 0.3
"""JAX frees memory in another thread, a short time after the last reference is gone."""


class Program(NamedTuple):
    """An implementation, built and ready to run."""

    run: Callable[[], Any]
    """Run once and wait for the result. This call is timed, unless it returns its own seconds as a float."""
    outputs: Callable[[], Mapping[str, np.ndarray]]
    """Compute what is compared between implementations. It is called once, before `run`, and usually compiles."""


Build = Callable[[str], Program]
"""build("cpu" or "cuda") makes the program; it can be pickled."""


class WorkerError(RuntimeError):
    """An implementation failed. The message says which one, and what it wrote last."""


class Worker:
    """A process that starts with these environment variables and runs one implementation."""

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self.name = name
        self._folder = tempfile.TemporaryDirectory(prefix="speed-")
        self._log = Path(self._folder.name, "log")
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=_write_to, initargs=(str(self._log),))
        before, shared_gpu = dict(os.environ), {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        os.environ.update({**shared_gpu, FOLDER: self._folder.name, **environment})
        try:
            self.ask(os.getpid)  # starts the process
        finally:
            os.environ.clear()
            os.environ.update(before)

    def ask(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function in the process.

        Raises:
            WorkerError: the function raised an error, or the process died.
        """
        try:
            return self._pool.submit(function, *arguments).result()
        except Exception as error:
            wrote = self._log.read_text(encoding="utf-8", errors="replace")[-2000:] if self._log.exists() else ""
            raise WorkerError(f"{self.name} failed: {error.__cause__ or error}\n{wrote}".rstrip()) from error

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()
        self._folder.cleanup()


# In the worker's process:

_programs: list[Program] = []
"""The program of this process, once it is built."""


def prepare(build: Build, device: str) -> tuple[float, dict[str, np.ndarray]]:
    """Build the program, compute its outputs, and run it once. Return the outputs' seconds and the outputs."""
    program = build(device)
    _programs.append(program)
    start = time.perf_counter()
    outputs = dict(program.outputs())
    seconds = time.perf_counter() - start
    program.run()
    return seconds, outputs


def run(times: int) -> list[float]:
    """Run the program and return the seconds of each call."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        result = _programs[0].run()
        seconds.append(result if isinstance(result, float) else time.perf_counter() - start)
    return seconds


def measure_memory(build: Build, device: str) -> int | None:
    """Return the bytes that one call needs at its peak; None if they cannot be measured."""
    program = build(device)
    program.run()
    if device != "cpu":
        return _gpu_peak(program.run)
    return max(_linux_peak(program.run) for _ in range(2)) if sys.platform == "linux" else None


def _write_to(log: str) -> None:
    """Send what libraries print to a file."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(file, stream)


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
