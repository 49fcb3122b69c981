import numpy as np
import pytest

from train.data.batches import (
    PADDING_ROW,
    Bucket,
    in_order,
    make_buckets,
    pad,
    padding_share,
    plan,
    refill,
    take,
)
from train.data.sentences import PairIds, SentenceWriter
from train.data.vocabulary import BOS, EOS, PAD


def pairs_of(source_lens, target_lens=None):
    """Pairs of the given lengths; by default targets are one token longer. Each id is the pair's index + 4."""
    sides = []
    for lens in (source_lens, np.asarray(source_lens) + 1 if target_lens is None else target_lens):
        writer = SentenceWriter(1000)
        writer.extend([[i + 4] * n for i, n in enumerate(np.asarray(lens).tolist())])
        sides.append(writer.finish())
    return PairIds(*sides)


def rows_of(groups):
    rows = np.concatenate([group.rows.ravel() for group in groups])
    return rows[rows != PADDING_ROW].tolist()


def test_a_batch_is_framed_and_padded_and_a_padding_row_is_empty():
    batch = take(pairs_of([1, 2]), np.array([[1, PADDING_ROW], [0, 1]]), Bucket(4, 6, 2, np.arange(2)))
    assert batch.sources.tolist() == [[[5, 5, EOS, PAD], [PAD] * 4], [[4, EOS, PAD, PAD], [5, 5, EOS, PAD]]]
    assert batch.targets[0, 0].tolist() == [BOS, 5, 5, 5, EOS, PAD]
    assert (batch.source_lens.tolist(), batch.target_lens.tolist()) == ([[3, 0], [2, 3]], [[5, 0], [4, 5]])


def test_a_sentence_that_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match="at most 2 tokens; got 3"):
        pad([[1, 2, 3]], 2)
    with pytest.raises(ValueError, match="at most 2 tokens; got 3"):
        take(pairs_of([3]), np.array([0]), Bucket(3, 9, 1, np.arange(1)))


@pytest.mark.parametrize(("num_pairs", "batch_size"), [(10, 5), (11, 4), (3, 8), (1, 1)])
@pytest.mark.parametrize("num_widths", [1, 3])
def test_an_epoch_holds_every_pair_once(num_pairs, batch_size, num_widths):
    groups = plan(make_buckets(pairs_of(np.arange(num_pairs) % 5 + 1), num_widths, batch_size), 2, seed=1, epoch=2)
    assert sorted(rows_of(groups)) == list(range(num_pairs))
    for group in groups:
        assert group.rows.shape == (2, batch_size)
        empty = (group.rows == PADDING_ROW).ravel()
        assert (np.diff(empty.astype(int)) >= 0).all()  # padding rows come last, so padding batches do
        assert not empty[0]


def test_one_width_is_a_permutation_in_batches():
    (group,) = plan(make_buckets(pairs_of([3] * 16), 1, 4), 4, seed=0, epoch=0)
    (other,) = plan(make_buckets(pairs_of([3] * 16), 1, 8), 2, seed=0, epoch=0)
    assert group.rows.ravel().tolist() == other.rows.ravel().tolist()  # the order does not depend on the batch size
    assert rows_of([group]) != list(range(16))


def test_the_plan_is_a_pure_function_of_seed_and_epoch():
    buckets = make_buckets(pairs_of(np.arange(100) % 9 + 1), 3, 8)
    assert rows_of(plan(buckets, 1, 3, 4)) == rows_of(plan(buckets, 1, 3, 4))
    assert rows_of(plan(buckets, 1, 3, 4)) != rows_of(plan(buckets, 1, 3, 5))
    assert rows_of(plan(buckets, 1, 3, 4)) != rows_of(plan(buckets, 1, 4, 4))


def test_the_widths_lose_as_little_as_the_best_ones():
    random = np.random.default_rng(0)
    lens = random.integers(1, 9, 200)
    pairs = pairs_of(lens, lens)  # one order serves both sides, so that the best widths can be enumerated
    padded = padding_share(make_buckets(pairs, 3, 1), pairs)
    best = min(
        padding_share([Bucket(w + 1, w + 2, 1, np.flatnonzero((lens > v) & (lens <= w))) for v, w in cuts], pairs)
        for cuts in ([(0, a), (a, b), (b, 8)] for a in range(1, 7) for b in range(a + 1, 8))
    )
    assert padded == pytest.approx(best)
    assert padding_share(make_buckets(pairs, 8, 1), pairs) == 0


def test_every_pair_fits_its_bucket_and_there_are_at_most_the_widths_that_were_asked_for():
    random = np.random.default_rng(1)
    pairs = pairs_of(random.integers(1, 600, 3000), random.integers(1, 400, 3000))
    for num_widths in (1, 4, 16):
        buckets = make_buckets(pairs, num_widths)
        assert len(buckets) <= num_widths
        assert sorted(np.concatenate([bucket.members for bucket in buckets]).tolist()) == list(range(3000))
        for bucket in buckets:
            take(pairs, bucket.members, bucket)  # or it raises


def test_batches_by_tokens_have_more_rows_where_sentences_are_short():
    pairs = pairs_of(np.repeat([1, 30], 200))
    short, long = make_buckets(pairs, 2, batch_tokens=256)
    assert (short.batch_size, long.batch_size) == (256 // 4, 256 // 33)
    (tiny,) = make_buckets(pairs, 1, batch_tokens=8)
    assert tiny.batch_size == 1


def test_other_pairs_fill_the_same_widths():
    buckets = make_buckets(pairs_of([1, 1, 5, 9]), 2)
    again = refill(buckets, pairs_of([9, 1, 1, 8]))
    assert [bucket[:3] for bucket in again] == [bucket[:3] for bucket in buckets]
    assert [bucket.members.tolist() for bucket in again] == [[1, 2], [0, 3]]


def test_a_given_length_is_the_width_of_both_sides():
    (bucket,) = make_buckets(pairs_of([1, 5]), 1, steps=10)
    assert (bucket.source_width, bucket.target_width) == (10, 10)


def test_in_order_fills_up_the_last_batch():
    assert in_order(3, 2).tolist() == [[0, 1], [2, PADDING_ROW]]
