from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import masked_cross_entropy, projected_cross_entropy
from jax_attn.functional import losses

random = np.random.default_rng(0)
B, T, H, N = 3, 5, 4, 7
LENS = jnp.array([5, 0, 2])
WEIGHTS = np.where(np.arange(T) < np.asarray(LENS)[:, None], 1 / 7, 0)


def inputs(dtype):
    floats = [random.normal(size=shape) for shape in ((B, T, H), (H, N), (N,))]
    return [jnp.asarray(x, dtype) for x in floats], jnp.asarray(random.integers(0, N, (B, T)))


def by_logits(features, kernel, bias, labels, weights, **options):
    del weights
    return masked_cross_entropy(features @ kernel + bias, labels, LENS, **options)


def gradients(loss, *arguments, **options):
    """Total, losses, and the gradient of the total by features, kernel, bias and weights."""
    run = jax.value_and_grad(
        lambda *floats: loss(floats[0], *floats[1:3], arguments[3], floats[3], **options), (0, 1, 2)
    )
    return jax.jit(run)(*arguments[:3], arguments[4])


# Blocks of 5 time steps, of 3 (the last has 2), of 1.
@pytest.mark.parametrize(("rows_of_a_block", "label_smoothing"), [(100, 0.0), (6, 0.1), (1, 0.0)])
def test_blocks_make_no_difference(x64, monkeypatch, rows_of_a_block, label_smoothing):
    monkeypatch.setattr(losses, "BLOCK", rows_of_a_block * N)
    (features, kernel, bias), labels = inputs(jnp.float64)
    options = {"label_smoothing": label_smoothing}
    arguments = features, kernel, bias, labels, jnp.asarray(WEIGHTS)
    of_logits = gradients(by_logits, *arguments, **options)
    of_features = gradients(lambda *given, **more: projected_cross_entropy(*given, **more)[0], *arguments, **options)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14), of_features, of_logits)
    total, each = jax.jit(partial(projected_cross_entropy, **options))(*arguments)
    np.testing.assert_allclose(total, of_logits[0], rtol=1e-12)
    expected = masked_cross_entropy(features @ kernel + bias, labels, LENS, reduction="none", **options)
    np.testing.assert_allclose(each, expected, rtol=1e-12)


def test_a_total_on_its_way_to_something_else_passes_its_gradient_on(x64):
    (features, kernel, bias), labels = inputs(jnp.float64)
    weights = jnp.asarray(WEIGHTS)

    def squared(features, weights):
        return projected_cross_entropy(features, kernel, bias, labels, weights)[0] ** 2

    total, each = projected_cross_entropy(features, kernel, bias, labels, weights)
    once, twice = (
        jax.grad(f)(features) for f in (lambda x: jnp.sqrt(squared(x, weights)), lambda x: squared(x, weights))
    )
    np.testing.assert_allclose(twice, 2 * total * once, rtol=1e-12)
    np.testing.assert_allclose(jax.grad(squared, 1)(features, weights), 2 * total * each, rtol=1e-12)


def test_no_sentences_cost_nothing():
    (features, kernel, bias), labels = inputs(jnp.float32)
    none = features[:0], kernel, bias, labels[:0], jnp.zeros((0, T))
    total, each = projected_cross_entropy(*none)
    assert (total, each.shape) == (0, (0, T))
    assert not jax.grad(lambda kernel: projected_cross_entropy(none[0], kernel, *none[2:])[0])(kernel).any()


def test_the_losses_have_no_gradient():
    (features, kernel, bias), labels = inputs(jnp.float32)
    through = jax.grad(lambda x: projected_cross_entropy(x, kernel, bias, labels, jnp.asarray(WEIGHTS))[1].sum())
    assert not through(features).any()


def test_a_label_that_counts_and_is_out_of_range_gives_nan():
    (features, kernel, bias), labels = inputs(jnp.float32)
    total, each = projected_cross_entropy(features, kernel, bias, labels.at[0, 1].set(N), jnp.asarray(WEIGHTS))
    assert np.isnan(total)
    assert np.isnan(each).sum() == 1


def test_half_precision_adds_its_blocks_up_in_float32(monkeypatch):
    (features, kernel, bias), labels = inputs(jnp.bfloat16)
    features, labels = jnp.tile(features[:1], (60, 1, 1)), jnp.tile(labels[:1], (60, 1))
    weights = jnp.ones(labels.shape, jnp.bfloat16)

    def slope():
        return jax.jit(jax.grad(lambda kernel: projected_cross_entropy(features, kernel, bias, labels, weights)[0]))

    whole = slope()(kernel)
    monkeypatch.setattr(losses, "BLOCK", 5 * N)
    in_blocks = slope()(kernel)
    assert in_blocks.dtype == jnp.bfloat16
    np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (in_blocks, whole)), rtol=2**-7, atol=2**-6)


def test_the_logits_of_all_tokens_are_never_held(monkeypatch):
    monkeypatch.setattr(losses, "BLOCK", 6 * N)
    (features, kernel, bias), labels = inputs(jnp.float32)

    def total(features, kernel, bias):
        return projected_cross_entropy(features, kernel, bias, labels, jnp.asarray(WEIGHTS, jnp.float32))[0]

    text = str(jax.make_jaxpr(jax.grad(total, (0, 1, 2)))(features, kernel, bias))
    assert f"f32[{B * 2},{N}]" in text  # two time steps of the batch
    assert f"f32[{B * T},{N}]" not in text
    assert f"[3,{B * 2},{N}]" not in text
