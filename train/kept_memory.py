"""Memory that stays with the process when it is freed."""

import ctypes
import os
import sys

TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8
"""The names that `mallopt` knows its parameters by, in glibc's malloc.h."""


def keep_memory() -> bool:
    """Have glibc keep what is freed, for what is asked for next; whether it does.

    At each call XLA asks for the temporary arrays of a program anew, a few hundred megabytes for a training step. By
    default glibc gives so much back to the kernel at once, and when it is asked for again every page has to be zeroed
    and mapped: 40,000 of them for the gradient of an LSTM of 512 units, an eighth of its time. What the user has said
    of the allocator (`MALLOC_…`, `GLIBC_TUNABLES`) stays as it is; so does everything where there is no glibc.
    """
    if sys.platform != "linux" or any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # One arena: in the others, which threads get, large arrays are mapped each for itself whatever else is said.
    settings = ((ARENA_MAX, 1), (MMAP_MAX, 0), (TRIM_THRESHOLD, -1))
    return mallopt is not None and all(mallopt(name, value) for name, value in settings)
