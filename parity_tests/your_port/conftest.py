"""What the tests of the harness share: the small programs that they compile."""

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def clear_caches() -> Iterator[None]:
    """Keep the programs of other files until they take a third of the 65,530 memory maps of a process."""
    yield
    maps = Path("/proc/self/maps")
    if not maps.exists() or maps.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()
