"""What all tests share: shapes checked against the signatures, a float64 switch, and memory given back.

Under the hook a shape, rank or dtype that contradicts an annotation of `jax_attn` is an error wherever it occurs,
inside the library too. A test of the library's own messages asks for the fixture `own_checks`, which takes the hook
away.
"""

import gc
import os
import shutil
import tempfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

# Every compiled program is kept until the end, which saves a quarter of the time. Each process keeps its own: JAX
# writes a program in place, and another process may read half of it.
os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="jax-attn-tests-")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# PyTorch's tensors here are so small that a second thread is all waiting, and every core has a process already.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jax
import jaxtyping
import pytest
from jaxtyping import install_import_hook

from parity_tests.your_port.measure.width import enable_x64

gc.disable()  # until all is collected: what is imported stays, and need not be looked through again and again
install_import_hook("jax_attn", "beartype.beartype")

pytest_plugins = ["parity_tests.your_port.plugin"]  # imported after this file has run, and so under the hook


def pytest_configure(config: pytest.Config) -> None:
    """Let the default tests compile quickly, since they compile much and compute little.

    The processes that they start do so too, so that bits can be compared. The tests marked slow run the programs as
    users do, with the flags that the programs set.
    """
    from jax_attn.compiler import add_flags, avoid_faults  # under the hook

    avoid_faults()
    if config.getoption("markexpr") == "not slow":
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
        jax.config.update("jax_disable_most_optimizations", True)
        if version("jaxlib").startswith("0.10."):  # in a version without these flags the process would end
            add_flags("--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1")


@pytest.fixture
def same_bits() -> None:
    """Skip where a row has other bits at another place of the batch: with jaxlib 0.7, on a CPU without AVX-512."""
    flags = Path("/proc/cpuinfo")
    has_avx512 = not flags.exists() or "avx512f" in flags.read_text()
    if version("jaxlib").startswith("0.7.") and not has_avx512:
        pytest.skip("this version of jaxlib has not the same bits at each place of a batch, on a CPU without AVX-512")


@pytest.fixture
def full_compilation() -> Iterator[None]:
    """Compile with XLA's optimisations, for tests of the compiled program itself."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@contextmanager
def skipping_torch() -> Iterator[None]:
    """Skip what imports PyTorch where it is not installed."""
    try:
        yield
    except (ModuleNotFoundError, pytest.Collector.CollectError) as error:
        missing = error.__cause__ if isinstance(error, pytest.Collector.CollectError) else error
        if getattr(missing, "name", None) != "torch" or find_spec("torch"):
            raise
        pytest.skip("needs PyTorch", allow_module_level=True)


class TestFile(pytest.Module):
    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        with skipping_torch():
            return super().collect()


@pytest.hookimpl
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return TestFile.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    with skipping_torch():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the programs."""
    shutil.rmtree(os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)


@pytest.fixture
def x64() -> Iterator[None]:
    """float64 wherever a dtype is not given."""
    with enable_x64(True):
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
