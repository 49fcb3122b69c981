"""The command on fake measurements, and the sentences, limits, comparison, turns and processes alone."""

import json
import os
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import limits, measure, training
from benchmarks.limits import jax_program, torch_program
from benchmarks.measure import KEEP_MEMORY, MeasurementError, Worker, require_agreement, take_turns
from benchmarks.records import Entry, Operation, Program, Spread, Workload, add, values
from benchmarks.search import SENTENCES, search_needs
from benchmarks.translators import BUCKETS, FIRST_WORD, W1, W2, J, draw_training
from benchmarks.tuned import reference_model
from train.training.step import label_lens

WORKLOADS = {workload.name: workload for workload in command.WORKLOADS}
ROWS = {
    **{key: {"ours", "reference", "compiled"} for key in ("additive_forward", "additive_backward")},
    **{key: {"ours", "reference", "SDPA"} for key in ("dot_forward", "dot_backward")},
    "masked_softmax": {"ours", "reference", "tuned", "compiled"},
    "w1_train": {"ours", "without attention", "reference", "tuned", "compiled"},
    "w2_train": {"ours", "without attention", "reference", "tuned", "compiled"},
    **{key: {"ours", "tuned", "compiled"} for key in ("j_train", "base_train", "small_train")},
    "recurrent": {"ours", "nn.LSTM"},
    "start": {"w1", "w2"},
    "greedy": {"ours", "tuned", "compiled", "reference"},
    **{key: {"ours", "tuned", "compiled"} for key in ("beam", "transformer_greedy", "transformer_beam")},
}
RATIOS = {
    *("w1_train_vs_reference", "w1_train_vs_tuned", "w2_train_vs_reference", "w2_train_vs_tuned", "j_train_vs_tuned"),
    *("w1_attention_overhead", "w2_attention_overhead", "additive_forward", "additive_backward"),
    *("additive_forward_vs_compiled", "additive_backward_vs_compiled"),
    *("additive_forward_memory", "additive_backward_memory", "dot_forward_vs_sdpa", "dot_backward_vs_sdpa"),
    *("masked_softmax", "recurrent_vs_nn_lstm", "greedy_vs_tuned", "greedy_vs_reference", "beam_vs_tuned"),
    *("w1_start_seconds", "w2_start_seconds", "base_train_vs_nn_transformer", "small_train_vs_nn_transformer"),
    *("transformer_greedy_vs_tuned", "transformer_beam_vs_tuned"),
}
MEASURE, MEASURE_SPEEDS = measure.measure, limits.measure_speeds


@pytest.fixture(autouse=True)
def seconds(monkeypatch):
    """Let every implementation take one second and one megabyte for each letter of its name, or the seconds given here.

    JAX needs a second for each operation, PyTorch two.
    """
    given = {("start", "w1"): 1.0, ("start", "w2"): 4.0}

    def fake(workload, *rest):
        entries = {}
        for name in workload.implementations:
            taken = given.get((workload.name, name), len(name))
            if isinstance(taken, Exception):
                raise taken
            entries[name] = Entry((taken, 2 * taken, taken), len(name) << 20)
        return entries

    monkeypatch.setattr(measure, "measure", fake)
    monkeypatch.setattr(
        limits, "measure_speeds", lambda operations, *_: {key: {"JAX": 1.0, "PyTorch": 2.0} for key in operations}
    )
    return given


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["speed", *map(str, arguments)])
    return command.main()


def test_no_row_has_vanished():
    assert {name: set(workload.implementations) for name, workload in WORKLOADS.items()} == ROWS
    assert {ratio.name for workload in WORKLOADS.values() for ratio in workload.ratios} == RATIOS
    for workload in WORKLOADS.values():
        for ratio in workload.ratios:
            assert {*ratio.above, ratio.below} - {None} <= set(workload.implementations), ratio.name


def test_the_json_and_the_report_have_everything(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, "--json", tmp_path / "all.json") == 0
    written = json.loads((tmp_path / "all.json").read_text())
    assert set(written["ratios"]) == RATIOS
    # in each round: the second is twice as slow
    assert written["ratios"]["w1_train_vs_reference"] == {"median": 9 / 4, "spread": 0, "goal": 5}
    assert written["ratios"]["w1_train_vs_tuned"]["median"] == 5 / 4  # "compiled" is slower
    assert written["ratios"]["additive_forward_memory"]["median"] == 9 / 4
    assert set(written["workloads"]) == set(WORKLOADS)
    assert written["seconds of operations"]["product 64x512x2048"] == {"JAX": 1, "PyTorch": 2}
    softmax = written["workloads"]["masked_softmax"]
    least = sum(WORKLOADS["masked_softmax"].needs.values())  # JAX needs a second for each
    assert softmax["ours"]["share_of_limit"] == pytest.approx(least / 4)
    assert written["workloads"]["w1_train"]["without attention"]["share_of_limit"] is None
    assert {"failures", "cpu", "cores", "versions", "date"} < set(written)
    printed = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines()]
    ratios = {cells[0]: cells[1:] for cells in rows if len(cells) == 7}
    assert set(ratios) >= RATIOS
    ours, theirs = (written["workloads"]["w2_train"][name]["share_of_limit"] for name in ("ours", "reference"))
    assert ratios["w2_train_vs_reference"] == ["2.25×", "0%", "≥ 1.6×", "met", f"{ours:.0%}, {theirs:.0%}", "2.00"]
    assert (ratios["w1_start_seconds"][3], ratios["w2_start_seconds"][3]) == ("met", "missed")
    assert {f"{name} (one {workload.unit})" for name, workload in WORKLOADS.items()} <= {
        cells[0] for cells in rows if cells
    }
    # GFLOP/s of 2 · 1024 · 1024 · 64 operations a second
    assert ["dot_forward", "0.134 / 0.0671", "", "", ""] in rows


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("masked",), ["masked_softmax"]),
        (("w1_attention_overhead",), ["w1_train"]),
        (("w1", "softmax"), ["masked_softmax", "w1_train", "start"]),
        ((), list(WORKLOADS)),
    ],
)
def test_only_takes_workloads_ratios_and_parts_of_them(words, names):
    assert [workload.name for workload in command.select_workloads(words)] == names


def test_wrong_options_say_what_is_wrong(monkeypatch, tmp_path, capsys):
    other = tmp_path / "other.json"
    other.write_text("{}")
    for words, message in (
        (("--only", "masked_softmax", "w7"), "no workload and no ratio contains w7. They are additive_forward"),
        (("--json", other), "the file exists already"),
    ):
        assert run(monkeypatch, *words) == 2
        assert message in capsys.readouterr().err


def test_a_failure_fails_the_run_and_the_others_are_measured(monkeypatch, seconds, capsys):
    seconds["additive_forward", "ours"] = MeasurementError("ours: the error of output is 1")
    assert run(monkeypatch, "--only", "additive") == 1
    printed = capsys.readouterr().out
    assert "FAILED: ours: the error of output is 1" in printed
    assert "additive_backward_memory" in printed


def test_speeds_that_cannot_be_measured_fail_the_run_and_the_ratios_are_printed(monkeypatch, capsys):
    def fail(*arguments):
        raise MeasurementError("speed of JAX failed")

    monkeypatch.setattr(limits, "measure_speeds", fail)
    assert run(monkeypatch, "--only", "softmax") == 1
    printed = capsys.readouterr().out
    assert "FAILED: speed of JAX failed" in printed
    assert "1.25×" in printed


def test_implementations_take_turns_and_the_first_of_many_short_calls_does_not_count():
    order: list[tuple[str, int]] = []

    def make_run(name, seconds):
        def run(times):
            order.append((name, times))
            return [seconds if times > 1 or seconds > 0.3 else 1.5 * seconds] * times

        return run

    taken = take_turns({"a": make_run("a", 0.1), "b": make_run("b", 2.0), "c": make_run("c", 3.0)}, rounds=2)
    assert taken == {"a": [0.1] * 2, "b": [2.0] * 2, "c": [3.0] * 2}
    a, b, c = [("a", 1), ("a", 2)], ("b", 1), ("c", 1)
    assert order == [a[0], b, c, *a, b, c, b, c, *a]
    assert take_turns({"a": lambda times: [0.0] * times}, rounds=1) == {"a": [0.0]}


def test_the_spread_is_the_distance_between_the_quartiles():
    assert Spread.of([1.0, 2.0, 3.0, 4.0, 100.0]) == Spread(3.0, 2.0)
    assert Spread.of([2.0]) == Spread(2.0, 0.0)


EXPECTED = {"output": np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"output": EXPECTED["output"] + np.float32(1e-3)}, "the error of output is 0.00025"),
        ({"output": EXPECTED["output"] * np.nan}, "the error of output is nan"),
        ({"output": EXPECTED["output"][:1]}, r"the outputs are {'output': \(1, 2\)}, expected {'output': \(2, 2\)}"),
        ({"other": EXPECTED["output"]}, "the outputs are {'other'"),
    ],
)
def test_a_difference_is_an_error(found, words):
    with pytest.raises(MeasurementError, match=words):
        require_agreement("w", found, EXPECTED)
    near = {"output": EXPECTED["output"] + np.float32(4e-6)}
    require_agreement("w", near, EXPECTED)
    with pytest.raises(MeasurementError, match="the error of output is 1e-06"):
        require_agreement("w", near, EXPECTED, bound=9e-7)


def test_where_ids_may_differ_their_scores_may_too():
    expected = {"scores": np.ones(40, np.float32), "ids": np.zeros((40, 3), np.int64)}
    found = {name: x.copy() for name, x in expected.items()}
    found["ids"][7, 1], found["scores"][7] = 5, 9.0
    require_agreement("w", found, expected, differing_ids=0.03)
    with pytest.raises(MeasurementError, match="differs in 1 of 40 examples"):
        require_agreement("w", found, expected)
    found["scores"][8] = 1.1
    with pytest.raises(MeasurementError, match=r"the error of scores is 0\.1"):
        require_agreement("w", found, expected, differing_ids=0.03)


@pytest.mark.parametrize("translator", [W1, W2, J], ids=lambda translator: translator.name)
def test_sentences_are_words_and_adam_copies_every_parameter(translator):
    for group in draw_training(translator.name):
        for ids, lens, first in ((group.sources, group.source_lens, 0), (group.targets, group.target_lens, 1)):
            assert ((ids[..., first:] >= FIRST_WORD) & (ids[..., first:] < translator.vocab_size)).all()
            assert lens.max() <= ids.shape[-1]
    counted = sum(p.numel() for p in reference_model(translator).parameters())
    needs = training.step_needs(translator)
    ((copied, times),) = ((o.shape[0], times) for o, times in needs.items() if o.name == "copy")
    assert (copied, times) == (pytest.approx(counted, rel=0.05), 3.5)


def test_the_inputs_have_the_promised_sizes():
    (group,) = draw_training("w1")
    assert group.sources.shape == (16, 64, 10)
    assert (group.target_lens > 0).sum() == (group.source_lens > 0).sum() == 1000
    longest = 0
    for group, steps in zip(draw_training("j"), BUCKETS.values(), strict=True):  # sorted, of 2048 padded tokens
        count, rows, length = group.sources.shape
        assert count == steps
        assert 2048 - length < rows * length <= 2048
        assert group.source_lens.min() > longest
        longest = group.source_lens.max()
        assert label_lens(group).sum() > 0.7 * rows * length * count


def products(needs):
    return {operation.shape: times for operation, times in needs.items() if operation.name == "product"}


def test_the_limit_has_the_products_that_occur():
    recurrent = {
        (1920, 256, 2048): 1,  # the inputs of the first layer, all steps at once
        (1920, 2048, 256): 1,  # their gradient
        (256, 1920, 2048): 1,  # and that of the weights
        (1920, 512, 2048): 1,  # the same for the second layer
        (1920, 2048, 512): 1,
        (64, 512, 2048): 2 * 30,  # each step of both layers
        (64, 2048, 512): 2 * 30,
        (512, 1920, 2048): 1 + 2,  # the second layer's weights, and both layers' recurrent ones
    }
    assert products(WORKLOADS["recurrent"].needs) == recurrent
    assert products(WORKLOADS["dot_forward"].needs) == {(1024, 64, 1024): 64, (1024, 1024, 64): 64}
    assert sum(products(WORKLOADS["dot_backward"].needs).values()) == 7 * 64
    w2 = products(training.step_needs(W2))
    assert all(w2[shape] >= times for shape, times in recurrent.items())
    assert w2[1920, 512, 8000] == w2[1920, 8000, 512] == w2[512, 1920, 8000] == 1  # the output layer
    assert w2[64, 1024, 2048] == 2 * 30  # each step of both layers of the decoder
    assert products(search_needs(W2, 5)) == {
        (320, *shape): 30 / SENTENCES for shape in ((1280, 2048), (1024, 2048), (512, 512), (512, 8000))
    }


def test_the_softmax_needs_one_exp_and_one_read_for_each_score_within_its_length_and_one_write_for_every_weight():
    needs = {operation.name: times * operation.amount for operation, times in WORKLOADS["masked_softmax"].needs.items()}
    within = 512 * sum((128, 183, 238, 293, 348, 403, 458, 512))
    assert needs == {"exp": within, "copy": 4 * within + 4 * 8 * 512 * 512}


def test_the_faster_framework_counts_in_each_operation_alone():
    small, large = Operation("product", (1, 1, 1)), Operation("product", (2, 2, 2))
    speeds = {small: {"JAX": 1.0, "PyTorch": 2.0}, large: {"JAX": 5.0, "PyTorch": 3.0}}
    needs = add({small: 2.0}, {large: 1.0})
    assert limits.least_seconds(needs, speeds) == 2 * 1 + 3
    assert limits.rates(needs, speeds, "product") == {"JAX": (2 * 2 + 16) / 7, "PyTorch": (2 * 2 + 16) / 7}
    assert limits.least_seconds(add(needs, values("tanh", 1.0)), speeds) is None


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize(("name", "shape"), [("product", (3, 4, 5)), ("tanh", (8,)), ("exp", (8,)), ("copy", (8,))])
def test_the_programs_of_operations_repeat_them(monkeypatch, name, shape, is_transposed):
    monkeypatch.setattr(limits, "repeats", lambda operation: 3)
    found = jax_program(Operation(name, shape), is_transposed).run()
    if name == "product":
        assert found[1] == pytest.approx(np.ones((5, 3) if is_transposed else (3, 5)), abs=1e-6)
    elif name == "copy":
        assert (np.asarray(found) == 3).all()
    else:
        x, function = np.linspace(-2, 2, 8), getattr(np, name)
        assert float(found) == pytest.approx(sum(function(x + i * 1e-3).sum() for i in range(3)), rel=1e-5, abs=1e-5)
    torch_program(Operation(name, shape), is_transposed).run()


MB = 2**20


def hold_64_mb():
    first = np.ones(64 * MB, np.uint8)
    return first + first  # another 64 MB at the same time


def constant(value):
    return Program(lambda: {"output": np.full(3, value)})


def environment():
    return {name: x for name, x in os.environ.items() if name in (*KEEP_MEMORY, "XLA_FLAGS")}


@pytest.mark.slow
def test_what_computes_another_result_is_not_timed():
    def workload(ours):
        implementations = {"ours": partial(constant, ours), "tuned": partial(constant, 2.0)}
        return Workload("w", "call", implementations, (), units=2)

    entries = MEASURE(workload(2.0), 3, lambda doing: None)
    assert {name: len(entry.seconds) for name, entry in entries.items()} == {"ours": 3, "tuned": 3}
    with pytest.raises(MeasurementError, match=r"w: ours: the error of output is 0\.5"):
        MEASURE(workload(1.0), 3, lambda doing: None)


@pytest.mark.slow
def test_all_processes_have_the_same_environment_and_say_why_they_failed():
    with Worker("w: ours") as one, Worker("w: tuned") as other:
        assert one.ask(os.getpid) != other.ask(os.getpid) != os.getpid()
        assert one.ask(environment) == other.ask(environment)
        assert one.ask(environment).items() >= KEEP_MEMORY.items()
        assert "MALLOC_ARENA_MAX" not in os.environ
        with pytest.raises(MeasurementError, match=r"(?s)w: ours failed: .*invalid literal for int"):
            one.ask(int, "three")
        with pytest.raises(MeasurementError, match=r"(?s)w: ours failed: .*terminated abruptly"):
            one.ask(os.abort)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the high-water mark")
@pytest.mark.slow
def test_the_peak_is_that_of_the_call():
    with Worker("peak") as worker:  # in this process other tests' threads free memory at the same time
        assert 120 * MB < worker.ask(measure.peak_memory, hold_64_mb) < 160 * MB


@pytest.mark.slow
def test_a_workload_is_measured_in_processes_of_its_own():
    workload = WORKLOADS["masked_softmax"]
    workload = replace(workload, ratios=(replace(workload.ratios[0], memory=True),))
    entries = MEASURE(workload, 3, lambda doing: None)
    assert set(entries) >= {"ours", "reference", "tuned"}
    assert all(len(entry.seconds) == 3 for entry in entries.values())
    assert all(entry.peak_bytes > 7 << 20 for entry in entries.values())


@pytest.mark.slow
def test_the_speed_of_an_operation_is_measured_in_both_frameworks():
    product = Operation("product", (256, 256, 256))
    ((operation, seconds),) = MEASURE_SPEEDS([product], lambda doing: None).items()
    assert operation == product
    assert {name: s > 1e-6 for name, s in seconds.items()} == {"JAX": True, "PyTorch": True}
