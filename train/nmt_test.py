"""The program as a user meets it: whole runs of a small configuration, and every way to be told no."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from train import console, nmt
from train.checkpoint import RunFolder
from train.config import ConfigError
from train.data.corpus import Alignment
from train.data.tokens import detokenize
from train.learner import Epoch
from train.translate import Translator
from train.translation.metrics import alignment_error_rate, bleu_counts, bleu_of

SMALL = ["--corpus.train", "96", "--corpus.valid", "16", "--corpus.test", "16", "--epochs", "2"]
SMALL += ["--model.num-hiddens", "16", "--model.embed-size", "8", "--search.batch-size", "8"]
FRA = Path(__file__).parents[2] / "shared" / "data" / "fra.txt"
needs_fra = pytest.mark.skipif(not FRA.exists(), reason=f"the English-French corpus is not at {FRA}")


def run(tmp_path: Path, *options: str) -> dict:
    """A run into tmp_path/run that must succeed, and its summary."""
    out = tmp_path / "run"
    assert nmt.main([*options, "--out", str(out)]) == 0
    return json.loads((out / "summary.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nmt")
    return folder / "run", run(folder, *SMALL)


def test_a_run_leaves_every_file_that_it_promises(small_run):
    folder, _ = small_run
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "source.json", "target.json", "metrics.jsonl", "checkpoint", "model.safetensors",
        "attention.png", "test.jsonl", "summary.json",
    }  # fmt: skip
    assert (folder / "attention.png").read_bytes().startswith(b"\x89PNG")


def test_the_summary_holds_the_results(small_run):
    folder, summary = small_run
    for name in ("loss", "bleu", "chrf", "alignment_error_rate", "seconds", "tokens_per_second"):
        assert isinstance(summary[name], float), name
    assert len(summary["translations"]) == 8
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in metrics] == [1, 2]
    assert metrics[-1]["loss"] == summary["loss"] < metrics[0]["loss"]


def test_the_summary_says_how_large_the_run_was(small_run):
    folder, summary = small_run
    weights = load_file(folder / "model.safetensors")
    assert summary["parameters"] == sum(array.size for array in weights.values())
    assert summary["attention_parameters"] == 2 * 16 * 16 + 16
    assert summary["peak_memory_bytes"] is None or 2**27 < summary["peak_memory_bytes"] < 2**36


def test_the_test_set_is_left_with_what_was_said_and_linked(small_run):
    folder, summary = small_run
    lines = [json.loads(line) for line in (folder / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 16
    said = [detokenize(line["translation"]) for line in lines]
    assert said[:8] == [row["translation"] for row in summary["translations"]]
    counts = bleu_counts(said, [detokenize(line["reference"]) for line in lines])
    assert bleu_of(counts.sum(axis=0)) == pytest.approx(summary["bleu"], abs=1e-9)
    links = [{(i, j) for i, j in line["links"]} for line in lines]
    assert all(len(found) == len(line["reference"]) for found, line in zip(links, lines, strict=True))
    gold = [Alignment(*(frozenset((i, j) for i, j in line[name]) for name in ("sure", "possible"))) for line in lines]
    assert alignment_error_rate(links, gold) == summary["alignment_error_rate"]


def test_the_weights_are_under_pytorchs_names_and_the_size_of_the_vocabularies(small_run):
    folder, _ = small_run
    weights = load_file(folder / "model.safetensors")
    words = json.loads((folder / "target.json").read_text(encoding="utf-8"))
    assert weights["decoder.dense.weight"].shape == (len(words), 16)
    assert weights["encoder.rnn.weight_hh_l0_reverse"].shape == (24, 8)
    assert all(np.isfinite(array).all() for array in weights.values())


def test_a_run_can_be_loaded_and_translates_as_it_did(small_run, tmp_path):
    folder, summary = small_run
    translator = Translator.load(folder)
    shown = summary["translations"]
    assert [t.text for t in translator([row["source"] for row in shown])] == [row["translation"] for row in shown]
    assert translator([""])[0].text == ""
    with pytest.raises(ConfigError, match="holds no run that can be loaded"):
        Translator.load(tmp_path)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(small_run, tmp_path):
    folder, _ = small_run
    run(tmp_path, *SMALL)
    first, again = load_file(folder / "model.safetensors"), load_file(tmp_path / "run" / "model.safetensors")
    assert all((first[name] == again[name]).all() for name in first)
    training_alone = ["--corpus.valid", "0", "--corpus.test", "0"]
    run(tmp_path / "other", *SMALL, "--seed", "1", *training_alone)
    other = load_file(tmp_path / "other" / "run" / "model.safetensors")
    assert any((first[name] != other[name]).any() for name in first)


@pytest.mark.parametrize(
    "options",
    [
        ["--model.attention", "none", "--model.no-input-feeding"],
        ["--model.attention", "multi_head", "--model.num-heads", "2", "--model.dropout", "0.1"],
        [
            "--model.attention",
            "scaled_bilinear",
            "--model.cell",
            "lstm",
            "--model.dropout",
            "0.2",
            "--model.num-layers",
            "2",
        ],
        [
            "--model.attention",
            "sum",
            "--model.query",
            "previous",
            "--model.no-input-feeding",
            "--model.no-bridge",
            "--search.beam-size",
            "3",
            "--training.optimizer",
            "momentum",
            "--training.nesterov",
            "--training.weight-decay",
            "1e-4",
        ],
    ],
)
def test_other_models_run_to_their_end_and_translate_alike_in_both_frameworks(tmp_path, options):
    """Among them every attention that the decoder has no name for."""
    summary, attention = run(tmp_path, *SMALL, *options), options[1]
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
    summary = run(tmp_path, "book", "--data", str(FRA), "--epochs", "2", "--framework", framework)
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
    summary = run(tmp_path, "book", "--data", str(FRA), "--framework", framework)
    assert summary["loss_book"] <= 0.0235
    assert summary["loss_book_best"] <= 0.0215
    for row in summary["translations"]:
        assert row["translation"] in row["references"]


@pytest.mark.slow
def test_the_default_run_translates_and_aligns(tmp_path):
    summary = run(tmp_path)
    assert summary["bleu"] >= 95
    assert summary["alignment_error_rate"] <= 0.10


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["bok"], "there is no preset 'bok'; there are: demo, book"),
        (["--data", "nowhere.txt"], "there is no file nowhere.txt"),
        (["--epochs", "0"], "epochs must be in [1, 1000000]; got 0"),
        (["--model.dropout", "1.5"], "model.dropout must be in [0, 1); got 1.5"),
        (["--training.learning-rate", "0"], "training.learning-rate must be in [1e-30, 1000.0]; got 0"),
        (["--model.query", "previous"], "input_feeding needs query"),
        (["--model.tie-embeddings"], "tie_embeddings needs embed_size == num_hiddens"),
        (["--model.num-hiddens", "15"], "num_hiddens must be even for two directions; got 15"),
        (
            ["--model.attention", "multi_head", "--model.num-heads", "5"],
            "model.num-hiddens must be a multiple of model.num-heads; got 96 for 5 heads",
        ),
        (["--seed", "4294967296"], "seed must be in [0, 4294967295]"),
        (["--search.length-penalty", "nan"], "search.length-penalty must be in [0, 10]; got nan"),
        (["--corpus.tokenizer", "book"], "corpus.tokenizer must be words for the embedded corpus"),
        (["--corpus.steps", "5"], "corpus.steps must be at least"),
        (["--framework", "torch"], "model.cell must be lstm; got gru"),
        (["--framework", "torch", "--training.optimizer", "sgd"], "training.optimizer must be adam; got sgd"),
        (
            ["--framework", "torch", "--training.weight-decay", "0.1"],
            "training.weight-decay must be left at its default",
        ),
        (["--training.momentum", "0.9"], "training.momentum belongs to optimizer momentum or rmsprop; got adam"),
        (["--training.betas", "0.9", "1"], "training.betas must be in [0, 1); got (0.9, 1.0)"),
    ],
)
def test_bad_settings_are_told_before_any_work_and_nothing_is_written(tmp_path, monkeypatch, capsys, options, said):
    monkeypatch.chdir(tmp_path)
    small = [] if options == ["bok"] else ["--corpus.train", "50", "--corpus.valid", "5", "--corpus.test", "5"]
    assert nmt.main([*options, *small]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_not_written_over(tmp_path, capsys):
    (tmp_path / "kept.txt").write_text("mine")
    assert nmt.main([*SMALL, "--out", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_a_folder_that_cannot_be_made_is_told(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert nmt.main([*SMALL, "--out", str(tmp_path / "file" / "run")]) == 2
    assert "cannot be made" in capsys.readouterr().err


def test_a_loss_that_is_no_number_ends_the_run_and_says_so(tmp_path, monkeypatch, capsys):
    diverged = Epoch(1, math.nan, math.nan, None, 1, 1.0)
    monkeypatch.setattr("train.loop.JaxLearner.fit", lambda self, report: report(diverged))
    assert nmt.main([*SMALL, "--out", str(tmp_path / "run")]) == 1
    assert "the loss is nan in epoch 1; lower --training.learning-rate" in capsys.readouterr().err
    assert not (tmp_path / "run" / "summary.json").exists()


def test_an_interrupted_run_says_so(tmp_path, monkeypatch, capsys):
    def interrupt(self, report):
        raise KeyboardInterrupt

    monkeypatch.setattr("train.loop.JaxLearner.fit", interrupt)
    assert nmt.main([*SMALL, "--out", str(tmp_path / "run")]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_brackets_in_a_sentence_are_shown_as_they_are(tmp_path, capsys):
    row = {"source": "[/x] a", "translation": "[red]b[/red]", "references": []}
    numbers = dict.fromkeys(("loss", "loss_book", "loss_book_best", "tokens_per_second", "seconds"), 1.0)
    console.show_results(
        {"translations": [row], "bleu": None, "alignment_error_rate": None, **numbers}, RunFolder(tmp_path)
    )
    assert "[red]b[/red]" in capsys.readouterr().out


def test_an_unknown_option_ends_the_program_with_a_message():
    done = subprocess.run(
        [sys.executable, "-m", "train.nmt", "--no-such-option"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no-such-option" in done.stderr + done.stdout
