import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import Embeddings, PositionalEncoding, sinusoidal_positions

TOKENS = jnp.array([[1, 2, 3], [3, 0, 0]])
X = jax.random.normal(jax.random.key(1), (2, 3, 6))


def test_embeddings_are_rows_of_the_table_times_the_root_of_their_size():
    module = Embeddings(9, 5)
    params = module.init(jax.random.key(0), TOKENS)
    table = params["params"]["embedding"]["embedding"]
    assert table.shape == (5, 9)
    np.testing.assert_allclose(module.apply(params, TOKENS), 3 * table[TOKENS], rtol=1e-6)


def test_embeddings_enter_with_the_variance_of_the_positions_or_so():
    module = Embeddings(64, 200)
    assert abs(module.apply(module.init(jax.random.key(0), TOKENS), jnp.arange(200)).std() - 1) < 0.05


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float64])
def test_dtypes_come_out(x64, dtype):
    module = Embeddings(4, 5, param_dtype=dtype)
    assert module.apply(module.init(jax.random.key(0), TOKENS), TOKENS).dtype == dtype
    assert PositionalEncoding(6).apply({}, X.astype(dtype)).dtype == dtype


def test_positional_encoding_adds_the_positions_and_has_no_parameters():
    module = PositionalEncoding(6, dropout=0.5)
    assert module.init(jax.random.key(0), X) == {}
    np.testing.assert_array_equal(module.apply({}, X), X + sinusoidal_positions(3, 6))


def test_dropout_comes_after_the_sum_and_is_drawn_or_given():
    module, encoded = PositionalEncoding(6, dropout=0.5), X + sinusoidal_positions(3, 6)
    keep = jax.random.bernoulli(jax.random.key(2), 0.5, X.shape)
    np.testing.assert_allclose(module.apply({}, X, keep_mask=keep), jnp.where(keep, 2 * encoded, 0), rtol=1e-6)
    drawn = module.apply({}, X, deterministic=False, rngs={"dropout": jax.random.key(3)})
    assert 0.2 < (drawn == 0).mean() < 0.8
    np.testing.assert_allclose(drawn[drawn != 0], 2 * encoded[drawn != 0], rtol=1e-6)
