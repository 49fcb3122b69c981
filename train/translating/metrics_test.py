import numpy as np
import pytest

from train.data.corpus import Alignment
from train.translating.metrics import (
    alignment_counts,
    alignment_error_of,
    alignment_error_rate,
    compare_texts,
    diagonal,
    peaks,
    score_in_detail,
    score_texts,
)

SURE = frozenset({(0, 0), (1, 1)})


def test_right_links_have_error_0_and_wrong_links_error_1():
    gold = [Alignment(SURE, frozenset())]
    assert alignment_error_rate([{(0, 0), (1, 1)}], gold) == 0
    assert alignment_error_rate([{(1, 0), (0, 1)}], gold) == 1


def test_a_possible_link_is_no_error_and_a_missing_sure_link_is_one():
    gold = [Alignment(SURE, frozenset({(2, 1)}))]
    # A = {00, 21}: one sure, both possible: 1 - (1 + 2) / (2 + 2)
    assert alignment_error_rate([{(0, 0), (2, 1)}], gold) == pytest.approx(0.25)


def test_peaks_leave_out_eos_on_both_sides():
    weights = np.array([[0.1, 0.2, 0.7], [0.6, 0.1, 0.3], [0.0, 0.0, 1.0]])  # two words and <eos> on either side
    assert peaks(weights, 2, 2) == {(1, 0), (0, 1)}


def test_the_diagonal_goes_from_corner_to_corner():
    assert diagonal(3, 5) == {(0, 0), (0, 1), (1, 2), (2, 3), (2, 4)}
    assert diagonal(1, 1) == {(0, 0)}


def test_score_texts_gives_the_scores_of_sacrebleu_and_their_signatures():
    perfect = score_texts(["le chat noir dort ."], ["le chat noir dort ."])
    assert perfect.bleu == pytest.approx(100)
    assert perfect.chrf == pytest.approx(100)
    assert "tok:13a" in perfect.bleu_signature
    assert score_texts(["le chien"], ["une autre phrase entière"]).bleu < 5


def test_case_counts_unless_the_translations_have_none():
    ours, raw = ["Le chat dort.", "je suis là."], ["le chat dort.", "Je suis là."]
    assert score_texts(ours, raw).bleu < 60
    assert score_texts(ours, raw, lower_case=True).bleu == pytest.approx(100)
    detail = score_in_detail(ours, raw)
    assert detail["BLEU"].score == score_texts(ours, raw).bleu
    assert detail["BLEU lower-cased"].score == detail["BLEU tokenised"].score == pytest.approx(100)
    assert "bs:1000" in detail["BLEU"].signature
    assert "case:lc" in detail["BLEU tokenised"].signature


def test_a_better_system_is_told_from_a_worse_one():
    texts = [f"la phrase numéro {i} est ici ." for i in range(40)]
    worse = [text.replace("est", "était") for text in texts]
    for paired in compare_texts(texts, worse, texts).values():
        assert paired.other < 90 < paired.score
        assert max(paired.p_bootstrap, paired.p_randomisation) < 0.01


def test_summed_counts_give_the_alignment_error():
    gold = [Alignment(SURE, frozenset({(2, 1)})), Alignment(SURE, frozenset())]
    predicted = [{(0, 0), (2, 1)}, {(1, 1), (0, 1)}]
    np.testing.assert_array_equal(alignment_counts(predicted, gold), [[3, 4], [2, 4]])
    assert alignment_error_of(np.array([5, 8])) == alignment_error_rate(predicted, gold) == pytest.approx(3 / 8)
    with pytest.raises(ValueError, match="of no links is not defined"):
        alignment_error_rate([], [])
