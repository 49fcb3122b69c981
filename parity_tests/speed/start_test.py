import os
import sys
from pathlib import Path

import pytest

from parity_tests.speed import start
from parity_tests.speed.processes import ContestantError


def test_a_process_that_dies_before_its_first_step_says_so(monkeypatch, tmp_path):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho no luck >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(ContestantError, match=r"(?s)start: the process died before its first step:.*no luck"):
        start.time_to_first_line([], dict(os.environ))


def test_the_imports_are_taken_off(monkeypatch):
    def timed(arguments, environment):
        return seconds[Path(arguments[0]).stem if arguments else "imports"].pop(0)

    seconds = {"imports": [9.0, 1.0, 1.0], "w1": [9.0, 1.5, 1.7], "w2": [9.0, 3.0, 3.0]}
    monkeypatch.setattr(start, "time_to_first_line", timed)
    found = start.measure_start("cpu", 2, lambda said: None)  # what fills the cache does not count
    assert found["imports"].median == 1.0
    assert found["w1"].median == pytest.approx(0.6)
    assert found["w2"].median == pytest.approx(2.0)
