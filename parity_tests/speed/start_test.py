import os
import sys

import pytest

from parity_tests.speed import start
from parity_tests.speed.processes import ContestantError


def test_a_process_that_dies_before_its_first_step_says_so(monkeypatch, tmp_path):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho no luck >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(ContestantError, match=r"(?s)start: w1 died before its first step:.*no luck"):
        start.time_to_first_line("w1", "cpu", dict(os.environ))


def test_the_imports_are_taken_off(monkeypatch):
    seconds = {"imports": [9.0, 1.0, 1.0], "w1": [9.0, 1.5, 1.7], "w2": [9.0, 3.0, 3.0]}
    monkeypatch.setattr(start, "time_to_first_line", lambda name, device, environment: seconds[name].pop(0))
    found = start.measure_start("cpu", 2, lambda said: None)  # what fills the cache does not count
    assert found["imports"].median == 1.0
    assert found["w1"].median == pytest.approx(0.6)
    assert found["w2"].median == pytest.approx(2.0)
