"""How much memory a call needs at its highest, above what the process held before it.

It is measured in a process of its own, which has timed nothing and whose allocator gives every array of 64 KiB or more
back to the kernel at once (`GIVE_BACK`): what a call needs cannot come out of what an earlier one freed. The program is
built and run once, so that everything is compiled. Linux keeps the most that a process ever held (`VmHWM` in
/proc/self/status), and forgets it when "5" is written to /proc/self/clear_refs: the mark is reset, one call runs, and
the mark is read; twice, of which the higher counts. Parameters and compiled code stand before and after, and are
not counted; inputs neither; the call's result is. The process's own highest mark, with imports and compilation, is
given beside it. On a GPU both are what the framework's allocator says of the device. Elsewhere nothing is measured.
"""

import gc
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""What glibc is told: arrays that are mapped are unmapped when they are freed."""

SETTLING_SECONDS = 0.3
"""What JAX frees is freed by a thread of its own, some time after the last reference is gone."""


def measure_peak(run: Callable[[], Any], device: str) -> dict[str, int | None]:
    """{"peak_bytes": above the start, of one call, "process_bytes": the most there ever was}; None: not measured."""
    measure = _on_gpu if device != "cpu" else _on_linux if sys.platform == "linux" else _nowhere
    return measure(run)


def _on_linux(run: Callable[[], Any]) -> dict[str, int | None]:
    highest = _status()["VmHWM"]
    peak = None
    with suppress(OSError):  # of a kernel that does not forget its mark
        peak = max(_peak_of_a_call(run) for _ in range(2))
    return {"peak_bytes": peak, "process_bytes": max(highest, _status()["VmHWM"])}


def _peak_of_a_call(run: Callable[[], Any]) -> int:
    gc.collect()
    time.sleep(SETTLING_SECONDS)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status()["VmRSS"]
    run()
    return _status()["VmHWM"] - before


def _status() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = (line.split(":") for line in lines if line.startswith(("VmHWM", "VmRSS")))
    return {name: int(value.split()[0]) * 1024 for name, value in fields}


def _on_gpu(run: Callable[[], Any]) -> dict[str, int | None]:
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
        cuda = sys.modules["torch"].cuda
        before = cuda.memory_allocated()
        cuda.reset_peak_memory_stats()
        run()
        return {"peak_bytes": cuda.max_memory_allocated() - before, "process_bytes": cuda.max_memory_reserved()}
    statistics = sys.modules["jax"].local_devices()[0].memory_stats() or {}  # its peak is never reset
    peak = statistics.get("peak_bytes_in_use")
    return {"peak_bytes": peak, "process_bytes": peak}


def _nowhere(run: Callable[[], Any]) -> dict[str, int | None]:
    return {"peak_bytes": None, "process_bytes": None}
