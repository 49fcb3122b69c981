import sys

import numpy as np
import pytest

from parity_tests.speed.memory import measure_peak

MB = 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's mark is Linux's")
def test_the_peak_is_that_of_the_call():
    def run():
        first = np.ones(64 * MB, np.uint8)
        return first + first  # 64 MB more, both at once

    peak = measure_peak(run, "cpu")["peak_bytes"]
    assert peak is not None
    assert 120 * MB < peak < 160 * MB


def test_what_is_not_measured_is_none(monkeypatch):
    monkeypatch.setattr(sys, "platform", "plan9")
    assert measure_peak(lambda: None, "cpu") == {"peak_bytes": None, "process_bytes": None}
