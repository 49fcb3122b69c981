import os
import subprocess
import sys

import pytest

pytest.importorskip("resource")

PROGRAM = """
import resource
from train.kept_memory import keep_memory
print(keep_memory())
import jax, jax.numpy as jnp
f = jax.jit(lambda x: jnp.sort(jnp.sort(x[::-1]) * 2)[0])  # which needs arrays as large as x
x = jnp.zeros(2**23)
f(x).block_until_ready()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
f(x).block_until_ready()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 2**23 * 4 // os.sysconf("SC_PAGE_SIZE")


def run(**environment):
    """Whether memory is kept, and how many pages of memory a second call was given."""
    inherited = {name: x for name, x in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    environment = {**inherited, "JAX_PLATFORMS": "cpu", **environment}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    kept, pages = done.stdout.split()
    return kept == "True", int(pages)


def test_a_second_call_finds_the_memory_of_the_first():
    kept, pages = run()
    if not kept:
        pytest.skip("there is no glibc")
    assert pages < PAGES / 10


def test_what_the_user_has_set_wins():
    kept, pages = run(MALLOC_MMAP_THRESHOLD_="65536")
    assert not kept
    assert pages > PAGES / 2
