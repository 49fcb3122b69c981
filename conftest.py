"""What all tests share: shapes checked against the signatures, a float64 switch, and memory given back.

Under the hook a shape, rank or dtype that contradicts an annotation of `jax_attn` is an error wherever it occurs,
inside the library too. A test of the library's own messages asks for the fixture `own_checks`, which takes the hook
away.
"""

import gc
import os
from collections.abc import Generator, Iterator

os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "0"  # of the programs under test and their processes: a test is no run
# PyTorch's tensors here are so small that a second thread is all waiting, and every core has a process already.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jax
import jaxtyping
import pytest
from jaxtyping import install_import_hook

gc.disable()  # until all is collected: what is imported stays, and need not be looked through again and again
install_import_hook("jax_attn", "beartype.beartype")

pytest_plugins = ["parity_tests.plugin"]  # imported after this file has run, and so under the hook


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture
def x64() -> Iterator[None]:
    """float64 wherever a dtype is not given."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def own_checks() -> Iterator[None]:
    """Leave wrong arguments to the library's own checks, as its users do."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True, scope="module")
def clear_caches() -> Iterator[None]:
    """Thousands of compiled programs would exhaust the memory maps of one process."""
    yield
    jax.clear_caches()
