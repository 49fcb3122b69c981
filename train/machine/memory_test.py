"""The peak is right within the size of what is held."""

import resource
import subprocess
import sys

import jax
import numpy as np

from train.machine import memory

HOLD = """
import numpy
from train.machine import memory
before = memory.peak()
held = numpy.ones(2**25)  # 256 MB, which is more than there ever was
size = held.nbytes
del held
print(before, size, memory.peak())
"""


def run(program: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()


def test_the_peak_grows_with_what_is_held_and_stays_when_it_is_given_back():
    before, size, peak = map(int, run(HOLD))
    assert before < size <= peak <= before + size + 2**26


def test_the_peak_is_that_of_the_process_alone():
    held = np.ones(2**26)  # half a gigabyte, which the one that is started has no part in
    (printed,) = run("from train.machine import memory; print(memory.peak())")
    assert 2**20 <= int(printed) < held.nbytes


def test_elsewhere_getrusage_tells(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "STATUS", tmp_path / "none")
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert memory.peak() >= largest * (1 if sys.platform == "darwin" else 1024)


def test_a_cpu_has_no_memory_of_its_own():
    if jax.default_backend() == "cpu":
        assert memory.peak_on_device() is None
