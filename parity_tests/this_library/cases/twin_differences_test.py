"""Where PyTorch, JAX, Flax and Optax differ from ours: a new version that takes a difference away fails here."""

import inspect
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.rnn import pack_padded_sequence

import jax_attn
import torch_ref
from parity_tests.your_port.measure.case import random_for
from parity_tests.your_port.measure.width import enable_x64


def draw(*shape: int, seed: str = "") -> np.ndarray:
    return random_for("differences", seed, str(shape)).normal(size=shape).astype(np.float32)


def run(module: nn.Module, *args: Any, params: Any = None, **kwargs: Any) -> Any:
    """A Linen module's call, compiled; NumPy arrays become JAX's."""
    options = {name: kwargs.pop(name) for name in ("deterministic",) if name in kwargs}
    call = jax.jit(lambda params, args, kwargs: module.apply(params or {}, *args, **kwargs, **options))
    return call(params, args, kwargs)


def random_params(module: nn.Module, *inputs: Any) -> Any:
    shapes = jax.eval_shape(module.init, jax.random.key(0), *map(jnp.asarray, inputs))
    return jax.tree.map(lambda leaf: draw(*leaf.shape, seed="parameters"), {"params": shapes["params"]})


def tensors(*arrays: np.ndarray) -> tuple[torch.Tensor, ...]:
    return tuple(map(torch.tensor, arrays))


# nn.LSTM, nn.GRU

X, LENS = draw(2, 4, 3), np.array([4, 2], np.int32)


def test_a_packed_sequence_is_never_empty() -> None:
    """nn.LSTM, nn.GRU, an empty sequence: pack_padded_sequence refuses length 0; ours gives outputs of 0 and the
    initial state.
    """
    with pytest.raises(RuntimeError, match="greater than 0"):
        pack_padded_sequence(torch.tensor(X), torch.tensor([4, 0]), batch_first=True, enforce_sorted=False)
    module, state = jax_attn.GRU(5), draw(1, 2, 5)
    outputs, final = run(module, X, np.array([4, 0], np.int32), state, params=random_params(module, X))
    np.testing.assert_array_equal(outputs[1], 0)
    np.testing.assert_array_equal(final[0, 1], state[0, 1])


def test_what_is_not_packed_is_run_through() -> None:
    """nn.LSTM, nn.GRU, padding: a padded batch that is not packed is run through to its end; valid_lens stops each
    sequence at its length.
    """
    torch.manual_seed(0)
    ours = torch_ref.GRU(3, 5)
    library = torch.nn.GRU(3, 5, batch_first=True)
    library.load_state_dict(ours.state_dict())
    through, stopped = library(torch.tensor(X))[1][0], ours(torch.tensor(X), torch.tensor(LENS))[1][0]
    torch.testing.assert_close(through[0], stopped[0])
    assert (through[1] - stopped[1]).abs().max() > 1e-2


def test_the_recurrent_networks_draw_their_own_dropout_between_the_layers() -> None:
    """nn.LSTM, nn.GRU, dropout: between the layers, as ours, but the mask is drawn inside and cannot be given, so
    dropout is compared with torch_ref, which writes the layers out.
    """
    torch.manual_seed(0)
    module = torch.nn.LSTM(3, 5, 2, batch_first=True, dropout=0.9)
    (first, _), (second, _) = module(torch.tensor(X)), module(torch.tensor(X))
    assert (first - second).abs().max() > 1e-3  # drawn anew
    assert (first != 0).all()  # not from the last layer's outputs
    assert list(inspect.signature(module.forward).parameters) == ["input", "hx"]  # no place for a mask


# F.scaled_dot_product_attention

QUERIES, KEYS, VALUES = draw(1, 2, 4), draw(1, 3, 4, seed="keys"), draw(1, 3, 4, seed="values")
MASK = np.array([[[True, True, False]] * 2])


def our_context(values: np.ndarray = VALUES, mask: np.ndarray = MASK, **options: Any) -> jax.Array:
    context: jax.Array = run(jax_attn.DotProductAttention(**options), QUERIES, KEYS, values, mask=mask)[0]
    return context


def test_a_masked_nan_reaches_the_context_of_pytorch_alone() -> None:
    """F.scaled_dot_product_attention, NaN where nothing attends: a masked value that is NaN makes the context NaN, for
    its weight of 0 is multiplied; ours does not read it.
    """
    values = np.where(MASK[:, 0, :, None], VALUES, np.nan).astype(np.float32)
    assert F.scaled_dot_product_attention(*tensors(QUERIES, KEYS, values, MASK)).isnan().all()
    np.testing.assert_array_equal(our_context(values), our_context())


def test_a_floating_mask_is_a_bias() -> None:
    """F.scaled_dot_product_attention, a floating mask: is added to the scores; our masks are boolean."""
    bias = draw(1, 2, 3)
    biased = F.scaled_dot_product_attention(*tensors(QUERIES, KEYS, VALUES, bias))
    scores = QUERIES @ KEYS.swapaxes(1, 2) / 2 + bias
    np.testing.assert_allclose(biased, np.asarray(jax.nn.softmax(scores)) @ VALUES, rtol=1e-5, atol=1e-6)
    with pytest.raises(TypeError):
        our_context(mask=bias)
    with pytest.raises(TypeError, match="mask"):
        torch_ref.masked_softmax(*tensors(scores), mask=torch.tensor(bias))


def test_a_mask_and_causal_do_not_go_together() -> None:
    """F.scaled_dot_product_attention, mask and causal: are refused together; ours combines any masks."""
    with pytest.raises(RuntimeError, match="is_causal"):
        F.scaled_dot_product_attention(*tensors(QUERIES, KEYS, VALUES, MASK), is_causal=True)
    both = our_context(mask=MASK & np.asarray(jax_attn.causal_mask(2, 3)))
    np.testing.assert_allclose(both[0, 0], VALUES[0, 0], rtol=1e-6)


# nn.MultiheadAttention


def multi_head(**options: float) -> torch.nn.MultiheadAttention:
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(4, 2, batch_first=True, **options)
    torch.nn.init.ones_(module.out_proj.bias)
    return module


def test_true_hides_in_multi_head_attention() -> None:
    """nn.MultiheadAttention, polarity of masks: True in key_padding_mask and attn_mask means hidden; in our mask, and
    in F.scaled_dot_product_attention, it means may attend.
    """
    hidden = torch.tensor([[False, False, True]])
    for masks in ({"key_padding_mask": hidden}, {"attn_mask": hidden.expand(2, 3)}):
        _, weights = multi_head()(*tensors(QUERIES, KEYS, VALUES), **masks)
        assert (weights[..., 2] == 0).all()
        assert (weights[..., :2] > 0).all()
    _, weights = run(jax_attn.DotProductAttention(), QUERIES, KEYS, VALUES, mask=~hidden.numpy())
    assert (weights[..., 2] == 0).all()


def test_an_empty_row_is_nan_in_multi_head_attention() -> None:
    """nn.MultiheadAttention, an empty row: context and weights are NaN, or, with need_weights=False, the context is
    out_proj.bias; ours is always the bias, with weights of 0.
    """
    inputs, everything = tensors(QUERIES, KEYS, VALUES), torch.ones(1, 3, dtype=torch.bool)
    context, weights = multi_head()(*inputs, key_padding_mask=everything)
    assert context.isnan().all()
    assert weights.isnan().all()
    context, _ = multi_head()(*inputs, key_padding_mask=everything, need_weights=False)
    np.testing.assert_array_equal(context.detach(), 1)
    ours = jax_attn.MultiHeadAttention(4, 2, use_bias=True)
    params = random_params(ours, QUERIES, KEYS, VALUES)
    context, weights = run(ours, QUERIES, KEYS, VALUES, np.array([0], np.int32), params=params)
    np.testing.assert_array_equal(context, np.broadcast_to(params["params"]["W_o"]["bias"], context.shape))
    np.testing.assert_array_equal(weights, 0)


def test_the_weights_of_multi_head_attention_are_a_mean_and_after_dropout() -> None:
    """nn.MultiheadAttention, weights returned: are by default the mean over heads, and in training those after dropout;
    ours are each head's, before dropout.
    """
    inputs = tensors(QUERIES, KEYS, VALUES)
    by_head, mean = (multi_head()(*inputs, average_attn_weights=average)[1] for average in (False, True))
    torch.testing.assert_close(by_head.mean(1), mean)
    dropped = multi_head(dropout=0.5)(*inputs, average_attn_weights=False)[1]
    kept = dropped != 0
    assert not kept.all()
    torch.testing.assert_close(dropped[kept], 2 * by_head[kept])
    ours = jax_attn.MultiHeadAttention(4, 2, dropout=0.5)
    params, nothing = random_params(ours, QUERIES, KEYS, VALUES), np.zeros((1, 2, 2, 3), bool)
    _, weights = run(ours, QUERIES, KEYS, VALUES, keep_mask=nothing, params=params)
    np.testing.assert_allclose(weights.sum(-1), np.ones((1, 2, 2)), rtol=1e-6)


# F.cross_entropy

LOGITS = draw(1, 3, 5)


def our_loss(logits: Any, labels: Any, mask: Any = None) -> jax.Array:
    return jax.jit(jax_attn.masked_cross_entropy)(logits, labels, mask=mask)


def test_the_mean_over_nothing_is_nan_in_pytorch() -> None:
    """F.cross_entropy, nothing counts: the mean over no labels is NaN; ours is 0."""
    assert F.cross_entropy(torch.tensor(LOGITS[0]), torch.full((3,), -100)).isnan()
    assert our_loss(LOGITS, np.full((1, 3), -100, np.int32), np.zeros((1, 3), bool)) == 0


def test_ignored_nan_reaches_the_gradient_of_pytorch() -> None:
    """F.cross_entropy, NaN where nothing counts: ignored logits that are NaN have NaN gradients; ours have 0."""
    logits, labels = LOGITS.copy(), np.array([[1, 2, -100]], np.int32)
    logits[0, 2] = np.nan
    theirs = torch.tensor(logits[0], requires_grad=True)
    F.cross_entropy(theirs, torch.tensor(labels[0]).long()).backward()
    assert theirs.grad is not None
    assert theirs.grad[2].isnan().all()
    ours = jax.grad(our_loss)(logits, labels, labels != -100)
    np.testing.assert_array_equal(ours[0, 2], 0)


def test_the_others_losses_are_rounded_to_bfloat16() -> None:
    """Show two differences.

    F.cross_entropy, bfloat16: the loss is bfloat16; ours is float32.
    optax, bfloat16: the loss is bfloat16; ours is float32.
    """
    labels = np.zeros((1, 3), np.int32)
    assert F.cross_entropy(torch.tensor(LOGITS[0]).bfloat16(), torch.zeros(3).long()).dtype == torch.bfloat16
    narrow = jnp.asarray(LOGITS, jnp.bfloat16)
    assert optax.softmax_cross_entropy_with_integer_labels(narrow, labels).dtype == jnp.bfloat16
    assert our_loss(narrow, labels).dtype == jnp.float32


def test_labels_out_of_range() -> None:
    """Show two differences.

    F.cross_entropy, a label out of range: raises; ours is NaN, since no error can be raised under jit.
    optax, labels that do not count: −100 gives NaN and −1 is read as the last class; ours takes either where the
        mask hides it, and gives NaN elsewhere.
    """

    def optaxs(label: int) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(LOGITS[0, 0], np.int32(label))

    with pytest.raises(IndexError, match="out of bounds"):
        F.cross_entropy(torch.tensor(LOGITS[0]), torch.tensor([0, 5, 0]))
    assert jnp.isnan(optaxs(-100))
    assert optaxs(-1) == optaxs(4)
    for label in (-100, -1, 5):
        labels = np.array([[0, 0, label]], np.int32)
        assert jnp.isnan(our_loss(LOGITS, labels))
        assert jnp.isfinite(our_loss(LOGITS, labels, np.array([True, True, False])))


# jax.nn

FOUR_AXES = tuple(array[:, :, None] for array in (QUERIES, KEYS, VALUES))


def test_the_softmax_of_jax_nn_is_narrow() -> None:
    """jax.nn.dot_product_attention, float64: the softmax is computed in float32 whatever the inputs are, so it is
    compared in float32 and bfloat16 alone.
    """
    with enable_x64(True):
        arrays = tuple(jnp.asarray(array, jnp.float64) for array in (QUERIES, KEYS, VALUES))
        theirs = jax.nn.dot_product_attention(*(array[:, :, None] for array in arrays))[:, :, 0]
        ours = run(jax_attn.DotProductAttention(), *arrays)[0]
        assert theirs.dtype == ours.dtype == jnp.float64
        assert 1e-10 < jnp.abs(theirs - ours).max() < 1e-6


def test_an_empty_row_is_uniform_in_jax_nn() -> None:
    """jax.nn.dot_product_attention, an empty row: has weights of 1/K, our empty_row="uniform"; our default is 0."""
    nothing = np.zeros((1, 1, 2, 3), bool)
    theirs = jax.nn.dot_product_attention(*FOUR_AXES, mask=nothing)[:, :, 0]
    mean = np.broadcast_to(VALUES.mean(1, keepdims=True), theirs.shape)
    np.testing.assert_allclose(theirs, mean, rtol=1e-5)
    np.testing.assert_allclose(our_context(mask=nothing[:, 0], empty_row="uniform"), mean, rtol=1e-5)
    np.testing.assert_array_equal(our_context(mask=nothing[:, 0]), 0)


def test_jax_nn_wants_four_axes_and_values_as_wide_as_keys() -> None:
    """jax.nn.dot_product_attention, shapes: [B, T, heads, D] and no more axes, values as wide as keys; ours is [..., T,
    D], values of any width.
    """
    queries, keys, values = FOUR_AXES
    with pytest.raises(ValueError, match="value shape"):
        jax.nn.dot_product_attention(queries, keys, values[..., :2])
    with pytest.raises(ValueError, match="unpack"):
        jax.nn.dot_product_attention(queries[None], keys[None], values[None])
    five_axes = (array[None, None] for array in (QUERIES, KEYS, VALUES[..., :2]))
    assert run(jax_attn.DotProductAttention(), *five_axes)[0].shape == (1, 1, 1, 2, 2)


# Flax


def shapes(params: object) -> dict[str, tuple[int, ...]]:
    """By path."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape
        for path, leaf in jax.tree.leaves_with_path(params)
    }


def test_linens_cells_have_fewer_biases() -> None:
    """Show two differences.

    nn.LSTMCell, nn.OptimizedLSTMCell, biases: have one where PyTorch and ours have b_ih and b_hh: the function is
        that of their sum, and so is each gradient, but Adam moves one bias half as far as two.
    nn.GRUCell, biases: has one for r and one for z, as above; of n it has both.
    """

    def biases(cell: nn.RNNCellBase, carry: object) -> set[str]:
        params = jax.eval_shape(cell.init, jax.random.key(0), carry, X[:, 0])["params"]
        return {name.removesuffix(".bias") for name in shapes(params) if name.endswith("bias")}

    h = draw(2, 5)
    assert biases(nn.LSTMCell(5), (h, h)) == biases(nn.OptimizedLSTMCell(5), (h, h)) == {"hi", "hf", "hg", "ho"}
    assert biases(nn.GRUCell(5), h) == {"ir", "iz", "in", "hn"}


@pytest.mark.skipif(nnx.GRUCell(1, 1, rngs=nnx.Rngs(0)).dense_h.bias is not None, reason="this version has the bias")
def test_nnxs_gru_has_no_hidden_bias() -> None:
    """nnx.GRUCell, biases: has none on the hidden side, so it cannot hold b_hn, and is not nn.GRU."""
    cell = nnx.GRUCell(3, 5, rngs=nnx.Rngs(0))
    names = shapes(nnx.to_pure_dict(nnx.state(cell, nnx.Param)))
    assert names == {"dense_i.kernel": (3, 15), "dense_i.bias": (15,), "dense_h.kernel": (5, 15)}
