"""A training that begins with another run."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from train import nmt


@pytest.mark.parametrize("average", ["0", "0.5"])
@pytest.mark.slow
def test_a_training_begins_with_the_parameters_and_vocabularies_of_a_run(run, tmp_path, average):
    start, out = run[0], tmp_path / "tuned"
    unchanged = ["--training.learning-rate", "1e-30", "--training.average", average, "--max-steps", "2"]
    assert nmt.main(["--init", str(start), *unchanged, "--seed", "7", "--out", str(out)]) == 0
    ours, theirs = load_file(out / "model.safetensors"), load_file(start / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-6, err_msg=name)
    for name in ("source.json", "target.json"):
        assert (out / name).read_bytes() == (start / name).read_bytes()
    assert json.loads((out / "config.json").read_text())["init"] == str(start)


@pytest.mark.slow
def test_a_training_that_ends_before_its_first_checkpoint_begins_with_the_run_again(run, tmp_path, monkeypatch):
    start, out = run[0], tmp_path / "tuned"
    with monkeypatch.context() as patch:
        patch.setattr("train.training.loop.JaxLearner._take_steps", lambda *_: 1 / 0)
        assert nmt.main(["--init", str(start), "--training.learning-rate", "1e-30", "--out", str(out)]) == 1
    assert nmt.main(["--resume", str(out), "--max-steps", "2"]) == 0
    ours, theirs = load_file(out / "model.safetensors"), load_file(start / "model.safetensors")
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model.cell", "lstm"], "must have its --model.cell gru, not lstm"),
        (["--model.family", "transformer"], "must have its --model.family recurrent"),
        (["--corpus.tokenizer", "bpe"], "must have its --corpus.tokenizer words, not bpe"),
    ],
)
def test_another_model_or_tokenizer_is_an_error(run, tmp_path, capsys, options, message):
    assert nmt.main(["--init", str(run[0]), *options, "--out", str(tmp_path / "tuned")]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_run_is_an_error(run, tmp_path, capsys):
    start = tmp_path / "start"
    shutil.copytree(run[0], start)
    content = bytearray((start / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (start / "model.safetensors").write_bytes(content)
    assert nmt.main(["--init", str(start), "--out", str(tmp_path / "tuned")]) == 2
    assert "model.safetensors is damaged" in capsys.readouterr().err
    assert not (tmp_path / "tuned").exists()
