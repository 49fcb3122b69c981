from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import (
    additive_score,
    attention,
    bilinear_score,
    cosine_score,
    dot_score,
    gaussian_score,
    scaled_dot_score,
)

random = np.random.default_rng(0)
QUERIES, KEYS = random.normal(size=(2, 3, 4)), random.normal(size=(2, 5, 4))
NARROW = random.normal(size=(2, 5, 2))
W, W_V = random.normal(size=(4, 2)), random.normal(size=4)

SCORES = {
    "dot": (dot_score, (QUERIES, KEYS), lambda q, k: q @ k),
    "scaled_dot": (scaled_dot_score, (QUERIES, KEYS), lambda q, k: q @ k / 2),
    "bilinear": (bilinear_score, (QUERIES, NARROW, W), lambda q, k: q @ W @ k),
    "additive": (additive_score, (QUERIES, KEYS, W_V), lambda q, k: W_V @ np.tanh(q + k)),
    "additive without tanh": (
        partial(additive_score, use_tanh=False),
        (QUERIES, KEYS, W_V),
        lambda q, k: W_V @ (q + k),
    ),
    "gaussian": (
        partial(gaussian_score, sigma=0.5),
        (QUERIES, KEYS),
        lambda q, k: -((q - k) ** 2).sum() / (2 * 0.5**2),
    ),
}
each_score = pytest.mark.parametrize("name", SCORES)


@each_score
def test_each_pair_is_scored_by_the_equation(x64, name):
    function, inputs, equation = SCORES[name]
    scores = jax.jit(function)(*map(jnp.asarray, inputs))
    expected = [[[equation(q, k) for k in keys] for q in queries] for queries, keys in zip(*inputs[:2], strict=True)]
    np.testing.assert_allclose(scores, expected, rtol=1e-12)


@each_score
def test_half_precision_scores_have_the_inputs_dtype_and_are_rounded_once(x64, name):
    function, inputs, _ = SCORES[name]
    rounded = [jnp.asarray(x, jnp.bfloat16) for x in inputs]
    scores = jax.jit(function)(*rounded)
    assert scores.dtype == jnp.bfloat16
    exact = jax.jit(function)(*(x.astype(jnp.float64) for x in rounded))
    error = np.abs(np.asarray(scores, np.float64) - exact)
    assert (error <= float(jnp.finfo(jnp.bfloat16).eps) * (np.abs(exact) / 2 + 0.001)).all()  # summed in float32


def test_half_precision_products_of_6e4_do_not_overflow_on_the_way():
    long = jnp.full((2, 4), 6e4, jnp.float16)
    context, weights = jax.jit(attention)(long, long, long)
    np.testing.assert_array_equal(context, long)
    np.testing.assert_array_equal(weights, 0.5)


def test_only_the_tanh_lets_the_query_change_the_weights():
    queries, keys, w_v = (jnp.asarray(x) for x in (QUERIES, KEYS, W_V))
    weigh = jax.jit(lambda *x: [jax.nn.softmax(additive_score(*x, use_tanh=use_tanh)) for use_tanh in (True, False)])
    with_tanh, without = weigh(queries, keys, w_v)
    np.testing.assert_allclose(without, np.broadcast_to(without[:, :1], without.shape), rtol=1e-5)
    assert np.abs(with_tanh - with_tanh[:, :1]).max() > 0.05


def test_the_gaussian_keeps_the_digits_of_close_pairs():
    close = jax.jit(gaussian_score)(jnp.array([[1e4]]), jnp.array([[1e4 + 1]]))
    assert close.item() == -0.5


def test_the_temperature_may_be_a_whole_number(own_checks):
    x = jnp.array([[600.0]])
    assert cosine_score(x, x, 2)[0, 0] == 0.5
