import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import dropout
from jax_attn.functional.dropout import keep_mask


def test_what_is_kept_is_scaled_and_the_rest_is_zero():
    x = jnp.array([1.0, 2.0, jnp.nan])
    np.testing.assert_array_equal(dropout(x, 0.75, jnp.array([True, False, False])), [4, 0, 0])


def test_the_mask_keeps_one_minus_rate():
    assert abs(keep_mask(jax.random.key(0), 0.2, (10_000,)).mean() - 0.8) < 0.02


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_the_dtype_is_kept(dtype):
    assert dropout(jnp.ones(3, dtype), 0.5, jnp.ones(3, bool)).dtype == dtype
