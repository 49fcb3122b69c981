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
