from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import masked_cross_entropy

random = np.random.default_rng(0)
LOGITS = random.normal(size=(2, 3, 4))
LABELS = random.integers(0, 4, size=(2, 3))
LENS = np.array([1, 3])
loss = jax.jit(masked_cross_entropy, static_argnames=("label_smoothing", "reduction"))


def by_hand(label_smoothing=0.0):
    """[B, T] in NumPy, nothing masked."""
    log_p = LOGITS - np.log(np.exp(LOGITS).sum(-1, keepdims=True))
    of_label = np.take_along_axis(log_p, LABELS[..., None], -1)[..., 0]
    return -(1 - label_smoothing) * of_label - label_smoothing * log_p.mean(-1)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_each_reduction_is_the_equation(x64, label_smoothing):
    losses = by_hand(label_smoothing) * (np.arange(3) < LENS[:, None])
    call = partial(loss, *map(jnp.asarray, (LOGITS, LABELS, LENS)), label_smoothing=label_smoothing)
    np.testing.assert_allclose(call(reduction="none"), losses, rtol=1e-12)
    np.testing.assert_allclose(call(reduction="sentences"), losses.sum(-1) / 3, rtol=1e-12)
    np.testing.assert_allclose(call(reduction="tokens"), losses.sum() / 4, rtol=1e-12)


def test_without_lengths_every_position_counts_and_lengths_and_mask_must_both_allow(x64):
    inputs = jnp.asarray(LOGITS), jnp.asarray(LABELS)
    np.testing.assert_allclose(loss(*inputs), by_hand().mean(), rtol=1e-12)
    mask = np.array([[True, True, False], [False, True, True]])
    both = mask & (np.arange(3) < LENS[:, None])
    np.testing.assert_allclose(loss(*inputs, jnp.asarray(LENS), jnp.asarray(mask)), by_hand()[both].mean(), rtol=1e-12)


@pytest.mark.parametrize(("label_smoothing", "label"), [(0.0, -100), (0.1, -1), (0.1, 4)])
def test_nan_logits_and_any_label_on_padding_reach_neither_value_nor_gradient(label_smoothing, label):
    padding = np.arange(3) >= LENS[:, None]
    run = jax.jit(jax.value_and_grad(partial(masked_cross_entropy, label_smoothing=label_smoothing)))
    clean = run(jnp.asarray(LOGITS, jnp.float32), jnp.asarray(LABELS), jnp.asarray(LENS))
    logits, labels = np.where(padding[..., None], np.nan, LOGITS), np.where(padding, label, LABELS)
    poisoned = run(jnp.asarray(logits, jnp.float32), jnp.asarray(labels), jnp.asarray(LENS))
    jax.tree.map(np.testing.assert_array_equal, poisoned, clean)
    assert (poisoned[1][padding] == 0).all()
    assert (poisoned[1][~padding] != 0).all()


def test_nothing_but_padding_is_no_loss_and_no_gradient():
    run = jax.jit(jax.value_and_grad(masked_cross_entropy))
    value, gradient = run(jnp.full((2, 3, 4), jnp.nan), jnp.full((2, 3), -100), jnp.zeros(2, int))
    assert value == 0
    assert (gradient == 0).all()


@pytest.mark.parametrize("label", [-100, -1, 4])
def test_a_label_that_counts_and_is_no_class_is_nan_at_its_place(label):
    losses = loss(jnp.asarray(LOGITS, jnp.float32), jnp.asarray(LABELS).at[1, 2].set(label), reduction="none")
    np.testing.assert_array_equal(np.argwhere(jnp.isnan(losses)), [[1, 2]])


@pytest.mark.parametrize(
    ("dtype", "returned"), [("bfloat16", "float32"), ("float16", "float32"), ("float64", "float64")]
)
def test_the_loss_is_returned_in_float32_or_wider(x64, dtype, returned):
    logits = jnp.asarray(LOGITS, dtype)
    value = loss(logits, jnp.asarray(LABELS))
    assert value.dtype == returned
    np.testing.assert_allclose(value, loss(logits.astype("float64"), jnp.asarray(LABELS)), rtol=1e-6)


def test_large_and_infinite_logits_leave_a_finite_loss():
    losses = loss(jnp.array([[1e4, -1e4, 0], [0, -jnp.inf, 0]]), jnp.array([0, 2]), reduction="none")
    np.testing.assert_allclose(losses, [0, np.log(2)], rtol=1e-6)
