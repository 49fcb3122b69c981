import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

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


def test_tokens_of_any_shape_and_only_integers_are_embedded(own_checks):
    module = Embeddings(4, 5)
    params = module.init(jax.random.key(0), TOKENS)
    assert module.apply(params, jnp.array(1)).shape == (4,)
    with pytest.raises(TypeError, match="tokens must have an integer dtype; got float32"):
        module.apply(params, TOKENS.astype(float))


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


def test_wrong_sizes_raise():
    with pytest.raises(ValueError, match=r"x must have d_model = 5 features; got 6 in \[2, 3, 6\]"):
        PositionalEncoding(5).apply({}, X)
    with pytest.raises(ValueError, match=r"x must have at most max_len = 2 positions; got 3 in \[2, 3, 6\]"):
        PositionalEncoding(6, max_len=2).apply({}, X)
    with pytest.raises(ValueError, match=r"dropout must be in \[0, 1\); got 1.0"):
        PositionalEncoding(6, dropout=1.0)


def test_the_modules_work_in_nnx_through_the_bridge():
    embeddings = nnx.bridge.ToNNX(Embeddings(4, 5), rngs=nnx.Rngs(0)).lazy_init(TOKENS)
    params = {"params": nnx.to_pure_dict(nnx.state(embeddings, nnx.Param))}
    np.testing.assert_array_equal(embeddings(TOKENS), Embeddings(4, 5).apply(params, TOKENS))
    positions = nnx.bridge.ToNNX(PositionalEncoding(6), rngs=nnx.Rngs(0)).lazy_init(X)
    np.testing.assert_array_equal(positions(X), PositionalEncoding(6).apply({}, X))


@pytest.mark.parametrize("wrong", [-1, 5])
def test_an_id_that_can_be_seen_to_be_out_of_range_is_refused(wrong):
    module = Embeddings(4, 5)
    params = module.init(jax.random.key(0), jnp.zeros((2, 3), int))
    with pytest.raises(ValueError, match=rf"tokens must be in \[0, 5\); got {wrong}"):
        module.apply(params, jnp.array([[0, wrong]]))
