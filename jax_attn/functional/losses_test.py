from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import masked_cross_entropy, projected_cross_entropy
from jax_attn.functional import losses as module

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


# From the features, block by block

B, T, H, N = 3, 5, 4, 7
SEEN = jnp.array([5, 0, 2])
WEIGHTS = np.where(np.arange(T) < np.asarray(SEEN)[:, None], 1 / 7, 0)


def inputs(dtype):
    floats = [random.normal(size=shape) for shape in ((B, T, H), (H, N), (N,))]
    return [jnp.asarray(x, dtype) for x in floats], jnp.asarray(random.integers(0, N, (B, T)))


def by_logits(features, kernel, bias, labels, weights, **options):
    del weights
    return masked_cross_entropy(features @ kernel + bias, labels, SEEN, **options)


def gradients(loss, *arguments, **options):
    """Total, losses, and the gradient of the total by features, kernel, bias and weights."""
    run = jax.value_and_grad(
        lambda *floats: loss(floats[0], *floats[1:3], arguments[3], floats[3], **options), (0, 1, 2)
    )
    return jax.jit(run)(*arguments[:3], arguments[4])


# Blocks of 2 time steps (the last has 1), and of 1.
@pytest.mark.parametrize(("rows_of_a_block", "label_smoothing"), [(6, 0.1), (1, 0.0)])
def test_blocks_make_no_difference(x64, monkeypatch, rows_of_a_block, label_smoothing):
    monkeypatch.setattr(module, "BLOCK", rows_of_a_block * N)
    (features, kernel, bias), labels = inputs(jnp.float64)
    options = {"label_smoothing": label_smoothing}
    arguments = features, kernel, bias, labels, jnp.asarray(WEIGHTS)
    of_logits = gradients(by_logits, *arguments, **options)
    of_features = gradients(lambda *given, **more: projected_cross_entropy(*given, **more)[0], *arguments, **options)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14), of_features, of_logits)
    total, each = jax.jit(partial(projected_cross_entropy, **options))(*arguments)
    np.testing.assert_allclose(total, of_logits[0], rtol=1e-12)
    expected = loss(features @ kernel + bias, labels, SEEN, reduction="none")  # without smoothing
    np.testing.assert_allclose(each, expected, rtol=1e-12)


def test_a_total_on_its_way_to_something_else_passes_its_gradient_on(x64):
    (features, kernel, bias), labels = inputs(jnp.float64)
    weights = jnp.asarray(WEIGHTS)

    def total(features, weights, power):
        total, each = projected_cross_entropy(features, kernel, bias, labels, weights)
        return total**power, each

    run = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))
    ((value, each), (once, _)), (_, (twice, by_weights)) = (run(features, weights, power) for power in (1.0, 2.0))
    np.testing.assert_allclose(twice, 2 * value * once, rtol=1e-12)
    np.testing.assert_allclose(by_weights, 2 * value * each, rtol=1e-12)


def test_no_sentences_cost_nothing():
    (features, kernel, bias), labels = inputs(jnp.float32)
    none = features[:0], kernel, bias, labels[:0], jnp.zeros((0, T))
    run = jax.jit(jax.value_and_grad(projected_cross_entropy, 1, has_aux=True))
    (total, each), gradient = run(*none)
    assert (total, each.shape) == (0, (0, T))
    assert not gradient.any()


def test_the_losses_have_no_gradient():
    (features, kernel, bias), labels = inputs(jnp.float32)
    through = jax.grad(lambda x: projected_cross_entropy(x, kernel, bias, labels, jnp.asarray(WEIGHTS))[1].sum())
    assert not jax.jit(through)(features).any()


def test_half_precision_adds_its_blocks_up_in_float32(monkeypatch):
    (features, kernel, bias), labels = inputs(jnp.bfloat16)
    features, labels = jnp.tile(features[:1], (60, 1, 1)), jnp.tile(labels[:1], (60, 1))
    weights = jnp.ones(labels.shape, jnp.bfloat16)

    def slope():
        return jax.jit(jax.grad(lambda kernel: projected_cross_entropy(features, kernel, bias, labels, weights)[0]))

    whole = slope()(kernel)
    monkeypatch.setattr(module, "BLOCK", 5 * N)
    in_blocks = slope()(kernel)
    assert in_blocks.dtype == jnp.bfloat16
    np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (in_blocks, whole)), rtol=2**-7, atol=2**-6)


def test_in_float16_small_weights_and_a_large_factor_of_the_loss_lose_nothing():
    (features, kernel, bias), labels = inputs(jnp.float32)
    weights = jnp.asarray(WEIGHTS) / 5000

    def slopes(dtype):
        def scaled(*arguments):
            return projected_cross_entropy(*arguments, labels, weights.astype(dtype))[0] * 2**16

        return jax.jit(jax.grad(scaled, (0, 1, 2)))(*(x.astype(dtype) for x in (features, kernel, bias)))

    for half, single in zip(slopes(jnp.float16), slopes(jnp.float32), strict=True):
        assert half.dtype == jnp.float16
        error = np.linalg.norm(np.asarray(half, np.float32) - single) / np.linalg.norm(single)
        assert error < 2**-8


def test_the_logits_of_all_tokens_are_never_held(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 6 * N)
    (features, kernel, bias), labels = inputs(jnp.float32)

    def total(features, kernel, bias):
        return projected_cross_entropy(features, kernel, bias, labels, jnp.asarray(WEIGHTS, jnp.float32))[0]

    text = str(jax.make_jaxpr(jax.grad(total, (0, 1, 2)))(features, kernel, bias))
    assert f"f32[{B * 2},{N}]" in text  # two time steps of the batch
    assert f"f32[{B * T},{N}]" not in text
    assert f"[3,{B * 2},{N}]" not in text


def test_four_steps_in_blocks_of_at_most_three_are_two_and_two(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 3 * N)
    kernel, bias = jnp.ones((7, N)), jnp.ones(N)
    arguments = jnp.ones((1, 4, 7)), kernel, bias, jnp.zeros((1, 4), int), jnp.ones((1, 4))
    text = str(jax.make_jaxpr(projected_cross_entropy)(*arguments))
    assert f"f32[2,{N}]" in text
    assert f"f32[3,{N}]" not in text


def test_a_vocabulary_may_have_more_words_than_the_labels_dtype_holds():
    labels = jnp.array([[3, 50]], jnp.int8)
    losses = loss(jnp.zeros((1, 2, 300)), labels, reduction="none")
    np.testing.assert_allclose(losses, np.log(300), rtol=1e-6)
    features, kernel, bias = jnp.zeros((1, 2, 1)), jnp.zeros((1, 300)), jnp.zeros(300)
    _, nats = jax.jit(projected_cross_entropy)(features, kernel, bias, labels, jnp.ones((1, 2)))
    np.testing.assert_allclose(nats, np.log(300), rtol=1e-6)


@pytest.mark.parametrize("wide", ["features", "bias"])
def test_the_gradient_of_mixed_dtypes_has_the_dtype_of_each(x64, wide):
    arrays = {"features": jnp.ones((1, 2, 3)), "kernel": jnp.ones((3, 5)), "bias": jnp.ones(5)}
    arrays = {name: x.astype(jnp.float64 if name == wide else jnp.float32) for name, x in arrays.items()}
    labels, weights = jnp.array([[1, 2]]), jnp.ones((1, 2), jnp.float32)
    slopes = jax.grad(lambda arrays: projected_cross_entropy(**arrays, labels=labels, weights=weights)[0])
    gradients = jax.eval_shape(slopes, arrays)
    assert {name: x.dtype for name, x in gradients.items()} == {name: x.dtype for name, x in arrays.items()}
