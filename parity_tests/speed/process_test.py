import os
import sys

import numpy as np
import pytest

from parity_tests.speed import process
from parity_tests.speed.process import Worker, WorkerError

MB = 2**20


def hold_64_mb():
    first = np.ones(64 * MB, np.uint8)
    return first + first  # another 64 MB at the same time


def abort():
    os.write(2, b"out of luck\n")
    os.abort()


def test_a_process_answers_has_its_environment_and_says_why_it_failed():
    with Worker("w", "ours", "cpu", {"SPEED_TEST": "3"}) as worker:
        assert worker.ask(os.getpid) != os.getpid()
        assert worker.ask(os.getenv, "SPEED_TEST") == "3"
        assert "SPEED_TEST" not in os.environ
        with pytest.raises(WorkerError, match=r"(?s)w: ours failed: .*invalid literal for int"):
            worker.ask(int, "three")
        with pytest.raises(WorkerError, match=r"(?s)w: ours failed: its process died.*out of luck"):
            worker.ask(abort)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the high-water mark")
def test_the_peak_is_that_of_the_call():
    assert 120 * MB < process._linux_peak(hold_64_mb) < 160 * MB
