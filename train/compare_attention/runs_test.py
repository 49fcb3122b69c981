"""Which runs are made, which are not made again, and what is left alone. A small program stands for the training."""

import json
import subprocess
import sys
import threading
import time

import pytest

from train.compare_attention import runs
from train.config import ConfigError

MAKE = """
import json, pathlib, sys
folder, config = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
folder.mkdir(parents=True)
(folder / "config.json").write_text(json.dumps(config | {"max_source_words": 13, "max_target_len": 14}))
(folder / "checkpoint").mkdir()
(folder / "test.jsonl").write_text("")
(folder / "summary.json").write_text(json.dumps({"bleu": 50.0, "alignment_error_rate": None, "seconds": 1.0}))
"""
ARGUMENTS = ["--epochs", "1", "--corpus.train", "96"]


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """Four runs, made by the small program."""
    monkeypatch.setattr(runs, "command", made_by(MAKE))
    return runs.plan(tmp_path / "out", ["additive", "none"], [0, 7], ARGUMENTS)


def made_by(program):
    def command(run):
        return [sys.executable, "-c", program, str(run.folder), json.dumps(runs._settings(run.config))]

    return command


def make(planned, jobs=1):
    """The lines that are said."""
    said = []
    runs.make_missing(planned, jobs, said.append)
    return said


def test_the_plan_takes_one_seed_after_another_and_hands_the_arguments_on(planned):
    assert [run.name for run in planned] == ["additive-0", "none-0", "additive-7", "none-7"]
    for run in planned:
        assert (run.config.model.attention, run.config.seed, run.config.out) == (run.attention, run.seed, run.folder)
        assert (run.config.epochs, run.config.corpus.train) == (1, 96)
    assert runs.plan(planned[0].folder, ["dot"], [1], ["book", "--data", "fra.txt"])[0].config.model.cell == "lstm"
    with pytest.raises(ConfigError, match=r"seed must be in \[0, 4294967295\]; got -1"):
        runs.plan(planned[0].folder, ["dot"], [-1], [])


def test_the_command_is_the_program_that_trains(tmp_path):
    (run,) = runs.plan(tmp_path, ["dot"], [3], ["--epochs", "2"])
    own = ["--model.attention", "dot", "--seed", "3", "--out", str(tmp_path / "dot-3")]
    assert runs.command(run) == [sys.executable, "-m", "train.nmt", "--epochs", "2", *own]


@pytest.mark.parametrize("jobs", [1, 3])
def test_all_are_made_once(planned, jobs):
    said = make(planned, jobs)
    assert all(runs.is_done(run) for run in planned)
    assert sorted(line.split("]")[0] for line in said) == ["[1/4", "[2/4", "[3/4", "[4/4"]
    assert "BLEU 50.0" in said[0]
    before = [run.folder.stat().st_mtime_ns for run in planned]
    assert make(planned, jobs) == ["4 of 4 runs are there already"]
    assert [run.folder.stat().st_mtime_ns for run in planned] == before


@pytest.mark.parametrize("lost", ["summary.json", "config.json", "test.jsonl"])
def test_a_run_that_lacks_something_is_made_again_and_no_other(planned, lost):
    make(planned)
    (planned[1].folder / lost).unlink()
    (planned[1].folder / "metrics.jsonl").write_text("of the attempt before")
    said = make(planned)
    assert said[0] == "3 of 4 runs are there already"
    assert [line.split()[0:2] for line in said[1:]] == [["[4/4]", "none,"]]
    assert runs.is_done(planned[1])
    assert not (planned[1].folder / "metrics.jsonl").exists()


def test_a_summary_cut_short_is_none(planned):
    make(planned[:1])
    summary = planned[0].folder / "summary.json"
    summary.write_text(summary.read_text()[:-3])
    assert not runs.is_done(planned[0])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--epochs", "2", "--corpus.train", "96"], "is of a run with another epochs"),
        ([*ARGUMENTS, "--training.learning-rate", "0.1"], "is of a run with another training.learning_rate"),
    ],
)
def test_a_run_of_other_settings_is_not_taken_for_this_one_and_stays(planned, arguments, said):
    make(planned[:1])
    others = runs.plan(planned[0].folder.parent, ["dot", "additive"], [0], arguments)
    with pytest.raises(ConfigError, match=said):
        make(others)
    assert runs.is_done(planned[0])
    assert not others[0].folder.exists()  # it was told before anything was made


def test_where_a_run_lies_does_not_matter(planned, tmp_path):
    make(planned[:1])
    planned[0].folder.parent.rename(tmp_path / "moved")
    (moved,) = runs.plan(tmp_path / "moved", ["additive"], [0], ARGUMENTS)
    assert runs.is_done(moved)


def test_what_is_no_run_is_not_thrown_away(planned):
    planned[0].folder.mkdir(parents=True)
    (planned[0].folder / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match=r"additive-0.thesis\.tex is of no run"):
        make(planned)
    planned[1].folder.write_text("a file")
    with pytest.raises(ConfigError, match="none-0 is of no run"):
        runs.is_done(planned[1])


def test_a_run_that_fails_ends_it_with_its_last_word(planned, monkeypatch):
    monkeypatch.setattr(runs, "command", made_by("print('one'); print('error: two'); raise SystemExit(3)"))
    with pytest.raises(runs.RunError, match=r"additive-0 ended with status 3: error: two \(see .*additive-0\.log\)"):
        make(planned)
    assert not planned[1].log.exists()
    monkeypatch.setattr(runs, "command", made_by(""))
    with pytest.raises(runs.RunError, match="ended with status 0: it said nothing"):
        make(planned)


def test_an_interruption_stops_what_is_under_way(planned, monkeypatch):
    started = []
    real = subprocess.Popen

    def popen(*args, **kwargs):
        started.append(real(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(runs, "command", made_by("import time; time.sleep(60)"))
    monkeypatch.setattr(runs, "as_completed", lambda futures: interrupt_after(started, 2))
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        make(planned, jobs=2)
    assert time.monotonic() - begin < 30
    assert len(started) == 2
    assert all(program.poll() is not None for program in started)
    assert threading.active_count() < 50


def interrupt_after(started, count):
    """What Ctrl-C does, when so many programs are under way."""
    while len(started) < count:
        time.sleep(0.01)
    raise KeyboardInterrupt
    yield
