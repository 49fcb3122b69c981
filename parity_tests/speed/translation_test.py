import numpy as np
import pytest

from parity_tests.speed.torch_training import tuned_model
from parity_tests.speed.translation import (
    EOS,
    FIRST_WORD,
    J_BATCHES,
    PAD,
    TRANSLATORS,
    draw_sources,
    draw_training,
    training_needs,
)


@pytest.mark.parametrize("name", TRANSLATORS)
def test_sentences_are_words_that_end_in_eos(name):
    vocab_size = TRANSLATORS[name].encoder["vocab_size"]
    for group in draw_training(name):
        for ids, lens, first in ((group.sources, group.source_lens, 0), (group.targets, group.target_lens, 1)):
            position, last = np.arange(ids.shape[-1]), lens[..., None] - 1
            words = (position >= first) & (position < last)
            assert ((ids >= FIRST_WORD) & (ids < vocab_size))[words].all()
            assert (ids[np.broadcast_to(position == last, ids.shape)] == EOS).all()
            assert (ids[np.broadcast_to(position > last, ids.shape)] == PAD).all()
            assert lens.max() <= ids.shape[-1]


def test_w1_has_the_book_s_thousand_pairs():
    (group,) = draw_training("w1")
    assert group.sources.shape == (16, 64, 10)
    assert (group.target_lens > 0).sum() == 1000
    assert ((group.target_lens > 0) == (group.source_lens > 0)).all()


def test_j_has_sorted_batches_of_2048_padded_tokens():
    groups = draw_training("j")
    assert sum(len(group.sources) for group in groups) == sum(J_BATCHES)
    longest = 0
    for group in groups:
        _, rows, length = group.sources.shape
        assert 2048 - length < rows * length <= 2048
        assert group.source_lens.min() > longest
        longest = group.source_lens.max()
        assert group.labels > 0.7 * rows * length * len(group.sources)


@pytest.mark.parametrize(("name", "parameters"), [("w1", None), ("w2", None), ("j", 8.05e6)])
def test_adam_goes_over_every_parameter(name, parameters):
    counted = sum(p.numel() for p in tuned_model(TRANSLATORS[name]).parameters())
    assert training_needs(name)["copy"] == pytest.approx(28 * counted, rel=0.05)
    if parameters is not None:
        assert counted == pytest.approx(parameters, rel=0.01)


def test_what_is_searched_with_is_the_same_each_time():
    for one, other in zip(draw_sources(), draw_sources(), strict=True):
        np.testing.assert_array_equal(one, other)
