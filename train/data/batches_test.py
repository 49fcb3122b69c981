import numpy as np
import pytest

from train.data.batches import NOBODY, encode, in_order, pad, plan
from train.data.corpus import Pair
from train.data.vocabulary import BOS, EOS, PAD, Vocabulary


def test_examples_are_framed_and_padded():
    pairs = [Pair(("a", "b"), ("x",))]
    source, target = Vocabulary.build([["a", "b"]]), Vocabulary.build([["x"]])
    examples = encode(pairs, source, target, 4, 5)
    assert examples.sources.tolist() == [[4, 5, EOS, PAD]]
    assert examples.targets.tolist() == [[BOS, 4, EOS, PAD, PAD]]
    assert (examples.source_lens.tolist(), examples.target_lens.tolist()) == ([3], [3])


def test_a_sentence_that_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match="at most 2 tokens; got 3"):
        pad([[1, 2, 3]], 2)


@pytest.mark.parametrize(("num_examples", "batch_size"), [(10, 5), (11, 4), (3, 8), (1, 1)])
def test_every_example_stands_in_an_epoch_once(num_examples, batch_size):
    rows = plan(num_examples, batch_size, seed=1, epoch=2)
    assert rows.shape == (-(-num_examples // batch_size), batch_size)
    assert sorted(rows[rows != NOBODY]) == list(range(num_examples))
    assert (rows.ravel()[:num_examples] != NOBODY).all()


def test_the_plan_is_a_pure_function_of_seed_and_epoch():
    np.testing.assert_array_equal(plan(100, 8, 3, 4), plan(100, 8, 3, 4))
    assert (plan(100, 8, 3, 4) != plan(100, 8, 3, 5)).any()
    assert (plan(100, 8, 3, 4) != plan(100, 8, 4, 4)).any()


def test_the_order_of_examples_does_not_depend_on_the_batch_size():
    by_four, by_eight = plan(16, 4, 0, 0), plan(16, 8, 0, 0)
    assert by_four.ravel().tolist() == by_eight.ravel().tolist()


def test_in_order_fills_up_the_last_batch():
    assert in_order(3, 2).tolist() == [[0, 1], [2, NOBODY]]
