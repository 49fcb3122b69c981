"""The bootstrap against its definition and against theory, and rows from runs with known results."""

import numpy as np
import pytest

from train.compare_attention.results import (
    Outcome,
    as_markdown,
    bootstrap,
    compare,
    draw,
    interval,
    mean_score,
    notes,
    table,
)  # fmt: skip
from train.translating.metrics import alignment_error_of, bleu_counts, bleu_of, score_texts

REFERENCES = ["le chat dort .", "elle mange une pomme .", "je ne sais pas .", "tu vends la grande maison rouge ."]
TRANSLATIONS = [
    ["le chat dort .", "elle mange la pomme .", "je ne sais pas .", "tu vends la maison rouge ."],
    ["le chien dort .", "elle mange une pomme .", "je sais pas .", "tu vends une grande maison rouge ."],
    ["le chat mange .", "elle mange une pomme .", "je ne sais .", "vous vendez la grande maison ."],
]
WORSE = ["le chien dort .", "elle mange la pomme .", "je ne sais pas .", "tu vends la maison ."]


def ratio(counts) -> float:
    return counts[0] / counts[1]


def test_a_sample_is_the_score_of_the_drawn_seeds_on_the_drawn_sentences():
    counts = np.array([bleu_counts(translations, REFERENCES) for translations in TRANSLATIONS])
    draws = draw(3, 4, samples=50)
    found = bootstrap(counts, bleu_of, draws)
    for sample, (seeds, times) in enumerate(zip(draws.seeds, draws.times, strict=True)):
        sentences = np.repeat(range(4), times)
        assert len(sentences) == 4
        references = [REFERENCES[i] for i in sentences]
        scores = [score_texts([TRANSLATIONS[seed][i] for i in sentences], references).bleu for seed in seeds]
        assert found[sample] == pytest.approx(np.mean(scores), abs=1e-9)


def test_seeds_and_sentences_are_drawn_evenly_with_replacement():
    draws = draw(3, 5, samples=20_000)
    np.testing.assert_allclose([(draws.seeds == seed).mean() for seed in range(3)], 1 / 3, atol=0.01)
    np.testing.assert_allclose(draws.times.mean(axis=0), 1, atol=0.03)
    np.testing.assert_allclose(draws.times.var(axis=0), 0.8, atol=0.04)  # binomial: 5 · 1/5 · 4/5
    assert len(np.unique(np.sort(draws.seeds, axis=1), axis=0)) == 10  # every combination


def test_with_one_seed_the_interval_is_that_of_the_standard_error():
    values = np.random.default_rng(1).normal(3, 2, size=400)
    counts = np.stack([values, np.ones(400)], axis=-1)[None]
    value = mean_score(counts, ratio)
    found = interval(value, bootstrap(counts, ratio, draw(1, 400)))
    error = values.std() / 20
    assert value == pytest.approx(values.mean())
    bounds = [found["low"], found["high"]]
    np.testing.assert_allclose(bounds, [value - 1.96 * error, value + 1.96 * error], atol=0.15 * error)


def outcome(attention, seed, texts, speed=1000.0, alignment=((2, 4), (4, 4), (3, 4), (3, 4)), memory=700_000_000):
    alignment = None if alignment is None else np.array(alignment)
    summary = {
        "preset": "demo", "epochs": 5, "seed": seed, "test_pairs": 4, "bleu_signature": "s", "versions": {},
        "bleu": bleu_of(bleu_counts(texts, REFERENCES).sum(axis=0)), "tokens_per_second": speed, "seconds": 40.0,
        "peak_memory_bytes": memory, "peak_device_memory_bytes": None, "parameters": 279_825,
        "attention_parameters": 18_528, "alignment_error_rate_of_diagonal": 0.25,
        "alignment_error_rate": None if alignment is None else alignment_error_of(alignment.sum(axis=0)),
    }  # fmt: skip
    return Outcome(attention, summary, {"bleu": bleu_counts(texts, REFERENCES), "alignment_error": alignment})


RUNS = [
    *(outcome("additive", seed, REFERENCES, speed) for seed, speed in ((0, 900.0), (1, 2000.0), (2, 1000.0))),
    *(outcome("dot", seed, WORSE) for seed in (0, 1, 2)),
    *(outcome("none", seed, WORSE if seed else REFERENCES, alignment=None, memory=None) for seed in (0, 1, 2)),
]


def test_a_row_has_means_medians_and_intervals():
    comparison = compare(RUNS)
    additive, dot, none = comparison["attentions"]
    assert [row["attention"] for row in comparison["attentions"]] == ["additive", "dot", "none"]
    assert comparison["seeds"] == [0, 1, 2]
    assert additive["bleu"] == {"value": 100, "low": 100, "high": 100}
    assert additive["tokens_per_second"] == 1000
    assert additive["alignment_error"]["value"] == 0.25
    assert (none["alignment_error"], none["alignment_error_minus_first"], none["peak_memory_bytes"]) == (None,) * 3
    counts = np.stack([run.counts["bleu"] for run in RUNS[6:]])
    assert none["bleu"] == interval(mean_score(counts, bleu_of), bootstrap(counts, bleu_of, draw(3, 4)))
    assert dot["bleu_by_seed"] == [RUNS[3].summary["bleu"]] * 3
    assert dot["bleu_minus_first"]["value"] == pytest.approx(RUNS[3].summary["bleu"] - 100, abs=1e-6)
    assert dot["alignment_error_minus_first"] == {"value": 0, "low": 0, "high": 0}


def test_the_table_shows_known_numbers_and_a_dash_for_others():
    rows = table(compare(RUNS))
    expected = ("additive", "100.0 [100.0, 100.0]", "0.250 [0.167, 0.417]", "1,000", "700 MB", "279,825", "18,528")
    assert rows[1][:2] + rows[1][3:] == expected[:2] + expected[3:]
    assert rows[1][2].startswith("0.250 [0.")
    assert (rows[3][2], rows[3][4]) == ("–", "–")
    lines = as_markdown(rows).split("\n")
    assert len({len(line) for line in lines}) == 1
    assert lines[1].startswith("| --------- | -")
    assert lines[2].startswith("| additive  | 100.0 [100.0, 100.0] |")


def test_the_notes_name_attentions_without_a_difference():
    lines = notes(compare(RUNS))
    assert "means over 3 seed(s)" in lines[0]
    assert "4 test sentences" in lines[1]
    assert "of 0.250." in lines[2]
    assert "No difference in alignment error from additive was found for: dot." in lines
