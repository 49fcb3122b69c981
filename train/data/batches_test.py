import numpy as np
import pytest

from train.data.batches import PADDING_ROW, Examples, encode, in_order, make_buckets, pad, plan, take
from train.data.corpus import Pair
from train.data.vocabulary import BOS, EOS, PAD, WordVocabulary


def test_examples_are_framed_and_padded():
    pairs = [Pair("a b", "x")]
    source, target = WordVocabulary.build(["a b"]), WordVocabulary.build(["x"])
    examples = encode(pairs, source, target, 4, 5)
    assert examples.sources.tolist() == [[4, 5, EOS, PAD]]
    assert examples.targets.tolist() == [[BOS, 4, EOS, PAD, PAD]]
    assert (examples.source_lens.tolist(), examples.target_lens.tolist()) == ([3], [3])


def test_a_sentence_that_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match="at most 2 tokens; got 3"):
        pad([[1, 2, 3]], 2)


def examples_of(lens):
    """Examples of the given source lengths, whose targets are two tokens longer; each id is the example's index."""
    lens = np.asarray(lens)
    ids = np.broadcast_to(np.arange(lens.size)[:, None], (lens.size, lens.max() + 2))
    return Examples(ids[:, :-2], lens, ids, lens + 2)


def rows_of(groups):
    rows = np.concatenate([group.rows.ravel() for group in groups])
    return rows[rows != PADDING_ROW].tolist()


@pytest.mark.parametrize(("num_examples", "batch_size"), [(10, 5), (11, 4), (3, 8), (1, 1)])
@pytest.mark.parametrize("num_widths", [1, 3])
def test_an_epoch_holds_every_example_once(num_examples, batch_size, num_widths):
    examples = examples_of(np.arange(num_examples) % 5 + 1)
    groups = plan(make_buckets(examples, num_widths), batch_size, 2, seed=1, epoch=2)
    assert sorted(rows_of(groups)) == list(range(num_examples))
    for group in groups:
        assert group.rows.shape == (2, batch_size)
        empty = (group.rows == PADDING_ROW).ravel()
        assert (np.diff(empty.astype(int)) >= 0).all()  # padding rows come last, so padding batches do
        assert not empty[0]


def test_one_width_is_a_permutation_in_batches():
    (group,) = plan(make_buckets(examples_of([3] * 16), 1), 4, 4, seed=0, epoch=0)
    (other,) = plan(make_buckets(examples_of([3] * 16), 1), 8, 2, seed=0, epoch=0)
    assert group.rows.ravel().tolist() == other.rows.ravel().tolist()  # the order does not depend on the batch size
    assert rows_of([group]) != list(range(16))


def test_the_plan_is_a_pure_function_of_seed_and_epoch():
    buckets = make_buckets(examples_of(np.arange(100) % 9 + 1), 3)
    assert rows_of(plan(buckets, 8, 1, 3, 4)) == rows_of(plan(buckets, 8, 1, 3, 4))
    assert rows_of(plan(buckets, 8, 1, 3, 4)) != rows_of(plan(buckets, 8, 1, 3, 5))
    assert rows_of(plan(buckets, 8, 1, 3, 4)) != rows_of(plan(buckets, 8, 1, 4, 4))


def test_no_example_is_cut_and_short_ones_are_padded_less():
    lens = np.array([1, 1, 2, 2, 3, 3, 9, 9])
    buckets = make_buckets(examples_of(lens), 4)
    for bucket in buckets:
        assert (lens[bucket.members] <= bucket.source_width).all()
        assert (lens[bucket.members] + 2 <= bucket.target_width).all()
    assert [bucket.source_width for bucket in buckets] == [2, 3, 9]


def test_a_batch_is_cut_to_its_bucket_and_a_padding_row_is_empty():
    examples = examples_of([1, 2, 9, 9])
    bucket = make_buckets(examples, 2)[0]
    batch = take(examples, np.array([[1, PADDING_ROW]]), bucket)
    assert batch.sources.shape == (1, 2, bucket.source_width)
    assert batch.targets.shape == (1, 2, bucket.target_width)
    assert batch.source_lens.tolist() == [[2, 0]]
    assert batch.target_lens.tolist() == [[4, 0]]


def test_in_order_fills_up_the_last_batch():
    assert in_order(3, 2).tolist() == [[0, 1], [2, PADDING_ROW]]
