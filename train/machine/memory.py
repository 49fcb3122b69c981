"""The memory of this machine, and how much of it a run takes."""

import os
import re
import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")


def total() -> int | None:
    """Return the bytes of memory that this machine has; None if the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def peak() -> int:
    """Return the largest resident set of this process in bytes.

    On Linux, /proc counts this program alone, while getrusage starts from the size of the process that started it.
    """
    if STATUS.exists():
        found = re.search(r"^VmHWM:\s*(\d+) kB$", STATUS.read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


def peak_on_device() -> int | None:
    """Return JAX's peak of bytes on its first device; None on a CPU, which has no memory of its own."""
    import jax

    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
