"""A process for each implementation, which builds the program and runs it when asked.

A process blocks between two requests, so that none of its threads competes with the implementation that is timed.

Peak memory is measured in a fresh process whose allocator returns every array of 64 KiB or more to the kernel at once:
a call cannot reuse what an earlier one has freed. After a first call, Linux's high-water mark of the process (`VmHWM`)
is reset by writing "5" to /proc/self/clear_refs, and one more call runs. What the process held before is subtracted, so
the result counts, but no parameters, inputs or compiled code. Elsewhere nothing is measured.
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
from typing import Any

import jax

from benchmarks.records import Outputs, Program
from jax_attn.compiler import avoid_faults

RETURN_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""Make glibc unmap arrays when they are freed."""

Build = Callable[..., Program]
"""A function of a module, so that a process can import it."""


class WorkerError(RuntimeError):
    """An implementation failed. The message says which one, and what it wrote last."""


class Worker:
    """A process that starts with these environment variables. It computes on the CPU."""

    def __init__(self, name: str, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._log = tempfile.NamedTemporaryFile(prefix="speed-")  # noqa: SIM115 (closed at the exit)
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=_write_to, initargs=(self._log.name,))
        before = dict(os.environ)
        os.environ.update({"JAX_PLATFORMS": "cpu", **(environment or {})})
        avoid_faults()  # of both sides alike
        try:
            self.ask(os.getpid)  # starts the process
        finally:
            os.environ.clear()
            os.environ.update(before)

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the process.

        Raises:
            WorkerError: the function raised an error, or the process died.
        """
        try:
            return self._pool.submit(function, *arguments).result()
        except Exception as error:
            wrote = self._log.read().decode(errors="replace")[-2000:]
            raise WorkerError(f"{self.name} failed: {error.__cause__ or error}\n{wrote}".rstrip()) from error

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()
        self._log.close()


# In the worker's process:

_programs: list[Program] = []
"""The program that was prepared last."""


def prepare(build: Build, *arguments: Any) -> Outputs:
    """Build a program, without JAX's cache of compiled programs. Compute its outputs, and run it."""
    jax.config.update("jax_enable_compilation_cache", False)
    _programs[:] = [build(*arguments)]
    outputs = dict(_programs[0].outputs())
    run(1)
    return outputs


def run(times: int) -> list[float]:
    """Run the program and return the seconds of each call."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        result = _programs[0].run()
        seconds.append(result if isinstance(result, float) else time.perf_counter() - start)
    return seconds


def measure_memory(build: Build, *arguments: Any) -> int | None:
    """Return the bytes that one call needs at its peak; None if they cannot be measured."""
    prepare(build, *arguments)
    return max(linux_peak(_programs[0].run) for _ in range(2)) if sys.platform == "linux" else None


def _write_to(log: str) -> None:
    """Send what libraries print to a file."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)


def linux_peak(run: Callable[[], Any]) -> int:
    """Return the most bytes that a call holds above what the process held before it."""
    gc.collect()
    time.sleep(0.3)  # JAX frees memory in another thread, a short time after the last reference is gone
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    run()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    """Read a number of bytes from the process's status."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024
