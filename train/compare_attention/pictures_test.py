"""What is shown, and of which sentences."""

from types import SimpleNamespace

from train.compare_attention import pictures
from train.compare_attention.pictures import draw, telling
from train.data.corpus import Alignment, Pair


def pair(length, *sure):
    words = tuple("abcdefghijklm"[:length])
    return Pair(words, words, Alignment(frozenset(sure), frozenset()))


def test_the_sentences_that_reorder_most_are_shown_if_they_are_short():
    straight, crossed = pair(3, (0, 0), (1, 1), (2, 2)), pair(3, (0, 1), (1, 0), (2, 2))
    reversed_, long = pair(3, (2, 0), (1, 1), (0, 2)), pair(10, (1, 0), (0, 1))
    assert telling([straight, crossed, long, straight, reversed_]) == [reversed_, crossed, straight]
    unknown = Pair(("a",), ("b",))
    assert telling([unknown] * 4) == [unknown] * 3


def interval(value):
    return {"value": value, "low": value - 1, "high": value + 1}


def test_scores_are_drawn_where_they_are_known_and_without_attention_nothing_more(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: figures.append((figure, path.name)))
    monkeypatch.setattr(pictures, "read_test", lambda folder: [(pair(2), {})])
    rows = [
        {"attention": "dot", "bleu": interval(90), "bleu_of_seeds": [90], "alignment_error": interval(0.2),
         "alignment_error_of_seeds": [0.2]},
        {"attention": "sum", "bleu": interval(89), "bleu_of_seeds": [89], "alignment_error": interval(0.9),
         "alignment_error_of_seeds": [0.9]},
        {"attention": "none", "bleu": interval(60), "bleu_of_seeds": [60], "alignment_error": None,
         "alignment_error_of_seeds": [None]},
    ]  # fmt: skip
    none = SimpleNamespace(seed=0, attention="none", folder=tmp_path)
    draw({"attentions": rows, "alignment_error_of_diagonal": 0.25}, [none], tmp_path)
    ((figure, name),) = figures
    assert name == "scores.png"
    bleu, error = figure.axes
    assert (bleu.get_xlabel(), error.get_xlabel()) == ("BLEU", "alignment error")
    assert [label.get_text() for label in bleu.get_yticklabels()] == ["none", "sum", "dot"]
    dots = [(line.get_xdata()[0], line.get_ydata()[0]) for line in bleu.lines if line.get_marker() == "o"]
    assert dots == [(89, 1), (90, 2)]
    assert [line.get_ydata()[0] for line in error.lines if line.get_marker() == "o"] == [2]
    edge = [[(text.get_text(), text.get_position()[1]) for text in axis.texts] for axis in (bleu, error)]
    assert edge == [[("← 60.0", 0)], [("0.900 →", 1)]]
