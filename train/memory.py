"""How much memory a run has held at most, as the system and the device tell it."""

import re
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak() -> int | None:
    """Bytes of this process's resident set at its largest; None where the system does not tell.

    Linux's own count is of this program alone. That of getrusage, taken elsewhere, begins with what the process held
    that started this one.
    """
    if STATUS.exists():
        found = re.search(r"^VmHWM:\s*(\d+) kB$", STATUS.read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


def peak_of_device(framework: str) -> int | None:
    """Bytes that JAX had allocated on its first device at most; None on a CPU, whose memory is the process's."""
    if framework == "torch":
        return None
    import jax

    told = jax.local_devices()[0].memory_stats() or {}
    return told.get("peak_bytes_in_use")
