"""Rows from runs whose numbers are known."""

import numpy as np
import pytest

from train.compare_attention.bootstrap import as_it_is, draw, interval, of_sample
from train.compare_attention.results import Outcome, compare
from train.compare_attention.table import as_markdown, as_text, cells, notes
from train.translation.metrics import alignment_error_of, bleu_counts, bleu_of

KNOWN = ["le chat dort .", "elle mange une pomme .", "je ne sais pas ."]
WORSE = ["le chien dort .", "elle mange la pomme .", "je ne sais pas ."]


def outcome(attention, seed, said, speed=1000.0, alignment=((2, 4), (4, 4), (3, 4)), memory=700_000_000):
    summary = {
        "preset": "demo", "epochs": 5, "seed": seed, "test_pairs": 3, "bleu_signature": "s", "versions": {},
        "bleu": bleu_of(bleu_counts(said, KNOWN).sum(axis=0)), "tokens_per_second": speed, "seconds": 40.0,
        "peak_memory_bytes": memory, "peak_device_memory_bytes": None, "parameters": 279_825,
        "attention_parameters": 18_528, "alignment_error_rate_of_diagonal": 0.25,
        "alignment_error_rate": None if alignment is None else alignment_error_of(np.sum(alignment, axis=0)),
    }  # fmt: skip
    return Outcome(attention, summary, bleu_counts(said, KNOWN), None if alignment is None else np.array(alignment))


RUNS = [
    *(outcome("additive", seed, KNOWN, speed) for seed, speed in ((0, 900.0), (1, 2000.0), (2, 1000.0))),
    *(outcome("dot", seed, WORSE) for seed in (0, 1, 2)),
    *(outcome("none", seed, WORSE if seed else KNOWN, alignment=None, memory=None) for seed in (0, 1, 2)),
]


def test_a_row_holds_means_medians_and_intervals():
    comparison = compare(RUNS)
    additive, dot, none = comparison["attentions"]
    assert [row["attention"] for row in comparison["attentions"]] == ["additive", "dot", "none"]
    assert comparison["seeds"] == [0, 1, 2]
    assert additive["bleu"] == {"value": 100, "low": 100, "high": 100}
    assert additive["tokens_per_second"] == 1000
    assert additive["alignment_error"]["value"] == 0.25
    assert (none["alignment_error"], none["alignment_error_beside_first"], none["peak_memory_bytes"]) == (None,) * 3
    counts = np.stack([run.bleu for run in RUNS[6:]])
    expected = interval(as_it_is(counts, bleu_of), of_sample(counts, bleu_of, draw(3, 3)))
    assert list(none["bleu"].values()) == pytest.approx(list(expected), abs=1e-6)
    assert dot["bleu_of_seeds"] == [RUNS[3].summary["bleu"]] * 3
    assert dot["bleu_beside_first"]["value"] == pytest.approx(RUNS[3].summary["bleu"] - 100, abs=1e-6)
    assert dot["alignment_error_beside_first"] == {"value": 0, "low": 0, "high": 0}


def test_the_table_shows_what_is_known_and_a_dash_for_what_is_not():
    table = cells(compare(RUNS))
    assert table[1] == (
        "additive",
        "100.0 [100.0, 100.0]",
        "0.250 [0.000, 0.500]",
        "1,000",
        "700 MB",
        "279,825",
        "18,528",
    )
    assert (table[3][2], table[3][4]) == ("–", "–")
    text = as_text(table).split("\n")
    assert len({len(line) for line in text}) == 1
    assert text[1].startswith("additive    100.0 [100.0, 100.0]   ")
    markdown = as_markdown(table).split("\n")
    assert markdown[:2] == ["| " + " | ".join(table[0]) + " |", "|---" + 6 * "|--:" + "|"]
    assert markdown[3].startswith("| dot | ")


def test_the_notes_name_what_cannot_be_told_apart():
    lines = notes(compare(RUNS))
    assert "the mean over 3 seeds" in lines[0]
    assert "the 3 test sentences" in lines[0]
    assert "of 0.250." in lines[1]
    assert "In alignment error, these cannot be told from additive: dot." in lines
