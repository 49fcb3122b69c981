"""Whole runs of a small model, and the errors of runs that cannot be."""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from safetensors.numpy import load_file

from train import nmt
from train.conftest import OPTIONS, translate_as_in_pytorch
from train.data import dataset
from train.data.corpus import Alignment
from train.data.tokens import detokenize
from train.machine.whole_files import DamageError, check
from train.runs.run_folder import RunFolder, read_manifest
from train.setting import ConfigError
from train.training.report import DivergenceError
from train.translate import Translator
from train.translating.metrics import alignment_error_rate, score_texts

SMALL = ["--corpus.train", "96", "--corpus.valid", "16", "--corpus.test", "16", "--epochs", "2"]
SMALL += ["--model.num-hiddens", "16", "--model.embed-size", "8", "--search.batch-size", "8"]
FRA = Path(__file__).parents[2] / "shared" / "data" / "fra.txt"
needs_fra = pytest.mark.skipif(not FRA.exists(), reason=f"the English-French corpus is not at {FRA}")


def train(tmp_path: Path, *options: str) -> dict:
    """Run into tmp_path/run without an error, and return the summary."""
    out = tmp_path / "run"
    assert nmt.main([*options, "--out", str(out)]) == 0
    return json.loads((out / "summary.json").read_text(encoding="utf-8"))


def test_a_run_leaves_every_file_that_it_promises(run):
    folder, _ = run
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "source.json", "target.json", "manifest.json", "metrics.jsonl", "tensorboard", "checkpoint",
        "model.safetensors", "learning_curve.png", "attention.png", "test.jsonl", "summary.json",
    }  # fmt: skip
    for name in ("attention.png", "learning_curve.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    listed = read_manifest(folder)
    check(folder, listed)
    assert listed.keys() == {
        "config.json", "source.json", "target.json", "model.safetensors", "test.jsonl", "summary.json",
    }  # fmt: skip


@pytest.mark.parametrize("content", [None, '{"step": 1}\n', '{"step": 1}\n{"step\n', "[]\n[]\n"])
def test_metrics_that_are_damaged_are_an_error(tmp_path, content):
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content)
    with pytest.raises(DamageError, match=r"metrics\.jsonl is damaged: "):
        RunFolder(tmp_path).cut_metrics(2)


def test_a_refused_resume_changes_nothing_in_the_folder_of_the_training_that_runs(run, tmp_path, capsys):
    folder = shutil.copytree(run[0], tmp_path / "run")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with RunFolder(folder).lock():
        assert nmt.main(["--resume", str(folder), "--epochs", "4"]) == 2
    assert f"error: {folder} is in use: another process trains in it" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("change", ["metrics", pytest.param("checkpoint", marks=pytest.mark.slow)])
def test_a_resume_refuses_changed_metrics_and_the_checkpoint_of_another_run(run, tmp_path, capsys, change):
    folder = shutil.copytree(run[0], tmp_path / "run")
    if change == "metrics":
        path = folder / "metrics.jsonl"
        path.write_text(path.read_text().replace('"epoch": 1', '"epoch": 2'))
    else:
        other = tmp_path / "other"
        assert nmt.main([*OPTIONS, "--seed", "7", "--out", str(other)]) == 0
        shutil.rmtree(folder / "checkpoint")
        shutil.copytree(other / "checkpoint", folder / "checkpoint")
    capsys.readouterr()
    assert nmt.main(["--resume", str(folder), "--epochs", "4"]) == 2
    assert "metrics.jsonl are not those that were written before the checkpoint" in capsys.readouterr().err


def test_the_summary_holds_the_results(run):
    folder, summary = run
    for name in ("loss", "bleu", "chrf", "alignment_error_rate", "seconds", "tokens_per_second"):
        assert isinstance(summary[name], float), name
    assert len(summary["translations"]) == 8
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in metrics] == [1, 2, 3]
    assert metrics[-1]["loss"] == summary["loss"] < metrics[0]["loss"]
    assert summary["attention_parameters"] == 2 * 32 * 32 + 32


def test_the_test_set_is_left_with_its_translations_and_links(run):
    folder, summary = run
    lines = [json.loads(line) for line in (folder / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 16
    texts = [detokenize(line["translation"]) for line in lines]
    assert texts[:8] == [row["translation"] for row in summary["translations"]]
    scores = score_texts(texts, [detokenize(line["reference"]) for line in lines], lower_case=True)
    assert scores.bleu == pytest.approx(summary["bleu"], abs=1e-9)
    links = [{(i, j) for i, j in line["links"]} for line in lines]
    assert all(len(found) == len(line["reference"]) for found, line in zip(links, lines, strict=True))
    gold = [Alignment(*(frozenset((i, j) for i, j in line[name]) for name in ("sure", "possible"))) for line in lines]
    assert alignment_error_rate(links, gold) == summary["alignment_error_rate"]


def test_the_weights_are_under_pytorchs_names_and_the_size_of_the_vocabularies(run):
    folder, summary = run
    weights = load_file(folder / "model.safetensors")
    words = json.loads((folder / "target.json").read_text(encoding="utf-8"))
    assert weights["decoder.dense.weight"].shape == (len(words), 32)
    assert weights["encoder.rnn.weight_hh_l0_reverse"].shape == (48, 16)
    assert all(np.isfinite(array).all() for array in weights.values())
    assert summary["parameters"] == sum(array.size for array in weights.values())


def test_a_run_can_be_loaded_and_translates_as_it_did(run, tmp_path):
    folder, summary = run
    translator = Translator.load(folder)
    shown = summary["translations"]
    assert [t.text for t in translator([row["source"] for row in shown])] == [row["translation"] for row in shown]
    assert translator([""])[0].text == ""
    with pytest.raises(ConfigError, match="holds no run that can be loaded"):
        Translator.load(tmp_path)


def test_a_trained_model_translates_as_in_pytorch(run):
    translate_as_in_pytorch(run[0], ["the cat sleeps .", "you sell the big book ."])


def make(tmp_path, seed):
    config = nmt.parse([*SMALL, "--out", str(tmp_path / "run"), "--seed", seed]).config
    return nmt.make_learner(config, dataset.load(config))


@pytest.mark.slow
def test_another_seed_gives_other_first_weights(tmp_path):
    one, other = (make(tmp_path, seed).weights() for seed in "01")
    assert any((one[name] != other[name]).any() for name in one)


def options_of(folder: Path, name: str) -> list[str]:
    return [
        *SMALL,
        "--epochs",
        "3",
        "--model.dropout",
        "0.1",
        "--training.save-seconds",
        "0",
        "--out",
        str(folder / name),
    ]


def results(folder: Path) -> tuple:
    """What must be the same to the last byte: parameters, optimiser state, and metrics but for the seconds."""
    metrics = [json.loads(line) | {"seconds": 0} for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = max((folder / "checkpoint").glob("step-*.json"), key=lambda path: int(path.stem[5:]))
    path, checkpointer = last.with_suffix("").absolute() / "state", ocp.StandardCheckpointer()
    like = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), dict(checkpointer.metadata(path).item_metadata))
    state = [np.asarray(x).tobytes() for x in jax.tree.leaves(checkpointer.restore(path, like))]
    return (folder / "model.safetensors").read_bytes(), state, metrics, (folder / "test.jsonl").read_bytes()


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_as_one_that_was_not(tmp_path):
    command = [sys.executable, "-m", "train.nmt"]  # always a process of its own, so that all have the same devices
    more = ["--epochs", "60"]
    subprocess.run([*command, *options_of(tmp_path, "whole"), *more], check=True)
    killed, resume = tmp_path / "killed", ["--resume", str(tmp_path / "killed")]
    random, kills = np.random.default_rng(0), 0
    for number in range(25):
        process = subprocess.Popen([*command, *(resume if number else [*options_of(tmp_path, "killed"), *more])])
        while not list((killed / "checkpoint").glob("*")) and process.poll() is None:
            time.sleep(0.05)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(random.uniform(4, 12))
        kills += process.poll() is None
        process.kill()
        process.wait()
    assert kills > 5
    subprocess.run([*command, *resume], check=True)
    assert results(killed) == results(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_that_is_asked_to_stop_goes_on_later_with_its_vocabularies(tmp_path, capsys, monkeypatch):
    process = subprocess.Popen(
        [sys.executable, "-m", "train.nmt", *options_of(tmp_path, "run"), "--epochs", "1000"],
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list((tmp_path / "run").glob("checkpoint/step-*.json")) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert f"stopped; go on with: python -m train.nmt --resume {tmp_path / 'run'}" in process.communicate(timeout=60)[1]
    assert process.returncode == 0
    assert Translator.load(tmp_path / "run")("the cat sleeps .").text  # from the best parameters until then
    monkeypatch.setattr(dataset, "build_vocabularies", None)
    (tmp_path / "run" / "checkpoint").rename(tmp_path / "run" / "moved")
    assert nmt.main(["--resume", str(tmp_path / "run"), "--epochs", "1"]) == 2
    assert "holds no checkpoint that can be used" in capsys.readouterr().err
    (tmp_path / "run" / "moved").rename(tmp_path / "run" / "checkpoint")
    assert nmt.main(["--resume", str(tmp_path / "run"), "--epochs", "1"]) == 0
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.slow
def test_a_run_that_is_stopped_in_its_final_test_can_be_resumed(tmp_path, monkeypatch, capsys):
    def interrupt(*_):
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("the final test goes on")

    with monkeypatch.context() as patch:
        patch.setattr("train.translating.scoring.evaluate", interrupt)
        assert nmt.main([*SMALL, "--out", str(tmp_path / "run")]) == 0
    assert f"stopped; go on with: python -m train.nmt --resume {tmp_path / 'run'}" in capsys.readouterr().err
    assert not (tmp_path / "run" / "summary.json").exists()
    assert nmt.main(["--resume", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.slow  # three trainings begin
def test_a_run_that_ends_before_its_first_checkpoint_leaves_no_folder_or_one_that_can_be_resumed(
    tmp_path, monkeypatch, capsys
):
    options = [*SMALL, "--out", str(tmp_path / "run")]
    with monkeypatch.context() as patch:
        patch.setattr(dataset, "load", lambda *_: signal.raise_signal(signal.SIGTERM))
        assert nmt.main(options) == 128 + signal.SIGTERM
    assert "interrupted" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    with monkeypatch.context() as patch:
        patch.setattr("train.training.loop.JaxLearner._take_steps", lambda *_: 1 / 0)
        assert nmt.main(options) == 1
    capsys.readouterr()
    assert nmt.main(["--resume", str(tmp_path / "run"), "--epochs", "1"]) == 0


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, monkeypatch, capsys):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "config.json")

    monkeypatch.setattr(RunFolder, "save_config", fail)
    assert nmt.main([*SMALL, "--out", str(tmp_path / "run")]) == 1
    *_, said = capsys.readouterr().err.splitlines()
    assert said.startswith("error: config.json cannot be written: No space left on device")
    assert said.endswith("; the training has not begun")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("full", "held"),
    [
        ("train.runs.checkpoint.require_space", "the best parameters until now, and no checkpoint"),
        pytest.param(
            *("train.runs.run_folder.RunFolder.append_metrics", "the best parameters until now, and no checkpoint"),
            marks=pytest.mark.slow,
        ),
        pytest.param("train.runs.run_folder.RunFolder.save_test", None, marks=pytest.mark.slow),
    ],
)
def test_a_full_disk_is_one_line_that_says_what_is_saved_and_the_run_goes_on_when_there_is_space(
    tmp_path, monkeypatch, capsys, full, held
):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out, options = tmp_path / "run", [*SMALL, "--epochs", "1", *(["--corpus.test", "0"] if held else [])]
    with monkeypatch.context() as patch:
        patch.setattr(full, fail)
        assert nmt.main([*options, "--out", str(out)]) == 1
    *warned, said = capsys.readouterr().err.splitlines()
    assert all(line.startswith(f"warning: the run could not be saved in {out}, and the train") for line in warned)
    assert said.startswith("error: ")
    assert "No space left on device" in said
    assert f"{out} holds {held or 'the trained model'}; when there is space" in said
    assert said.endswith(f"python -m train.nmt --resume {out}")
    assert nmt.main(["--resume", str(out)]) == 0
    assert (out / "summary.json").exists()


OTHER_MODELS = (
    "none --model.no-bidirectional",
    "none --model.cell lstm --model.no-input-feeding --model.query previous --model.no-bridge "
    "--search.beam-size 3 --training.optimizer momentum --training.nesterov --training.weight-decay 1e-4",
    "multi_head --model.num-heads 2 --model.dropout 0.1",
    "scaled_bilinear --model.cell lstm --model.dropout 0.2 --model.num-layers 2",
    "sum --model.query previous --model.no-input-feeding --model.no-bridge --training.optimizer adagrad",
)


@pytest.mark.slow
@pytest.mark.parametrize("options", OTHER_MODELS)
def test_other_models_run_to_their_end_and_translate_as_in_pytorch(tmp_path, options):
    summary = train(tmp_path, *SMALL, "--model.attention", *options.split())
    attention = options.split()[0]
    assert (summary["alignment_error_rate"] is None) == (attention == "none")
    assert (tmp_path / "run" / "attention.png").exists() == (attention != "none")
    assert (summary["attention_parameters"] == 0) == (attention == "none")

    for one in translate_as_in_pytorch(tmp_path / "run", ["the cat sleeps .", "you sell the big book ."]):
        if attention != "none":
            same = np.ptp(one.weights, axis=0).max() < 1e-6  # each target word looks as the others do
            assert same == (attention == "sum")


@needs_fra
@pytest.mark.slow
def test_the_books_run_begins(tmp_path):
    summary = train(tmp_path, "book", "--data", str(FRA), "--epochs", "2")
    assert [len(json.loads((tmp_path / "run" / f"{side}.json").read_text())) for side in ("source", "target")] == [
        184,
        168,
    ]
    assert [row["source"] for row in summary["translations"]] == ["go .", "i'm ok .", "i won !"]
    assert summary["loss_book"] < 0.5


@pytest.mark.slow
@needs_fra
def test_the_books_loss_and_translations_are_reached(tmp_path):
    summary = train(tmp_path, "book", "--data", str(FRA))
    assert summary["loss_book"] <= 0.0235
    assert summary["loss_book_best"] <= 0.0215
    for row in summary["translations"]:
        assert row["translation"] in row["references"]


@pytest.mark.slow
def test_the_default_run_translates_and_aligns(tmp_path):
    summary = train(tmp_path)
    assert summary["bleu"] >= 95
    assert summary["alignment_error_rate"] <= 0.10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["bok"], "there is no preset 'bok'; there are: own, demo, book"),
        (["--data", "nowhere.txt"], "there is no file nowhere.txt"),
        (["--epochs", "0"], "epochs must be in [1, 1000000]; got 0"),
        (["--model.dropout", "1.5"], "model.dropout must be in [0, 1); got 1.5"),
        (["--model.query", "previous"], "model.input-feeding needs model.query"),
        (
            ["--model.tie-embeddings", "output", "--model.query", "previous", "--model.no-input-feeding"],
            "needs model.embed-size and model.num-hiddens to be equal",
        ),
        (["--model.tie-embeddings", "all"], "model.tie-embeddings all needs one vocabulary"),
        (["--model.num-hiddens", "15"], "model.num-hiddens must be even for two directions; got 15"),
        (
            ["--model.attention", "multi_head", "--model.num-heads", "5"],
            "model.num-hiddens must be a multiple of model.num-heads; got 96 for 5 heads",
        ),
        (["book"], "the tokenizer book, and so the preset book, needs a file of pairs: --data fra.txt"),
        (
            ["--device", "gpu"],
            "there is no option --device: JAX takes the GPU that it finds, or the devices that JAX_PL",
        ),
        (["--init", "nowhere", "--data", "x"], "there is no folder nowhere"),
        (["--corpus.steps", "5"], "corpus.steps must be at least"),
        (["--training.momentum", "0.9"], "training.momentum belongs to optimizer sgd or momentum or rmsprop; got adam"),
        (["--training.num-parts", "0"], "training.num-parts must be in [1, 65536]; got 0"),
        (["--training.num-parts", "0", "--mesh", "data=2"], "training.num-parts must be in [1, 65536]; got 0"),
        (["--training.num-parts", "3"], "training.batch-size must be a multiple of training.num-parts, 3; got 64"),
        (["--resume", "nowhere"], "there is no folder nowhere; name the run folder that `python -m train.nmt` wrote"),
        (["--resume", "."], ". has no config.json; name the run folder that `python -m train.nmt` wrote"),
        (["--resume", "nowhere", "--seed", "3"], "--resume RUN keeps the run's settings"),
        (["--out", "run[1]"], "the run folder's path must not hold any of * ? [ ]; got"),
        (["--model.num-hiddens", "65536"], "GB: lower --model.num-hiddens"),
        (["--training.patience", "2", "--training.best", "last"], "training.patience 2 needs validation pairs"),
        (["--training.num-widths", "99"], "training.num-widths must be in [1, 16]; got 99"),
        (["--search.examples", "\udcff"], "holds bytes that are not UTF-8"),
        (["--training.betas", "0.9", "1"], "training.betas must be in [0, 1); got (0.9, 1.0)"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    small = (
        []
        if options[0] in ("bok", "book", "--resume")
        else ["--corpus.train", "50", "--corpus.valid", "5", "--corpus.test", "5"]
    )
    assert nmt.main([*options, *small]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_choice_by_bleu_without_validation_pairs_says_what_helps(capsys):
    assert nmt.main(["--corpus.valid", "0", "--training.best", "bleu"]) == 2
    assert capsys.readouterr().err.endswith("needs validation pairs; without them: training.best last\n")


@pytest.mark.parametrize(("folder", "message"), [("", "exists already"), ("file/run", "cannot be made")])
def test_a_folder_that_cannot_be_made_is_an_error(tmp_path, capsys, folder, message):
    (tmp_path / "file").write_text("mine")
    assert nmt.main([*SMALL, "--out", str(tmp_path / folder)]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


class Diverging:
    """A learner whose gradients are NaN from the first step on."""

    num_steps = steps_per_epoch = 1

    def batches(self):
        return ""

    def fit(self, recorder):
        raise DivergenceError("the gradients are NaN")


class Interrupted(Diverging):
    def fit(self, recorder):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("learner", "status", "message"),
    [
        (Diverging, 1, "the gradients are NaN; lower --training.learning-rate"),
        (Interrupted, 130, "interrupted"),
    ],
)
def test_a_run_that_does_not_end_says_why(tmp_path, monkeypatch, capsys, learner, status, message):
    monkeypatch.setattr(nmt, "make_learner", lambda config, data: learner())
    assert nmt.main([*SMALL, "--out", str(tmp_path / "run")]) == status
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run" / "summary.json").exists()


def test_help_that_is_not_read_to_its_end_ends_quietly():
    command = f"{sys.executable} -m train.nmt --help-all | head -1; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (141, b"")
