"""The command: what it is asked for, what it writes, and what it does when something fell."""

import importlib
import json
import sys
from dataclasses import replace

import pytest

from parity_tests.speed import __main__ as command
from parity_tests.speed import kept, sitting
from parity_tests.speed.agreement import DisagreementError
from parity_tests.speed.measure import Entry, Measured, measure, why_not
from parity_tests.speed.processes import ContestantError
from parity_tests.speed.rounds import Spread
from parity_tests.speed.tables import as_json
from parity_tests.speed.workloads import ALL_RATIOS, CEILING_WORKLOADS, NAMES, RATIOS, WORKLOADS, find_workload

KEYS = {
    *("w1_train_vs_seed", "w1_train_vs_tuned", "w2_train_vs_seed", "w2_train_vs_tuned"),
    *("w1_attention_overhead", "w2_attention_overhead", "additive_forward", "additive_backward"),
    *("additive_forward_vs_compiled", "additive_backward_vs_compiled"),
    *("additive_forward_memory", "additive_backward_memory", "dot_forward", "dot_backward", "masked_softmax"),
    *("j_train_vs_tuned", "greedy_vs_tuned", "greedy_vs_seed", "beam_vs_tuned"),
    *("w1_start_seconds", "w2_start_seconds"),
}


def canned(workload, device="cpu", compiler=None, say=None):
    """Every contestant takes as many milliseconds as its name has letters, and a megabyte for each."""
    entries = {
        contestant.name: Entry((len(contestant.name) * 1e-3,) * 3, 0.1, len(contestant.name) << 20, None, 0.0)
        for contestant in workload.contestants
    }
    return Measured(workload, entries)


@pytest.fixture
def canned_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(sitting, "measure", canned)
    start = {"imports": Spread.of([0.5]), "w1": Spread.of([0.3]), "w2": Spread.of([1.5])}
    monkeypatch.setattr(sitting, "measure_start", lambda device, rounds, say: start)
    monkeypatch.setattr(sitting, "find_device", lambda: "cpu")
    for module in (command, kept):
        monkeypatch.setattr(module, "KEPT_FILE", tmp_path / "kept.json")
    monkeypatch.setattr(kept.keep, "__defaults__", (tmp_path / "kept.json",))
    monkeypatch.setattr(kept.compare_with_kept, "__defaults__", (tmp_path / "kept.json",))


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["speed", *arguments])
    return command.main()


def test_the_registry_is_whole():
    assert {ratio.name for ratio in ALL_RATIOS} == KEYS
    for ratio in RATIOS:
        names = {contestant.name for contestant in find_workload(ratio.workload).contestants}
        assert {*ratio.above, ratio.below} <= names, ratio.name
    for workload in (*WORKLOADS, *CEILING_WORKLOADS):
        for contestant in workload.contestants:
            module, _, function = contestant.build.partition(":")
            assert callable(getattr(importlib.import_module(f"parity_tests.speed.{module}"), function))


def test_the_json_has_every_ratio(monkeypatch, tmp_path, canned_machine):
    assert run(monkeypatch, "--json", str(tmp_path / "all.json")) == 0
    written = json.loads((tmp_path / "all.json").read_text())
    assert set(written["ratios"]) == KEYS
    assert written["ratios"]["w1_train_vs_seed"] == 1.0  # both have four letters
    assert written["ratios"]["w1_train_vs_tuned"] == pytest.approx(5 / 4)
    assert written["ratios"]["additive_forward_memory"] == 1.0
    assert written["ratios"]["w2_start_seconds"] == 1.5
    assert written["met"]["w1_start_seconds"] is True
    assert written["met"]["w2_start_seconds"] is False
    assert set(written["workloads"]) == set(NAMES) - {"start"}
    assert set(written["ceilings"]) == {"gemm", "small gemm", "tanh", "copy"}


def test_the_report_names_every_workload_and_who_did_not_take_part(monkeypatch, capsys, canned_machine):
    def without_a_compiler(workload, *rest):
        result = canned(workload)
        result.left_out["compiled"] = "no C++ compiler was found, which torch.compile needs"
        return result

    monkeypatch.setattr(sitting, "measure", without_a_compiler)
    assert run(monkeypatch) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for name in set(NAMES) - {"start"}:
        assert any(line.split(",")[0] == name for line in lines), name
    assert "left out of masked_softmax: compiled: no C++ compiler was found, which" in lines  # and so on, in 80 columns


def test_what_was_not_measured_is_null():
    results = [canned(find_workload("masked_softmax"))]
    written = as_json(sitting.Sitting("cpu", None, print, results), {})
    assert set(written["ratios"]) == KEYS
    assert {name for name, value in written["ratios"].items() if value is not None} == {"masked_softmax"}


def test_only_takes_workloads_ratios_and_parts_of_them():
    assert command.selected(("masked",)) == ["masked_softmax"]
    assert command.selected(("w1_attention_overhead",)) == ["w1_train"]
    assert command.selected(("w1",)) == ["w1_train", "start"]
    assert command.selected(()) == list(NAMES)
    assert set(command.selected((), small=True)) < set(NAMES)


def test_an_unknown_name_is_an_error_that_lists_the_names(monkeypatch, capsys):
    assert run(monkeypatch, "--only", "masked_softmax", "w7") == 2
    error = capsys.readouterr().err
    assert "nothing is called like w7" in error
    assert "w1_train" in error
    assert "w1_attention_overhead" in error


def test_a_planted_regression_fails_the_check(monkeypatch, capsys, canned_machine):
    assert run(monkeypatch, "--check") == 2
    assert "--keep" in capsys.readouterr().err
    assert run(monkeypatch, "--keep") == 0
    assert run(monkeypatch, "--check") == 0

    def slower(workload, *rest):
        result = canned(workload)
        if workload.name == "masked_softmax":
            entry = result.entries["ours"]
            result.entries["ours"] = Entry(tuple(2 * s for s in entry.seconds), 0.1, entry.peak_bytes, None, 0.0)
        return result

    monkeypatch.setattr(sitting, "measure", slower)
    capsys.readouterr()
    assert run(monkeypatch, "--check") == 1
    fell = [line for line in capsys.readouterr().out.splitlines() if "FELL" in line]
    assert len(fell) == 1
    assert fell[0].startswith("masked_softmax: 1 kept, 0.5 now")


def test_contestants_that_disagree_or_die_fail_the_run(monkeypatch, capsys, canned_machine):
    for error in (DisagreementError("ours: output is 1 from"), ContestantError("w: seed died")):

        def broken(workload, *rest, error=error):
            if workload.name == "additive_forward":
                raise error
            return canned(workload)

        monkeypatch.setattr(sitting, "measure", broken)
        assert run(monkeypatch, "--only", "additive") == 1
        printed = capsys.readouterr().out
        assert f"FAILED: {error}" in printed
        assert "additive_backward_memory" in printed  # the others were measured all the same


@pytest.mark.slow
def test_a_workload_is_measured_in_processes_of_its_own():
    said = []
    result = measure(replace(find_workload("masked_softmax"), rounds=2), "cpu", None, said.append)
    assert set(result.entries) == {"ours", "seed", "tuned", "naive jnp"}
    assert set(result.left_out) == {"compiled"}
    assert all(len(entry.seconds) == 2 for entry in result.entries.values())
    assert "masked_softmax: round 2 of 2" in said
    assert all(entry.peak_bytes > 7 << 20 for entry in result.entries.values())


def test_what_needs_a_compiler_takes_no_part_without_one():
    workload = find_workload("additive_forward")
    assert not any(why_not(c, device, "c++") for c in workload.contestants for device in ("cpu", "cuda"))
    assert {c.name for c in workload.contestants if why_not(c, "cuda", None)} == {"compiled"}


def test_without_a_compiler_the_best_of_the_others_counts():
    result = canned(find_workload("w1_train"))
    ratio = next(ratio for ratio in RATIOS if ratio.name == "w1_train_vs_tuned")
    with_compiler = result.ratio(ratio)
    del result.entries["compiled"]
    assert result.ratio(ratio) == with_compiler  # "tuned" is the shorter word
    del result.entries["tuned"]
    assert result.ratio(ratio) is None
