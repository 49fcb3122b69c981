"""The program as a user meets it: two small runs, and every way to be told no."""

import json
import subprocess
import sys

import pytest

from train.compare_attention import __main__ as program
from train.compare_attention import exercises

SMALL = ["--corpus.train", "96", "--corpus.valid", "0", "--corpus.test", "12", "--epochs", "1"]
SMALL += ["--model.num-hiddens", "16", "--model.embed-size", "8", "--search.batch-size", "12"]
PAGE = "# Title\n\n<!-- table: comparison -->\nold\n<!-- end -->\n\n<!-- table: cost -->\nkept\n<!-- end -->\n"


@pytest.mark.slow
def test_attentions_are_compared_once(tmp_path, capsys):
    out, page, numbers = tmp_path / "out", tmp_path / "page.md", tmp_path / "numbers.json"
    page.write_text(PAGE)
    options = ["--attentions", "bilinear", "--seeds", "3", "--out", str(out), *SMALL]
    assert program.main(options) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("[1/1] bilinear, seed 3   BLEU ")
    table = printed.out.split("\n")
    assert [line.split()[0] for line in table[:2]] == ["attention", "bilinear"]
    assert {path.name for path in out.iterdir()} == {
        "bilinear-3", "bilinear-3.log", "comparison.json", "scores.png", "attention.png",
        "attention-bilinear.png",
    }  # fmt: skip
    comparison = json.loads((out / "comparison.json").read_text(encoding="utf-8"))
    summary = json.loads((out / "bilinear-3" / "summary.json").read_text(encoding="utf-8"))
    (row,) = comparison["attentions"]
    assert row["bleu"]["value"] == pytest.approx(summary["bleu"], abs=1e-5)
    assert row["alignment_error"]["value"] == pytest.approx(summary["alignment_error_rate"], abs=1e-5)
    assert row["bleu"]["low"] <= row["bleu"]["value"] <= row["bleu"]["high"]

    *fewer, whole = comparison["bilinear_ranks"]
    assert [of_rank["rank"] for of_rank in (*fewer, whole)] == [1, 2, 4, 8, 16]
    assert whole["share"] == 1 > fewer[0]["share"] > 0
    assert whole["alignment_error"] == pytest.approx(row["alignment_error"]["value"], abs=0.02)
    numbers.write_text('{"other": 1}')
    assert program.main([*options, "--json", str(numbers), "--page", str(page)]) == 0
    again = capsys.readouterr()
    assert again.err == "1 of 1 runs are there already\n"
    assert again.out == printed.out
    held = json.loads(numbers.read_text(encoding="utf-8"))
    assert (held["other"], held["comparison"]["seeds"]) == (1, [3])
    text = page.read_text(encoding="utf-8")
    assert "old" not in text
    assert "| bilinear | " in text
    assert "<!-- table: cost -->\nkept\n<!-- end -->" in text


def test_the_exercises_are_answered_without_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(exercises, "answer", lambda folder: {"answers": folder.name})
    monkeypatch.setattr(
        exercises, "tables", lambda answers: {"cost": [("score", "time"), (answers["answers"], "1 ms")]}
    )
    page, numbers = tmp_path / "page.md", tmp_path / "numbers.json"
    page.write_text(PAGE)
    options = ["--exercises", str(tmp_path / "mine"), "--json", str(numbers), "--page", str(page)]
    assert program.main(options) == 0
    assert capsys.readouterr().out.startswith("cost:\nscore   time\nmine    1 ms\n")
    assert list((tmp_path / "mine").iterdir()) == []
    assert json.loads(numbers.read_text()) == {"exercises": {"answers": "mine"}}
    assert "| mine | 1 ms |" in page.read_text()
    assert "comparison -->\nold\n" in page.read_text()
    assert program.main(options[:2]) == 0
    assert json.loads((tmp_path / "mine" / "exercises.json").read_text()) == {"answers": "mine"}


def test_tables_are_renewed_between_their_marks_and_nothing_else_is_touched():
    page = "a\n<!-- table: x -->\n<!-- end -->\nb\n<!-- table: x -->\nold\n<!-- end -->\nc <!-- table: x -->\nno end"
    tables = {"comparison": {"attentions": [], "bilinear_ranks": []}}
    renewed = program.renewed(page.replace("table: x", "table: bilinear ranks"), tables)
    table = "| singular values kept | of ‖W‖² | alignment error |\n|---|--:|--:|"
    mark = "<!-- table: bilinear ranks -->\n"
    expected = f"a\n{mark}{table}\n<!-- end -->\nb\n{mark}{table}\n<!-- end -->\nc {mark}no end"
    assert renewed == expected
    assert program.renewed(renewed, tables) == expected


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--attentions", "cosine"], "there is no attention 'cosine'; there are: additive, dot, scaled_dot, bilinear"),
        (["--seeds"], "--seeds must be one or more, each once; got none"),
        (["--seeds", "1", "2", "1"], "--seeds must be one or more, each once; got 1 2 1"),
        (["--seeds", "-1"], "seed must be in [0, 4294967295]; got -1"),
        (["--attentions"], "--attentions must be one or more, each once; got none"),
        (["--jobs", "0"], "--jobs must be at least 1; got 0"),
        (["--seed", "1"], "--seed is for a single run; use --seeds"),
        (["--model.attention=dot"], "--model.attention is for a single run; use --attentions"),
        (["bok"], "there is no preset 'bok'"),
        (["--epochs", "0"], "epochs must be in [1, 1000000]; got 0"),
        (["--corpus.test", "0"], "corpus.test must be at least 1"),
        (["--page", "a.md"], "--page needs --json"),
        (["--json", "nowhere/a.json"], "nowhere/a.json cannot be written"),
        (["--exercises", "e", "--epochs", "1"], "--exercises trains nothing, and takes no --epochs"),
        (["--json", "text.json"], "text.json is not JSON"),
        (["--json", "list.json"], "list.json holds something else than numbers by name"),
        (["--out", "mine"], "mine holds something else (thesis.tex); name another folder with --out"),
        (["--out", "text.json"], "text.json is no folder"),
    ],
)
def test_bad_options_are_told_on_one_line_before_any_work(tmp_path, monkeypatch, capsys, options, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("mine")
    (tmp_path / "text.json").write_text("text")
    (tmp_path / "list.json").write_text("[]")
    assert program.main(options) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert error.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "text.json", "list.json"}


def test_what_a_run_says_of_its_corpus_is_said(tmp_path, capsys):
    options = ["--data", str(tmp_path / "none.txt"), "--out", str(tmp_path / "out"), "--seeds", "0"]
    assert program.main(options) == 1
    assert "additive-0 ended with status 2: error: there is no file" in capsys.readouterr().err


def test_an_unknown_option_ends_the_program_with_a_message():
    command = [sys.executable, "-m", "train.compare_attention", "--no-such-option"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no-such-option" in done.stderr + done.stdout
