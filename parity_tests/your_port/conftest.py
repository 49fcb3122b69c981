"""What the tests of the harness share: the small programs that they compile, and what they leave out."""

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from parity_tests.your_port.cause.cause import Found


@pytest.fixture(autouse=True, scope="module")
def clear_caches() -> Iterator[None]:
    """Keep the programs of other files until they take a third of the 65,530 memory maps of a process."""
    yield
    maps = Path("/proc/self/maps")
    if not maps.exists() or maps.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()


@pytest.fixture
def verdict_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for no place and no cause, in tests of whether the two differ."""
    monkeypatch.setattr("parity_tests.your_port.compare.explain_difference", lambda *_, **__: None)


@pytest.fixture
def place_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for no cause, in tests of where the two differ."""
    monkeypatch.setattr("parity_tests.your_port.divergence._explain", lambda *_: Found())
