import numpy as np
import pytest

from train.corpus import Alignment
from train.metrics import alignment_error_rate, diagonal, peaks, score_texts

SURE = frozenset({(0, 0), (1, 1)})


def test_the_right_links_have_no_error_and_the_wrong_ones_nothing_else():
    gold = [Alignment(SURE, frozenset())]
    assert alignment_error_rate([{(0, 0), (1, 1)}], gold) == 0
    assert alignment_error_rate([{(1, 0), (0, 1)}], gold) == 1


def test_a_possible_link_is_not_wrong_and_a_sure_one_that_is_missing_is():
    gold = [Alignment(SURE, frozenset({(2, 1)}))]
    # A = {00, 21}: one sure, both possible: 1 - (1 + 2) / (2 + 2)
    assert alignment_error_rate([{(0, 0), (2, 1)}], gold) == pytest.approx(0.25)


def test_peaks_leave_out_eos_on_both_sides():
    weights = np.array([[0.1, 0.2, 0.7], [0.6, 0.1, 0.3], [0.0, 0.0, 1.0]])  # two words and <eos> on either side
    assert peaks(weights, 2, 2) == {(1, 0), (0, 1)}


def test_the_diagonal_leads_from_corner_to_corner():
    assert diagonal(3, 5) == {(0, 0), (0, 1), (1, 2), (2, 3), (2, 4)}
    assert diagonal(1, 1) == {(0, 0)}


def test_text_scores_are_those_of_sacrebleu_with_its_signature():
    perfect = score_texts(["le chat noir dort ."], ["le chat noir dort ."])
    assert perfect.bleu == pytest.approx(100)
    assert perfect.chrf == pytest.approx(100)
    assert "tok:13a" in perfect.bleu_signature
    assert score_texts(["le chien"], ["une autre phrase entière"]).bleu < 5
