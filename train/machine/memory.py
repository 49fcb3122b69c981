"""The memory of this machine."""

import os


def total() -> int | None:
    """Return the bytes of memory that this machine has; None if the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
