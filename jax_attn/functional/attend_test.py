import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import attend, attention, masked_softmax, scaled_dot_score

random = np.random.default_rng(0)
SCORES = jnp.asarray(random.normal(size=(2, 3, 5)), jnp.float32)
VALUES = jnp.asarray(random.normal(size=(2, 5, 2)), jnp.float32)
QUERIES = jnp.asarray(random.normal(size=(2, 3, 4)), jnp.float32)
KEYS = jnp.asarray(random.normal(size=(2, 5, 4)), jnp.float32)
LENS = jnp.array([2, 4])

jit_attend = jax.jit(attend, static_argnames=("empty_row", "dropout_rate"))
jit_attention = jax.jit(attention, static_argnames=("empty_row", "dropout"))


def test_the_context_is_the_values_mean_by_the_weights():
    context, weights = jit_attend(SCORES, VALUES, LENS)
    np.testing.assert_allclose(weights, masked_softmax(SCORES, LENS), rtol=1e-6)
    np.testing.assert_allclose(context, np.asarray(weights) @ np.asarray(VALUES), rtol=1e-5, atol=1e-6)


def test_attention_is_attend_over_scaled_dot_products():
    result = jit_attention(QUERIES, KEYS, VALUES, valid_lens=LENS)
    expected = jit_attend(scaled_dot_score(QUERIES, KEYS), VALUES, LENS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), result, expected)


def test_dropout_changes_the_context_and_not_the_weights_returned_by_attend():
    keep = jnp.asarray(random.random((2, 3, 5)) < 0.5)
    context, weights = jit_attend(SCORES, VALUES, LENS, dropout_rate=0.5, keep_mask=keep)
    np.testing.assert_allclose(weights, masked_softmax(SCORES, LENS), rtol=1e-6)
    np.testing.assert_allclose(context, np.where(keep, 2 * weights, 0) @ np.asarray(VALUES), rtol=1e-5, atol=1e-6)


def test_the_weights_returned_by_attention_are_after_its_dropout():
    context, weights = jit_attention(QUERIES, KEYS, VALUES, dropout=lambda weights: 3 * weights)
    np.testing.assert_allclose(weights.sum(-1), 3, rtol=1e-5)
    np.testing.assert_allclose(context, 3 * jit_attention(QUERIES, KEYS, VALUES)[0], rtol=1e-5)


def test_an_empty_row_has_no_context_or_the_plain_mean_of_all_values():
    context, weights = jit_attend(SCORES, VALUES, jnp.array([0, 5]))
    assert (context[0] == 0).all()
    assert (weights[0] == 0).all()
    context, weights = jit_attend(SCORES, VALUES, jnp.array([0, 5]), empty_row="uniform")
    np.testing.assert_allclose(weights[0], np.full((3, 5), 0.2), rtol=1e-6)
    np.testing.assert_allclose(context[0], np.broadcast_to(VALUES[0].mean(0), (3, 2)), rtol=1e-5)


@pytest.mark.parametrize("empty_row", ["zero", "uniform"])
def test_keys_and_values_that_no_query_attends_to_reach_neither_result_nor_gradient(empty_row):
    lens = jnp.array([[2, 1, 0], [3, 4, 2]]) if empty_row == "zero" else LENS
    seen = (jnp.arange(5) < (jnp.array([2, 4]))[:, None])[..., None]

    def total(queries, keys, values):
        context, weights = attention(queries, keys, values, valid_lens=lens, empty_row=empty_row)
        return jnp.sum(jnp.sin(context)) + jnp.sum(weights**2), (context, weights)

    run = jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True))
    clean = run(QUERIES, KEYS, VALUES)
    for poison in (jnp.nan, jnp.inf):
        poisoned = run(QUERIES, jnp.where(seen, KEYS, poison), jnp.where(seen, VALUES, poison))
        jax.tree.map(np.testing.assert_array_equal, poisoned, clean)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float64])
def test_dtypes_go_in_and_out(x64, dtype):
    scores, values, queries, keys = (x.astype(dtype) for x in (SCORES, VALUES, QUERIES, KEYS))
    results = (*jit_attend(scores, values, LENS), *jit_attention(queries, keys, values))
    assert {result.dtype for result in results} == {jnp.dtype(dtype)}


def test_half_precision_dot_products_above_the_largest_number_still_weigh():
    large = jnp.array([[1000.0, 1000.0]], jnp.float16)  # q · k = 2e6 and 0, where float16 ends at 65504
    context, weights = jit_attention(large, jnp.concatenate([large, 0 * large]), jnp.array([[1.0], [2.0]], jnp.float16))
    np.testing.assert_array_equal(weights, [[1, 0]])
    np.testing.assert_array_equal(context, [[1]])
