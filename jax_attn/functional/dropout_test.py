import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import dropout
from jax_attn.functional.dropout import keep_mask


def test_what_is_kept_is_scaled_and_the_rest_is_zero():
    x = jnp.array([1.0, 2.0, jnp.nan])
    np.testing.assert_array_equal(dropout(x, 0.75, jnp.array([True, False, False])), [4, 0, 0])


@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_the_mask_keeps_one_minus_rate(rate):
    mask = keep_mask(jax.random.key(0), rate, (3, 33_333))
    np.testing.assert_allclose(mask.mean(axis=1), 1 - rate, atol=0.01)
    assert abs((mask[0] & mask[1]).mean() - (1 - rate) ** 2) < 0.01  # rows and
    assert abs((mask[:, ::2][:, :-1] & mask[:, 1::2]).mean() - (1 - rate) ** 2) < 0.01  # neighbours are independent


def test_each_of_several_keys_gives_the_mask_that_it_gives_alone():
    keys = jax.random.split(jax.random.key(0), (2, 3))
    masks = jax.vmap(jax.vmap(lambda key: keep_mask(key, 0.3, (5, 7))))(keys)
    for index in np.ndindex(2, 3):
        np.testing.assert_array_equal(masks[index], keep_mask(keys[index], 0.3, (5, 7)))
    assert len({mask.tobytes() for mask in np.asarray(masks).reshape(6, 35)}) == 6


def test_an_axis_of_one_drops_the_same_entries_along_it():
    x, keep = jnp.arange(1.0, 7).reshape(2, 3), jnp.array([[True, False, True]])
    np.testing.assert_array_equal(dropout(x, 0.5, keep), [[2, 0, 6], [8, 0, 12]])
    np.testing.assert_array_equal(dropout(x, 0.5, keep.T[:2]), [[2, 4, 6], [0, 0, 0]])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("rate", [0.5, np.float64(0.5)])
def test_the_dtype_is_kept(dtype, rate):
    assert dropout(jnp.ones(3, dtype), rate, jnp.ones(3, bool)).dtype == dtype
