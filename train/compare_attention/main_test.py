"""The program as a user meets it: one small run, the exercises, bad options, and the pictures."""

import json

import pytest

from train.compare_attention import __main__ as program
from train.compare_attention import exercises, pictures
from train.data.corpus import Alignment, Pair

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
    assert [line.split()[1] for line in printed.out.split("\n")[:3:2]] == ["attention", "bilinear"]
    files = {"bilinear-3", "bilinear-3.log", "comparison.json", "scores.png", "attention.png"}
    assert {path.name for path in out.iterdir()} == files
    comparison = json.loads((out / "comparison.json").read_text(encoding="utf-8"))
    summary = json.loads((out / "bilinear-3" / "summary.json").read_text(encoding="utf-8"))
    (row,) = comparison["attentions"]
    assert row["bleu"]["value"] == pytest.approx(summary["bleu"], abs=1e-5)
    assert row["alignment_error"]["value"] == pytest.approx(summary["alignment_error_rate"], abs=1e-5)
    assert row["bleu"]["low"] <= row["bleu"]["value"] <= row["bleu"]["high"]
    *fewer, whole = comparison["bilinear_ranks"]
    assert [ranks["rank"] for ranks in (*fewer, whole)] == [1, 2, 4, 8, 16]
    assert whole["share"] == 1 > fewer[0]["share"] > 0
    assert whole["alignment_error"] == pytest.approx(row["alignment_error"]["value"], abs=0.02)

    numbers.write_text('{"other": 1}')
    assert program.main([*options, "--json", str(numbers), "--page", str(page)]) == 0
    again = capsys.readouterr()
    assert again.err == "1 of 1 runs are already complete\n"
    assert again.out == printed.out
    held = json.loads(numbers.read_text(encoding="utf-8"))
    assert (held["other"], held["comparison"]["seeds"]) == (1, [3])
    text = page.read_text(encoding="utf-8")
    assert "old" not in text
    assert "| bilinear  | " in text
    assert "<!-- table: cost -->\nkept\n<!-- end -->" in text


def test_the_exercises_are_answered_without_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(exercises, "answer", lambda folder: {"answers": folder.name})
    monkeypatch.setattr(exercises, "tables", lambda answers: {"cost": [("score", "ms"), (answers["answers"], "1")]})
    page, numbers = tmp_path / "page.md", tmp_path / "numbers.json"
    page.write_text(PAGE)
    options = ["--exercises", str(tmp_path / "mine"), "--json", str(numbers), "--page", str(page)]
    assert program.main(options) == 0
    assert capsys.readouterr().out.startswith("cost:\n| score | ms |\n| ----- | -: |\n| mine  |  1 |\n")
    assert json.loads((tmp_path / "mine" / "exercises.json").read_text()) == {"answers": "mine"}
    assert json.loads(numbers.read_text()) == {"exercises": {"answers": "mine"}}
    assert "| mine  |  1 |" in page.read_text()
    assert "comparison -->\nold\n" in page.read_text()


def test_only_tables_between_their_marks_are_replaced():
    mark, end = "<!-- table: bilinear ranks -->\n", "<!-- end -->"
    page = f"a\n{mark}{end}\nb\n{mark}old\n{end}\nc {mark}no end"
    updated = program.update_tables(page, {"comparison": {"attentions": [], "bilinear_ranks": []}})
    table = "| singular values kept | share of ‖W‖² | alignment error |\n"
    assert updated.count(mark + table) == 2
    assert "old" not in updated
    assert updated.endswith(f"{end}\nc {mark}no end")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--attentions", "cosin"], "there is no attention 'cosin'; there are: additive, dot, scaled_dot, bilinear"),
        (["--attentions"], "--attentions must be one or more, each once; got none"),
        (["--seeds", "1", "2", "1"], "--seeds must be one or more, each once; got 1 2 1"),
        (["--seeds", "-1"], "seed must be in [0, 4294967295]; got -1"),
        (["--seed", "1"], "--seed is for a single run; use --seeds"),
        (["--model.attention=dot"], "--model.attention is for a single run; use --attentions"),
        (["bok"], "there is no preset 'bok'"),
        (["--epochs", "0"], "epochs must be in [1, 1000000]; got 0"),
        (["--corpus.test", "0"], "corpus.test must be at least 1"),
        (["--page", "a.md"], "--page needs --json"),
        (["--json", "nowhere/a.json"], "nowhere/a.json cannot be written"),
        (["--json", "text.json"], "text.json is not JSON"),
        (["--json", "list.json"], "list.json is not a JSON object"),
        (["--exercises", "e", "--epochs", "1"], "--exercises trains nothing and cannot be used with --epochs"),
        (["--out", "run"], "run is not a folder for a comparison"),
        (["--out", "text.json"], "text.json is not a folder for a comparison"),
    ],
)
def test_bad_options_are_reported_on_one_line_before_any_work(tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    (tmp_path / "text.json").write_text("text")
    (tmp_path / "list.json").write_text("[]")
    assert program.main(options) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"run", "text.json", "list.json"}


def test_an_error_of_a_run_is_reported(tmp_path, capsys):
    options = ["--data", str(tmp_path / "none.txt"), "--out", str(tmp_path / "out"), "--seeds", "0"]
    assert program.main(options) == 1
    assert "additive-0 ended with status 2: error: there is no file" in capsys.readouterr().err


def test_an_unknown_option_ends_the_program_with_a_message(capsys):
    with pytest.raises(SystemExit) as ended:
        program.main(["--no-such-option"])
    assert ended.value.code == 2
    assert "no-such-option" in "".join(capsys.readouterr())


def pair(length, *sure):
    words = " ".join("abcdefghijklm"[:length])
    return Pair(words, words, Alignment(frozenset(sure), frozenset()))


def test_the_short_sentence_that_reorders_most_is_shown():
    straight, crossed = pair(3, (0, 0), (1, 1), (2, 2)), pair(3, (0, 1), (1, 0), (2, 2))
    reversed_, long = pair(3, (2, 0), (1, 1), (0, 2)), pair(10, (1, 0), (0, 1))
    assert pictures.choose_pair([straight, crossed, long, reversed_]) == reversed_
    assert pictures.choose_pair([long, straight, crossed]) == crossed
    assert pictures.choose_pair([Pair("a", "b")]) == Pair("a", "b")
    assert pictures.choose_pair([long]) is None


def score_row(attention, bleu, error):
    scores = {"bleu": bleu, "alignment_error": error}
    intervals = {n: x if x is None else {"value": x, "low": x - 1, "high": x + 1} for n, x in scores.items()}
    return {"attention": attention, **intervals, **{f"{name}_by_seed": [x] for name, x in scores.items()}}


def test_scores_are_drawn_where_they_are_known(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: figures.append(figure))
    rows = [score_row("dot", 90, 0.2), score_row("sum", 89, 0.9), score_row("none", 60, None)]
    pictures.draw_scores({"attentions": rows}, tmp_path / "scores.png")
    bleu, error = figures[0].axes
    assert bleu.get_xlabel().startswith("BLEU")
    assert error.get_xlabel().startswith("alignment error")
    assert [label.get_text() for label in bleu.get_yticklabels()] == ["none", "sum", "dot"]
    dots = [(line.get_xdata()[0], line.get_ydata()[0]) for line in bleu.lines if line.get_marker() == "o"]
    assert dots == [(89, 1), (90, 2)]
    assert [line.get_ydata()[0] for line in error.lines if line.get_marker() == "o"] == [2]
    edge = [[(text.get_text(), text.get_position()[1]) for text in axis.texts] for axis in (bleu, error)]
    assert edge == [[("← 60.0", 0)], [("0.900 →", 1)]]
