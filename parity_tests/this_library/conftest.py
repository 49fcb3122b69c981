"""What the tests of this proof share: no checks of shapes, and how many cases of each property are drawn."""

from collections.abc import Iterator

import jaxtyping
import pytest
from hypothesis import settings

from parity_tests.your_port.measure.jax_side import forget_programs

settings.register_profile("quick", max_examples=8, derandomize=True, deadline=None, database=None)
settings.register_profile("many", max_examples=580, deadline=None, database=None, print_blob=True)
settings.load_profile("quick")


@pytest.fixture(autouse=True, scope="module")
def _unchecked() -> Iterator[None]:
    """Shapes are checked by every other test; here that would be the greater part of the compilation."""
    checked = not jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", not checked)
    forget_programs()
