"""The plan of the runs, and which of them are trained. A small program stands in for the training."""

import json
import sys

import pytest

from train.compare_attention import runs
from train.config import ConfigError

TRAIN = """
import json, pathlib, sys
folder, config = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
folder.mkdir(parents=True)
(folder / "config.json").write_text(json.dumps(config | {"max_source_len": 13, "max_target_len": 14}))
(folder / "checkpoint").mkdir()
(folder / "test.jsonl").write_text("")
(folder / "summary.json").write_text(json.dumps({"bleu": 50.0, "alignment_error_rate": None, "seconds": 1.0}))
"""
ARGUMENTS = ["--epochs", "1", "--corpus.train", "96"]


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """Four runs that the small program trains."""
    monkeypatch.setattr(runs, "command", lambda run: command(TRAIN, run))
    return runs.plan(tmp_path / "out", ["additive", "none"], [0, 7], ARGUMENTS)


def command(program, run):
    settings = {"format": runs.FORMAT} | runs.dataclasses.asdict(run.config)
    return [sys.executable, "-c", program, str(run.folder), json.dumps(settings, default=str)]


def train(planned, capsys):
    """Train and return the printed lines."""
    runs.train_missing(planned)
    return capsys.readouterr().err.splitlines()


def test_the_plan_takes_one_seed_after_another_and_passes_the_arguments_on(tmp_path):
    planned = runs.plan(tmp_path, ["additive", "none"], [0, 7], ["book", "--data", "fra.txt", "--epochs", "1"])
    assert [run.folder.name for run in planned] == ["additive-0", "none-0", "additive-7", "none-7"]
    for run in planned:
        assert (run.config.model.attention, run.config.seed, run.config.out) == (run.attention, run.seed, run.folder)
        assert (run.config.epochs, run.config.model.cell) == (1, "lstm")
    own = ["--model.attention", "none", "--seed", "7", "--out", str(tmp_path / "none-7")]
    arguments = ["book", "--data", "fra.txt", "--epochs", "1", *own]
    assert runs.command(planned[3]) == [sys.executable, "-m", "train.nmt", *arguments]


def test_each_run_is_trained_once_and_may_be_moved(planned, tmp_path, capsys):
    lines = train(planned, capsys)
    assert [line.split("]")[0] for line in lines] == ["[1/4", "[2/4", "[3/4", "[4/4"]
    assert "BLEU 50.0" in lines[0]
    planned[0].folder.parent.rename(tmp_path / "moved")
    moved = runs.plan(tmp_path / "moved", ["additive", "none"], [0, 7], ARGUMENTS)
    before = [run.folder.stat().st_mtime_ns for run in moved]
    assert train(moved, capsys) == ["4 of 4 runs are already complete"]
    assert [run.folder.stat().st_mtime_ns for run in moved] == before


@pytest.mark.parametrize("lost", ["summary.json", "config.json", "test.jsonl", "manifest.json"])
def test_only_an_incomplete_run_is_trained_again(planned, capsys, lost):
    train(planned[:2], capsys)
    incomplete, complete = planned[0].folder, planned[1].folder
    before = complete.stat().st_mtime_ns
    (incomplete / "old").write_text("from the first attempt")
    if lost == "test.jsonl":
        (incomplete / lost).unlink()
    elif lost == "manifest.json":
        (incomplete / lost).write_text('{"files": {"test.jsonl": ["another SHA-256"]}}')
    else:
        (incomplete / lost).write_text("{")  # the program was killed while it wrote the file
    lines = train(planned[:2], capsys)
    assert [line.split(",")[0] for line in lines] == ["1 of 2 runs are already complete", "[2/2] additive"]
    assert runs.is_complete(planned[0])
    assert not (incomplete / "old").exists()
    assert complete.stat().st_mtime_ns == before


@pytest.mark.parametrize("change", [["--epochs", "2"], ["--training.learning-rate", "0.1"]])
def test_a_run_with_other_settings_is_refused_before_any_training(planned, capsys, change):
    train(planned[:1], capsys)
    others = runs.plan(planned[0].folder.parent, ["dot", "additive"], [0], [*ARGUMENTS, *change])
    name = change[0][2:].split(".")[0]
    with pytest.raises(ConfigError, match=rf"was trained with other settings \({name}\)"):
        train(others, capsys)
    assert runs.is_complete(planned[0])
    assert not others[0].folder.exists()


def test_a_folder_that_is_not_a_run_is_not_removed(planned, capsys):
    planned[0].folder.mkdir(parents=True)
    (planned[0].folder / "thesis.tex").write_text("mine")
    planned[1].folder.write_text("a file")
    for run in planned[:2]:
        with pytest.raises(ConfigError, match=f"{run.folder.name} is not a run"):
            train([run], capsys)


def test_a_failed_training_ends_the_comparison_with_its_last_line(planned, monkeypatch, capsys):
    failing = "print('one'); print('error: two'); raise SystemExit(3)"
    monkeypatch.setattr(runs, "command", lambda run: command(failing, run))
    with pytest.raises(runs.RunError, match=r"additive-0 ended with status 3: error: two \(see .*additive-0\.log\)"):
        train(planned, capsys)
    assert not planned[1].log.exists()
    monkeypatch.setattr(runs, "command", lambda run: command("", run))
    with pytest.raises(runs.RunError, match="ended with status 0: there is no output"):
        train(planned, capsys)
