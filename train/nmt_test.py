"""Whole runs of a small model, and the errors of runs that cannot be."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from train import nmt
from train.config import ConfigError
from train.data import dataset
from train.data.corpus import Alignment
from train.data.tokens import detokenize
from train.learner import Epoch
from train.translate import Translator
from train.translation.metrics import alignment_error_rate, bleu_counts, bleu_of

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
        "config.json", "source.json", "target.json", "metrics.jsonl", "checkpoint", "model.safetensors",
        "attention.png", "test.jsonl", "summary.json",
    }  # fmt: skip
    assert (folder / "attention.png").read_bytes().startswith(b"\x89PNG")


def test_the_summary_holds_the_results(run):
    folder, summary = run
    for name in ("loss", "bleu", "chrf", "alignment_error_rate", "seconds", "tokens_per_second"):
        assert isinstance(summary[name], float), name
    assert len(summary["translations"]) == 8
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in metrics] == [1, 2, 3]
    assert metrics[-1]["loss"] == summary["loss"] < metrics[0]["loss"]
    assert summary["attention_parameters"] == 2 * 32 * 32 + 32
    assert summary["peak_memory_bytes"] is None or 2**27 < summary["peak_memory_bytes"] < 2**36


def test_the_test_set_is_left_with_its_translations_and_links(run):
    folder, summary = run
    lines = [json.loads(line) for line in (folder / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 16
    texts = [detokenize(line["translation"]) for line in lines]
    assert texts[:8] == [row["translation"] for row in summary["translations"]]
    counts = bleu_counts(texts, [detokenize(line["reference"]) for line in lines])
    assert bleu_of(counts.sum(axis=0)) == pytest.approx(summary["bleu"], abs=1e-9)
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


def make(tmp_path, seed):
    _, config = nmt.parse([*SMALL, "--out", str(tmp_path / "run"), "--seed", seed])
    return nmt.make_learner(config, dataset.load(config))


def test_another_seed_gives_other_first_weights(tmp_path):
    one, other = (make(tmp_path, seed).weights() for seed in "01")
    assert any((one[name] != other[name]).any() for name in one)


@pytest.mark.slow
def test_the_same_seed_trains_to_the_same_bits(tmp_path):
    learners = [make(tmp_path, "0") for _ in "12"]
    for learner in learners:
        learner.fit(lambda epoch: None, lambda *_: None)
    one, other = (learner.weights() for learner in learners)
    assert all((one[name] == other[name]).all() for name in one)


SLOW_MODELS = (
    "multi_head --model.num-heads 2 --model.dropout 0.1",
    "scaled_bilinear --model.cell lstm --model.dropout 0.2 --model.num-layers 2",
    "sum --model.query previous --model.no-input-feeding --model.no-bridge --training.optimizer adagrad",
)


@pytest.mark.parametrize(
    "options",
    [
        "none --model.cell lstm --model.no-input-feeding --model.query previous --model.no-bridge "
        "--search.beam-size 3 --training.optimizer momentum --training.nesterov --training.weight-decay 1e-4",
        *(pytest.param(options, marks=pytest.mark.slow) for options in SLOW_MODELS),
    ],
)
def test_other_models_run_to_their_end_and_translate_alike_in_both_frameworks(tmp_path, options):
    summary = train(tmp_path, *SMALL, "--model.attention", *options.split())
    attention = options.split()[0]
    assert (summary["alignment_error_rate"] is None) == (attention == "none")
    assert (tmp_path / "run" / "attention.png").exists() == (attention != "none")
    assert (summary["attention_parameters"] == 0) == (attention == "none")

    sentences = ["the cat sleeps .", "you sell the big book ."]
    ours, theirs = (Translator.load(tmp_path / "run", framework=name)(sentences) for name in ("jax", "torch"))
    for one, other in zip(ours, theirs, strict=True):
        assert one.text == other.text
        assert one.score == pytest.approx(other.score, abs=1e-5)
        if attention != "none":
            np.testing.assert_allclose(one.weights, other.weights, atol=1e-5)
            same = np.ptp(one.weights, axis=0).max() < 1e-6  # each target word looks as the others do
            assert same == (attention == "sum")


@needs_fra
@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_the_books_run_begins_in_both_frameworks(tmp_path, framework):
    summary = train(tmp_path, "book", "--data", str(FRA), "--epochs", "2", "--framework", framework)
    assert [len(json.loads((tmp_path / "run" / f"{side}.json").read_text())) for side in ("source", "target")] == [
        184,
        168,
    ]
    assert [row["source"] for row in summary["translations"]] == ["go .", "i'm ok .", "i won !"]
    assert summary["loss_book"] < 0.5


@pytest.mark.slow
@needs_fra
@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_the_books_loss_and_translations_are_reached(tmp_path, framework):
    summary = train(tmp_path, "book", "--data", str(FRA), "--framework", framework)
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
        (["bok"], "there is no preset 'bok'; there are: demo, book"),
        (["--data", "nowhere.txt"], "there is no file nowhere.txt"),
        (["--epochs", "0"], "epochs must be in [1, 1000000]; got 0"),
        (["--model.dropout", "1.5"], "model.dropout must be in [0, 1); got 1.5"),
        (["--model.query", "previous"], "input_feeding needs query"),
        (["--model.tie-embeddings"], "tie_embeddings needs embed_size == num_hiddens"),
        (["--model.num-hiddens", "15"], "num_hiddens must be even for two directions; got 15"),
        (
            ["--model.attention", "multi_head", "--model.num-heads", "5"],
            "model.num-hiddens must be a multiple of model.num-heads; got 96 for 5 heads",
        ),
        (["--corpus.tokenizer", "book"], "corpus.tokenizer must be words for the embedded corpus"),
        (["--corpus.steps", "5"], "corpus.steps must be at least"),
        (["--framework", "torch"], "model.cell must be lstm; got gru"),
        (["--framework", "torch", "--training.optimizer", "sgd"], "training.optimizer must be adam; got sgd"),
        (
            ["--framework", "torch", "--training.weight-decay", "0.1"],
            "training.weight-decay must be left at its default",
        ),
        (["--training.momentum", "0.9"], "training.momentum belongs to optimizer sgd or momentum or rmsprop; got adam"),
        (["--training.betas", "0.9", "1"], "training.betas must be in [0, 1); got (0.9, 1.0)"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    small = [] if options == ["bok"] else ["--corpus.train", "50", "--corpus.valid", "5", "--corpus.test", "5"]
    assert nmt.main([*options, *small]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("folder", "message"), [("", "exists already"), ("file/run", "cannot be made")])
def test_a_folder_that_cannot_be_made_is_an_error(tmp_path, capsys, folder, message):
    (tmp_path / "file").write_text("mine")
    assert nmt.main([*SMALL, "--out", str(tmp_path / folder)]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


class Diverging:
    """A learner whose first loss is NaN."""

    steps_per_epoch = 1

    def fit(self, report, progress):
        report(Epoch(1, math.nan, math.nan, None, 1, 1.0))


class Interrupted(Diverging):
    def fit(self, report, progress):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("learner", "status", "message"),
    [
        (Diverging, 1, "the loss is nan in epoch 1; lower --training.learning-rate"),
        (Interrupted, 130, "interrupted; the run did not end"),
    ],
)
def test_a_run_that_does_not_end_says_why(tmp_path, monkeypatch, capsys, learner, status, message):
    monkeypatch.setattr(nmt, "make_learner", lambda config, data: learner())
    assert nmt.main([*SMALL, "--out", str(tmp_path / "run")]) == status
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run" / "summary.json").exists()
