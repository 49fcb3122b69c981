import numpy as np
import pytest

from parity_tests.speed.inputs import BUCKET_STEPS, EOS, FIRST_WORD, PAD, W1, W2, J, draw_sources, draw_training
from parity_tests.speed.limits import limit_seconds, training_needs
from parity_tests.speed.torch_side import tuned_model

EACH = pytest.mark.parametrize("translator", [W1, W2, J], ids=lambda translator: translator.name)


@EACH
def test_sentences_are_words_that_end_in_eos(translator):
    for group in draw_training(translator.name):
        for ids, lens, first in ((group.sources, group.source_lens, 0), (group.targets, group.target_lens, 1)):
            position, last = np.arange(ids.shape[-1]), lens[..., None] - 1
            words = (position >= first) & (position < last)
            assert ((ids >= FIRST_WORD) & (ids < translator.encoder["vocab_size"]))[words].all()
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
    assert [len(group.sources) for group in groups] == list(BUCKET_STEPS)
    longest = 0
    for group in groups:
        _, rows, length = group.sources.shape
        assert 2048 - length < rows * length <= 2048
        assert group.source_lens.min() > longest
        longest = group.source_lens.max()
        assert group.num_labels > 0.7 * rows * length * len(group.sources)


def test_the_sentences_to_translate_are_the_same_each_time():
    for one, other in zip(draw_sources(), draw_sources(), strict=True):
        np.testing.assert_array_equal(one, other)


@EACH
def test_adam_copies_every_parameter(translator):
    counted = sum(p.numel() for p in tuned_model(translator).parameters())
    assert training_needs(translator)["copy"] == pytest.approx(28 * counted, rel=0.05)
    if translator == J:
        assert counted == pytest.approx(8.05e6, rel=0.01)


def test_a_limit_needs_every_ceiling():
    assert limit_seconds({"gemm": 6.0, "tanh": 1.0}, {"gemm": 3.0, "tanh": 2.0}) == 2.5
    assert limit_seconds({"gemm": 6.0, "tanh": 1.0}, {"gemm": 3.0}) is None
    assert limit_seconds({}, {"gemm": 3.0}) is None
