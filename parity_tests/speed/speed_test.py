"""The command: what it measures, what it writes, and its exit status."""

import json
import sys

import pytest

from parity_tests.speed import __main__ as command
from parity_tests.speed import measure, start
from parity_tests.speed.inputs import W1
from parity_tests.speed.kept import compare_with_kept, keep
from parity_tests.speed.measure import DisagreementError, Entry, Measured, Run, Spread
from parity_tests.speed.process import WorkerError
from parity_tests.speed.records import Ratio
from parity_tests.speed.report import make_json
from parity_tests.speed.workloads import ALL_RATIOS, NAMES, RATIOS, find_workload

KEYS = {
    *("w1_train_vs_reference", "w1_train_vs_tuned", "w2_train_vs_reference", "w2_train_vs_tuned", "j_train_vs_tuned"),
    *("w1_attention_overhead", "w2_attention_overhead", "additive_forward", "additive_backward"),
    *("additive_forward_vs_compiled", "additive_backward_vs_compiled"),
    *("additive_forward_memory", "additive_backward_memory", "dot_forward_vs_sdpa", "dot_backward_vs_sdpa"),
    *("masked_softmax", "recurrent_vs_nn_lstm", "greedy_vs_tuned", "greedy_vs_reference", "beam_vs_tuned"),
    *("w1_start_seconds", "w2_start_seconds"),
}


def fake_measure(workload, *rest):
    """Every implementation takes one millisecond and one megabyte for each letter of its name."""
    entries = {
        implementation.name: Entry((len(implementation.name) * 1e-3,) * 3, 0.1, len(implementation.name) << 20)
        for implementation in workload.implementations
    }
    return Measured(workload, entries, {"compiled": "no compiler"} if workload.name == "masked_softmax" else {})


@pytest.fixture(autouse=True)
def fake_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "measure", fake_measure)
    monkeypatch.setattr(measure, "measure_start", lambda device, rounds, report: {"w1": [0.3], "w2": [3.5]})
    monkeypatch.setattr(measure, "find_device", lambda: "cpu")
    monkeypatch.setattr(command, "KEPT_FILE", tmp_path / "kept.json")


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["speed", *arguments])
    return command.main()


def test_every_ratio_has_its_implementations():
    assert {ratio.name for ratio in ALL_RATIOS} == KEYS
    for ratio in RATIOS:
        names = {implementation.name for implementation in find_workload(ratio.workload).implementations}
        assert {*ratio.numerator, ratio.denominator} <= names, ratio.name


def test_the_json_and_the_report_have_everything(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, "--json", str(tmp_path / "all.json")) == 0
    written = json.loads((tmp_path / "all.json").read_text())
    assert set(written["ratios"]) == KEYS
    assert written["ratios"]["w1_train_vs_reference"] == pytest.approx(9 / 4)  # "reference" has 9 letters, "ours" 4
    assert written["ratios"]["w1_train_vs_tuned"] == pytest.approx(5 / 4)
    assert written["ratios"]["additive_forward_memory"] == 9 / 4
    assert written["met"]["w1_start_seconds"] is True
    assert written["met"]["w2_start_seconds"] is False
    assert set(written["workloads"]) == set(NAMES) - {"start"}
    assert set(written["ceilings"]) == {"gemm", "small gemm", "tanh", "copy"}
    lines = capsys.readouterr().out.splitlines()
    for name in set(NAMES) - {"start"}:
        assert any(line.startswith(f"{name} (") for line in lines), name
    assert any(line.startswith("left out of masked_softmax: compiled (no compiler)") for line in lines)


def test_what_was_not_measured_is_null():
    written = make_json(Run("cpu", [fake_measure(find_workload("masked_softmax"))]), {})
    assert set(written["ratios"]) == KEYS
    assert {name for name, value in written["ratios"].items() if value is not None} == {"masked_softmax"}


def test_only_takes_workloads_ratios_and_parts_of_them():
    assert command.select_workloads(("masked",)) == ["masked_softmax"]
    assert command.select_workloads(("w1_attention_overhead",)) == ["w1_train"]
    assert command.select_workloads(("w1",)) == ["w1_train", "start"]
    assert command.select_workloads(()) == list(NAMES)
    assert set(command.select_workloads((), small=True)) < set(NAMES)


def test_an_unknown_name_is_an_error_that_lists_the_names(monkeypatch, capsys):
    assert run(monkeypatch, "--only", "masked_softmax", "w7") == 2
    error = capsys.readouterr().err
    assert "no workload and no ratio contains w7" in error
    assert "w1_train" in error
    assert "w1_attention_overhead" in error


def test_a_regression_fails_the_check(monkeypatch, capsys):
    assert run(monkeypatch, "--check") == 2
    assert "--keep" in capsys.readouterr().err
    assert run(monkeypatch, "--keep") == 0
    assert run(monkeypatch, "--check") == 0

    def slower(workload, *rest):
        result = fake_measure(workload)
        if workload.name == "masked_softmax":
            result.entries["ours"] = Entry((8e-3,) * 3)
        return result

    monkeypatch.setattr(measure, "measure", slower)
    capsys.readouterr()
    assert run(monkeypatch, "--check") == 1
    (fell,) = (line for line in capsys.readouterr().out.splitlines() if "FELL" in line)
    assert fell.startswith("masked_softmax: 2.25 kept, 1.12 now")


@pytest.mark.parametrize("error", [DisagreementError("ours: the error of output is 1"), WorkerError("w: ours failed")])
def test_a_failure_fails_the_run_and_the_others_are_measured(monkeypatch, capsys, error):
    def broken(workload, *rest):
        if workload.name == "additive_forward":
            raise error
        return fake_measure(workload)

    monkeypatch.setattr(measure, "measure", broken)
    assert run(monkeypatch, "--only", "additive") == 1
    printed = capsys.readouterr().out
    assert f"FAILED: {error}" in printed
    assert "additive_backward_memory" in printed


HIGH = Ratio("high", "w", ("reference",), small=True)
LOW = Ratio("low", "w", ("ours",), "without", lower_is_better=True, small=True)
MACHINE = {"cpu": "a", "cores": 2, "device": "cpu", "gpu": None}


@pytest.mark.parametrize(
    ("now", "fallen"),
    [
        ({HIGH: Spread(10.0), LOW: Spread(1.2)}, []),
        ({HIGH: Spread(8.5), LOW: Spread(1.2)}, ["high"]),
        ({HIGH: Spread(20.0), LOW: Spread(1.4)}, ["low"]),  # more overhead is worse
        ({LOW: Spread(0.6)}, []),
        ({HIGH: Spread(8.5, 2.0)}, []),  # within the noise
        ({HIGH: Spread(7.5, 2.0)}, ["high"]),
        ({HIGH: Spread(float("nan"))}, ["high"]),
    ],
)
def test_a_ratio_falls_by_more_than_the_noise(tmp_path, now, fallen):
    file = tmp_path / "kept.json"
    keep({HIGH: Spread(10.0, 0.1), LOW: Spread(1.2, 0.01)}, MACHINE, file)
    comparisons, warnings = compare_with_kept(now, MACHINE, file)
    assert ([comparison.ratio.name for comparison in comparisons if comparison.fell], warnings) == (fallen, [])


def test_another_machine_and_a_ratio_that_was_not_kept_give_warnings(tmp_path):
    file = tmp_path / "kept.json"
    keep({HIGH: Spread(10.0)}, MACHINE, file)
    now = {HIGH: Spread(5.0), LOW: Spread(1.0)}
    comparisons, (unknown, machine) = compare_with_kept(now, {**MACHINE, "cores": 64}, file)
    assert [comparison.fell for comparison in comparisons] == [True]
    assert unknown.startswith("low: not kept")
    assert "a, 2 cores, no GPU; this is a, 64 cores" in machine


def test_a_first_step_that_fails_says_why(monkeypatch, tmp_path):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho no luck >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(WorkerError, match=r"(?s)start: the process failed before .*no luck"):
        start.time_first_step(W1, {})
