"""Runs of a Transformer: all that a run can do, by the code of the recurrent family."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from train import evaluate, nmt
from train.conftest import OPTIONS, save_untrained, translate_as_in_pytorch
from train.data.embedded import embedded_pairs
from train.runs.run_folder import RunFolder
from train.setting import ConfigError
from train.translate import Translator, main

SENTENCES = [pair.source for pair in embedded_pairs()[-6:]]
MODEL = "--model.family transformer --model.num-layers 1 --model.num-heads 2 --model.norm pre --search.beam-size 3"
MODEL += " --model.dropout 0.1 --model.dropout-attention 0.1 --model.dropout-hidden 0.1"
LEARNT = ["--model.positions", "learnt", "--model.max-len", "20"]


@pytest.fixture(scope="module")
def transformer(tmp_path_factory):
    """Train a small Transformer with learnt positions on the pairs of the fixture `run`. Return its folder."""
    folder = tmp_path_factory.mktemp("small") / "transformer"
    no_test = ["--corpus.test", "0"]  # which a run of the slow tests has
    assert nmt.main([*OPTIONS, *MODEL.split(), *LEARNT, *no_test, "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """Save such a Transformer with drawn weights. Return its folder."""
    return save_untrained(tmp_path_factory.mktemp("untrained"), [*OPTIONS, *MODEL.split(), *LEARNT])


def test_a_transformer_is_saved_and_translates_as_in_pytorch(untrained):
    run = RunFolder(untrained).load()
    assert (run.model.family, run.model.norm, run.model.longest) == ("transformer", "pre", 20)
    assert run.weights["encoder.position_embedding.weight"].shape == (20, 16)
    translate_as_in_pytorch(untrained, SENTENCES[:2])


@pytest.mark.slow
def test_a_transformer_runs_to_its_end_and_translates_as_in_pytorch(transformer):
    metrics = [json.loads(line) for line in (transformer / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["valid_loss"] < metrics[0]["valid_loss"]
    translate_as_in_pytorch(transformer, SENTENCES[:2])


def test_more_tokens_than_learnt_positions_are_an_error_before_anything_is_computed(
    untrained, tmp_path, monkeypatch, capsys
):
    short = [*LEARNT[:3], "12"]
    assert nmt.main([*OPTIONS, *MODEL.split(), *short, "--out", str(tmp_path / "run")]) == 2
    assert "model.max-len, the number of learnt positions, must be at least " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main([str(untrained), "--max-len", "21", SENTENCES[0]]) == 2
    assert "--max-len must be at most 20, the learnt positions; got 21" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="max_len must be at most 20, the learnt positions; got 21"):
        Translator.load(untrained, max_len=21)
    monkeypatch.setattr(Translator, "__call__", None)
    (tmp_path / "pairs.txt").write_text("the cat sleeps .\t" + 20 * "le " + "\n")
    assert evaluate.main([str(untrained), "--data", str(tmp_path / "pairs.txt")]) == 2
    assert "a reference has 21 tokens, <eos> included, and the model has learnt 20 positions" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_begins_with_a_transformer_lowers_its_rate_and_stops_early(transformer, tmp_path, capsys):
    out = tmp_path / "tuned"
    unchanged = (
        "--training.learning-rate 1e-30 --training.average 0.5 --training.schedule plateau --training.patience 3"
    )
    unchanged += " --training.warmup 0 --training.plateau-patience 0 --epochs 9"
    assert nmt.main(["--init", str(transformer), *unchanged.split(), "--out", str(out)]) == 0
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 4
    ours, theirs = load_file(out / "model.safetensors"), load_file(transformer / "model.safetensors")
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-6, err_msg=name)
    assert nmt.main(["--init", str(transformer), "--model.family", "recurrent", "--out", str(tmp_path / "other")]) == 2
    assert "must have its --model.family transformer" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_goes_on_ends_as_one_that_never_stopped(transformer, tmp_path):
    folder = shutil.copytree(transformer, tmp_path / "run")
    assert nmt.main(["--resume", str(folder), "--epochs", "5"]) == 0
    constant = ["--training.schedule", "constant", "--training.average", "0.9"]
    for name, epochs in (("whole", "4"), ("part", "2")):
        options = [*OPTIONS, *MODEL.split(), *constant, "--epochs", epochs, "--out", str(tmp_path / name)]
        assert nmt.main(options) == 0
    assert nmt.main(["--resume", str(tmp_path / "part"), "--epochs", "4"]) == 0
    ours, theirs = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("part", "whole"))
    assert ours == theirs


@pytest.mark.slow
def test_a_recurrent_run_and_a_transformer_translate_together_and_are_compared(transformer, run, capsys):
    capsys.readouterr()
    assert main([str(run[0]), "--ensemble", str(transformer), "--beam", "3", *SENTENCES]) == 0
    found = capsys.readouterr().out.splitlines()
    assert [one.text for one in Translator.load(run[0], transformer, beam_size=3)(SENTENCES)] == found
    assert evaluate.main([str(run[0]), "--compare", str(transformer), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["compared_with"]["pairs"] == 16
    with pytest.raises(ConfigError, match="max_len must be at most 20, the learnt positions; got 21"):
        Translator.load(run[0], transformer, max_len=21)
