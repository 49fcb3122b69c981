import io
import json
import sys

import numpy as np
import pytest

from parity_tests.speed.processes import ContestantError, Worker
from parity_tests.speed.worker import Server, serve
from parity_tests.speed.workload import Program

ECHO = """
import sys
for line in sys.stdin:
    print('{"seconds": [' + line.split()[1] + ']}', flush=True)
"""


def python(code):
    return Worker("w: ours", [sys.executable, "-c", code])


def test_a_worker_answers():
    with python(ECHO) as worker:
        assert worker.run(3) == [3]


def test_a_worker_that_dies_says_who_and_why():
    with (
        python("import sys; sys.stdin.readline(); raise SystemError('out of luck')") as worker,
        pytest.raises(ContestantError, match=r"(?s)w: ours died while asked to run.*out of luck.*exit status 1"),
    ):
        worker.run(3)


def test_a_worker_that_is_gone_already():
    with python("import os; os.abort()") as worker:
        worker._process.wait()
        with pytest.raises(ContestantError, match=r"w: ours died while asked to run:\s*\(exit status -6\)"):
            worker.run(3)


def test_a_worker_that_babbles():
    with python("input(); print('hello')") as worker, pytest.raises(ContestantError, match="answered 'hello"):
        worker.run(3)


def test_the_orders(tmp_path):
    calls = []
    program = Program(lambda: calls.append(0), lambda: {"output": np.arange(3.0)})
    answers = io.StringIO()
    orders = io.StringIO(f"prepare {tmp_path / 'o.npz'}\nrun 4\nmemory\n")
    serve(Server(lambda: program, "cpu"), orders, answers)
    prepared, run, memory = map(json.loads, answers.getvalue().splitlines())
    assert set(prepared) == {"build", "first"}
    assert len(run["seconds"]) == 4
    assert len(calls) == 1 + 4 + 1 + 2
    assert set(memory) == {"peak_bytes", "process_bytes"}
    np.testing.assert_array_equal(np.load(tmp_path / "o.npz")["output"], np.arange(3.0))
