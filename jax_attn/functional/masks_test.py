import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import attention_mask, causal_mask, length_mask, sequence_mask
from jax_attn.functional.masks import zero_unattended


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.float32])
def test_length_mask_counts_from_the_left(dtype):
    mask = length_mask(jnp.array([[1, 0], [3, 4]], dtype), 4)
    np.testing.assert_array_equal(mask, [[[1, 0, 0, 0], [0, 0, 0, 0]], [[1, 1, 1, 0], [1, 1, 1, 1]]])
    assert mask.dtype == bool


@pytest.mark.parametrize(("wrong", "shown"), [(-1, "-1"), (5, "5"), (np.nan, "nan")])
def test_a_length_that_can_be_seen_to_be_out_of_range_is_refused(wrong, shown):
    with pytest.raises(ValueError, match=rf"valid_lens must be in \[0, 4\]; got {shown}"):
        length_mask(jnp.array([2, wrong]), 4)


def test_causal_mask_allows_the_key_of_the_query_and_those_before():
    np.testing.assert_array_equal(causal_mask(3), [[1, 0, 0], [1, 1, 0], [1, 1, 1]])
    np.testing.assert_array_equal(causal_mask(2, 4), [[1, 0, 0, 0], [1, 1, 0, 0]])


def test_the_rank_of_the_lengths_says_whether_they_belong_to_examples_or_queries():
    # As many queries as examples: only the rank can tell.
    by_example = attention_mask((2, 2, 3), jnp.array([1, 2]))
    by_query = attention_mask((2, 2, 3), jnp.array([[1, 2], [3, 0]]))
    np.testing.assert_array_equal(by_example, [[[1, 0, 0]], [[1, 1, 0]]])
    np.testing.assert_array_equal(by_query, [[[1, 0, 0], [1, 1, 0]], [[1, 1, 1], [0, 0, 0]]])


@pytest.mark.parametrize("lens", [jnp.array([1, 2]), jnp.array([[1, 2], [3, 0]])])
def test_vmap_over_the_batch_gives_the_same_mask(lens):
    mapped = jax.vmap(lambda lens: attention_mask((2, 3), lens))(lens)
    np.testing.assert_array_equal(mapped, attention_mask((2, 2, 3), lens))


def test_lengths_and_mask_must_both_allow():
    both = attention_mask((2, 2, 3), jnp.array([1, 3]), jnp.array([[True, False, True], [False, True, True]]))
    np.testing.assert_array_equal(both, [[[1, 0, 0], [0, 0, 0]], [[1, 0, 1], [0, 1, 1]]])


def test_neither_lengths_nor_mask_is_no_mask():
    assert attention_mask((2, 3)) is None


@pytest.mark.parametrize("shape", [(), (3,), (2, 1), (4, 1, 3), (1, 2, 3)])
def test_a_mask_broadcasts_from_the_right_and_gets_the_axes_of_the_scores(shape):
    mask = attention_mask((4, 2, 3), mask=jnp.ones(shape, bool))
    assert mask.ndim == 3
    assert np.broadcast_shapes(mask.shape, (4, 2, 3)) == (4, 2, 3)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    ("lens", "mask", "message"),
    [
        ((3,), None, "valid_lens must be [2] or [2, 3]; got [3]"),
        ((), None, "valid_lens must be [2] or [2, 3]; got []"),
        ((2, 4), None, "valid_lens must be [2] or [2, 3]; got [2, 4]"),
        (None, (2, 4), "mask must be broadcastable to [2, 3, 4]; got [2, 4]"),
        (None, (1, 2, 3, 4), "mask must be broadcastable to [2, 3, 4]; got [1, 2, 3, 4]"),
    ],
)
def test_a_wrong_shape_raises_and_both_shapes_are_named(jit, lens, mask, message):
    lens = None if lens is None else jnp.ones(lens)
    mask = None if mask is None else jnp.ones(mask, bool)
    call = partial(attention_mask, (2, 3, 4))
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        (jax.jit(call) if jit else call)(lens, mask)


def test_a_mask_that_is_not_boolean_and_lengths_that_are_no_numbers_are_refused(own_checks):
    with pytest.raises(TypeError, match="mask must be boolean, True where it allows; got int32"):
        attention_mask((2, 3), mask=jnp.ones((2, 3), jnp.int32))
    with pytest.raises(TypeError, match="valid_lens must have an integer or floating dtype; got bool"):
        attention_mask((2, 2, 3), jnp.array([True, False]))


def test_zero_unattended_removes_what_no_query_of_the_example_may_see_and_nothing_else():
    allowed = jnp.array([[[True, False, False], [False, True, False]]])
    positions = jnp.array([[[1.0], [2.0], [jnp.nan]]])
    np.testing.assert_array_equal(zero_unattended(positions, allowed), [[[1], [2], [0]]])
    assert zero_unattended(positions, None) is positions


@pytest.mark.parametrize("value", [0, -1])
def test_sequence_mask_writes_the_value_past_each_length(value):
    X, v = jnp.array([[1, 2, 3], [4, 5, 6]]), value
    np.testing.assert_array_equal(sequence_mask(X, jnp.array([1, 2]), value), [[1, v, v], [4, 5, v]])
    np.testing.assert_array_equal(X, [[1, 2, 3], [4, 5, 6]])


def test_sequence_mask_finds_time_behind_the_axes_of_the_lengths():
    X = jnp.full((2, 2, 3, 5), jnp.nan)
    masked = sequence_mask(X, jnp.array([[0, 1], [2, 3]]))
    np.testing.assert_array_equal(jnp.isnan(masked).sum(axis=(-1, -2)), [[0, 5], [10, 15]])
    np.testing.assert_array_equal(masked[1, 0, 2], np.zeros(5))


def test_sequence_mask_refuses_lengths_that_are_no_leading_axes():
    with pytest.raises(ValueError, match=r"valid_lens must be \[2\]; got \[3\]"):
        sequence_mask(jnp.ones((2, 3)), jnp.array([1, 2, 3]))
