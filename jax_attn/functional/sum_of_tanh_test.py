import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import additive_score
from jax_attn.functional import sum_of_tanh as module
from jax_attn.functional.sum_of_tanh import sum_of_tanh

random = np.random.default_rng(0)
QUERIES, KEYS, W_V = random.normal(size=(2, 17, 9)), random.normal(size=(2, 19, 9)), random.normal(size=9)
GRADIENT = random.normal(size=(2, 17, 19))


@pytest.fixture(autouse=True)
def short_chains(request, monkeypatch):
    """Compile four terms instead of sixteen, and so three chains of nine hidden units."""
    if "full_compilation" not in request.fixturenames:
        monkeypatch.setattr(module, "CHAIN", 4)


def plain(queries, keys, w_v):
    return jnp.tanh(queries[..., :, None, :] + keys[..., None, :, :]) @ w_v


def with_gradients(function):
    def run(queries, keys, w_v, gradient):
        scores, pull_back = jax.vjp(function, queries, keys, w_v)
        return scores, *pull_back(gradient)

    return jax.jit(run)


run, run_plain = with_gradients(sum_of_tanh), with_gradients(plain)


def relative(a, b):
    return [float(jnp.abs(x - y).max() / jnp.abs(y).max()) for x, y in zip(a, b, strict=True)]


# With 1e-3 and 400 the sum is taken over tanh itself, with the others over exponentials.
@pytest.mark.parametrize("scale", [1e-3, 1, 400])
def test_scores_and_every_gradient_are_those_of_the_plain_form(x64, scale):
    inputs = [jnp.asarray(x) for x in (QUERIES * scale, KEYS * scale, W_V, GRADIENT)]
    assert max(relative(run(*inputs), run_plain(*inputs))) < 1e-13


@pytest.mark.parametrize("scale", [1e-3, 1, 100])
def test_in_float32_it_is_as_exact_as_the_plain_form(x64, scale):
    inputs = [jnp.asarray(x, jnp.float32) for x in (QUERIES * scale, KEYS * scale, W_V, GRADIENT)]
    exact = run_plain(*(x.astype(jnp.float64) for x in inputs))
    for error, plain_error in zip(relative(run(*inputs), exact), relative(run_plain(*inputs), exact), strict=True):
        assert error <= 2 * plain_error + 4 * float(jnp.finfo(jnp.float32).eps)


def test_far_apart_queries_and_keys_that_cancel_keep_their_digits():
    queries, keys = jnp.full((16, 1), 60.0), jnp.full((16, 1), -60.5)  # e^{120} is no float32
    scores = jax.jit(sum_of_tanh)(queries, keys, jnp.ones(1))
    np.testing.assert_allclose(scores, jnp.full((16, 16), np.tanh(-0.5)), rtol=1e-6)


@pytest.mark.parametrize("poison", [jnp.nan, jnp.inf])
def test_what_is_not_finite_stays_in_its_own_row_and_column(poison):
    inputs = [jnp.asarray(x, jnp.float32) for x in (QUERIES, KEYS, W_V)]
    scores = jax.jit(sum_of_tanh)(inputs[0].at[0, 3, 2].set(poison), inputs[1].at[1, 5, 0].set(-poison), inputs[2])
    touched = np.zeros(scores.shape, bool)
    touched[0, 3], touched[1, :, 5] = True, True
    np.testing.assert_allclose(scores[~touched], jax.jit(plain)(*inputs)[~touched], rtol=1e-4, atol=1e-5)
    assert np.isnan(scores[touched]).all() == np.isnan(poison)


def test_vmap_over_examples_and_over_weights_gives_the_same(x64):
    inputs = [jnp.asarray(x) for x in (QUERIES, KEYS, np.stack([W_V, -2 * W_V]), GRADIENT)]
    mapped = jax.jit(jax.vmap(run))(*inputs)
    for i in range(2):
        of_this = jnp.where(np.arange(2)[:, None, None] == i, GRADIENT, 0)
        *by_example, d_w_v = run(*inputs[:2], inputs[2][i], of_this)
        assert max(relative([x[i] for x in mapped], [*(x[i] for x in by_example), d_w_v])) < 1e-13


def test_of_no_examples_there_is_nothing_to_add():
    inputs = jnp.ones((0, 17, 5)), jnp.ones((0, 19, 5)), jnp.ones(5), jnp.ones((0, 17, 19))
    scores, d_queries, _, d_w_v = run(*inputs)
    assert (scores.shape, d_queries.shape) == ((0, 17, 19), (0, 17, 5))
    np.testing.assert_array_equal(d_w_v, np.zeros(5))


def test_the_second_derivative_is_right(x64):
    queries, keys, w_v = (jnp.asarray(x) for x in (QUERIES[0, :3], KEYS[0, :5], W_V))

    def curvature(function):
        slope = jax.grad(lambda keys: jnp.sum(jnp.sin(function(queries, keys, w_v))))
        return jax.jit(jax.grad(lambda keys: jnp.sum(slope(keys) ** 2)))(keys)

    assert max(relative([curvature(sum_of_tanh)], [curvature(plain)])) < 1e-12


def largest_array(function, *inputs):
    """Elements of the largest array of the compiled program that is not an operation inside a fused loop."""
    text = jax.jit(function).lower(*inputs).compile().as_text()
    outside = re.sub(r"^%?(fused|wrapped)\S* .*?^\}", "", text, flags=re.S | re.M)
    shapes = re.findall(r"(?:f32|f64|pred|bf16|s32)\[([\d,]+)\]", outside)
    return max(int(np.prod([int(size) for size in shape.split(",")])) for shape in shapes)


def test_no_array_of_queries_times_keys_times_hidden_is_made(full_compilation):
    inputs = jnp.ones((2, 64, 48)), jnp.ones((2, 80, 48)), jnp.ones(48)
    pairs = 2 * 64 * 80

    def gradients(function):
        return jax.grad(lambda *inputs: jnp.sum(function(*inputs) ** 2), argnums=(0, 1, 2))

    assert largest_array(additive_score, *inputs) <= 2 * pairs
    assert largest_array(gradients(additive_score), *inputs) <= 2 * pairs
    assert largest_array(gradients(plain), *inputs) >= 48 * pairs
