"""What the tests of the package share: programs compiled quickly, since most tests compile much and compute little."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture
def full_compilation() -> None:
    """Compile with all of XLA's optimisations, for tests of the compiled program itself."""


@pytest.fixture(autouse=True)
def quick_compilation(request: pytest.FixtureRequest) -> Iterator[None]:
    jax.config.update("jax_disable_most_optimizations", "full_compilation" not in request.fixturenames)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
