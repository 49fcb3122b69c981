"""The bootstrap against its definition, gone through sample by sample, and against what theory says."""

import numpy as np
import pytest

from train.compare_attention.bootstrap import Interval, as_it_is, draw, interval, of_sample
from train.translation.metrics import bleu_counts, bleu_of, score_texts

KNOWN = ["le chat dort .", "elle mange une pomme .", "je ne sais pas .", "tu vends la grande maison rouge ."]
SAID = [
    ["le chat dort .", "elle mange la pomme .", "je ne sais pas .", "tu vends la maison rouge ."],
    ["le chien dort .", "elle mange une pomme .", "je sais pas .", "tu vends une grande maison rouge ."],
    ["le chat mange .", "elle mange une pomme .", "je ne sais .", "vous vendez la grande maison ."],
]


def ratio(counts) -> float:
    return counts[0] / counts[1]


def test_each_sample_is_the_score_of_the_drawn_seeds_on_the_drawn_sentences():
    counts = np.array([bleu_counts(of_seed, KNOWN) for of_seed in SAID])
    draws = draw(3, 4, samples=50)
    fast = of_sample(counts, bleu_of, draws)
    for sample, (seeds, times) in enumerate(zip(draws.seeds, draws.times, strict=True)):
        sentences = [i for i, n in enumerate(times) for _ in range(n)]
        assert len(sentences) == 4
        known = [KNOWN[i] for i in sentences]
        slow = [score_texts([SAID[seed][i] for i in sentences], known).bleu for seed in seeds]
        assert fast[sample] == pytest.approx(np.mean(slow), abs=1e-9)


def test_seeds_and_sentences_are_drawn_evenly_with_replacement():
    draws = draw(3, 5, samples=20_000)
    np.testing.assert_allclose([(draws.seeds == seed).mean() for seed in range(3)], 1 / 3, atol=0.01)
    np.testing.assert_allclose(draws.times.mean(axis=0), 1, atol=0.03)
    np.testing.assert_allclose(draws.times.var(axis=0), 0.8, atol=0.04)  # binomial: 5 · 1/5 · 4/5
    assert len(np.unique(np.sort(draws.seeds, axis=1), axis=0)) == 10  # every combination


def test_one_seed_gives_the_standard_error_of_a_mean():
    values = np.random.default_rng(1).normal(3, 2, size=400)
    counts = np.stack([values, np.ones(400)], axis=-1)[None]
    value = as_it_is(counts, ratio)
    found = interval(value, of_sample(counts, ratio, draw(1, 400)))
    error = values.std() / 20
    assert value == pytest.approx(values.mean())
    np.testing.assert_allclose([found.low, found.high], [value - 1.96 * error, value + 1.96 * error], atol=0.15 * error)


def test_seeds_that_differ_widen_the_interval_and_equal_sentences_do_not():
    counts = np.ones((3, 100, 2)) * np.array([[1.0], [2.0], [3.0]])[:, None] ** [[[1, 0]]]
    found = interval(as_it_is(counts, ratio), of_sample(counts, ratio, draw(3, 100)))
    assert found == Interval(2, pytest.approx(4 / 3, abs=0.35), pytest.approx(8 / 3, abs=0.35))
    alike = counts[:1]
    assert interval(1.0, of_sample(alike, ratio, draw(1, 100))) == Interval(1, 1, 1)


def test_the_same_draws_make_the_difference_of_two_narrow():
    hard = np.random.default_rng(2).integers(0, 10, size=(1, 200))
    ours = np.stack([hard, np.full_like(hard, 10)], axis=-1)
    theirs = ours + np.array([0, 1])
    draws = draw(1, 200)
    one, other = (of_sample(counts, ratio, draws) for counts in (ours, theirs))
    assert np.ptp(one - other) < np.ptp(one) / 5
