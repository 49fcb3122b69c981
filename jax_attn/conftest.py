"""Unit tests spend their time in the compiler: hundreds of programs, each run once on a handful of numbers."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def compile_quickly() -> Iterator[None]:
    """Leave most of XLA's optimizations out here; the parity tests run with all of them."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
