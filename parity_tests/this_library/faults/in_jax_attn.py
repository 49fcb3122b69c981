"""Mistakes in jax_attn: a name, the case that must notice it, the mistake, where it is, and the variant."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jax_attn
from parity_tests.this_library.faults.fault import Fault, around, given, instead, result, unchanged

stop = jax.lax.stop_gradient
one_more = around(lambda mask, valid_lens, size: mask((valid_lens + 1).clip(0, size), size))
"""Off by one in the length."""


def shifted(x: Any, axis: int = -1) -> Any:
    """Put each entry one place further along an axis, the last one first."""
    return jnp.roll(x, 1, axis)


def forget_gate_first(x: Any) -> Any:
    """Exchange the first two of four gates."""
    return x[..., np.arange(x.shape[-1]).reshape(4, -1)[[1, 0, 2, 3]].ravel()]


@around
def over_queries(softmax: Any, scores: Any, *, mask: Any = None, **options: Any) -> Any:
    """Take the softmax over the wrong axis."""
    return softmax(scores.mT, mask=None if mask is None else mask.mT, **options).mT


def unshifted(scores: Any, *arguments: Any, **options: Any) -> Any:
    """Leave out subtracting the row's maximum: exp overflows at large scores."""
    exponents = jnp.exp(scores)
    return exponents / exponents.sum(-1, keepdims=True)


@around
def in_float32(function: Any, scores: Any, **options: Any) -> Any:
    """Leave a cast in: it cannot be seen at a tolerance of 1e-3."""
    return function(scores.astype(jnp.float32), **options).astype(scores.dtype)


def heads_in_turn(self: Any, x: Any) -> Any:
    """Deal features out to the heads in turn, not in blocks."""
    return x.reshape(*x.shape[:-1], -1, self.num_heads).swapaxes(-1, -2).swapaxes(-2, -3)


@around
def bias_outside_reset(step: Any, h: Any, projected: Any, kernel: Any, bias: Any = None) -> Any:
    """Add a GRU's b_hn to the input's part: right for every gate but this one."""
    return step(h, projected if bias is None else projected + bias, kernel, None)


def one_step_back(step: Any) -> Any:
    """Let no gradient through the carry."""
    return lambda carry, x: step(stop(carry), x)


@around
def second_step_forgotten(advance: Any, self: Any, cells: Any, projected: Any, state: Any, *rest: Any) -> Any:
    """Carry the first step's state on: the second one then moves the output alone."""
    new, output, weights = advance(self, cells, projected, state, *rest)
    first, _ = self.rnn.advance(cells[0], state.rnn[0], projected, state.feed)
    return new._replace(rnn=(first, *new.rnn[1:])), output, weights


def tie_not_learnt(self: Any, outputs: Any) -> Any:
    """Let no gradient reach the embedding from the output layer."""
    return outputs @ stop(self.embedding.embedding).T + self.dense_bias


@around
def mean_over_padding(loss: Any, *arguments: Any, **options: Any) -> Any:
    return loss(*arguments, **{**options, "reduction": "none"}).mean()


@around
def norm_before_the_sum(add: Any, self: Any, norm: Any, x: Any, result: Any, *rest: Any) -> Any:
    return x + norm(result)


@around
def dropped_with_the_sum(add: Any, self: Any, norm: Any, x: Any, result: Any, keep: Any, sublayer: int) -> Any:
    """Drop entries of the whole sum, not of the sublayer's result."""
    if keep.residual is None:
        return add(self, norm, x, result, keep, sublayer)
    return norm(jax_attn.dropout(x + result, self.dropout, keep.residual[:, sublayer]))


@around
def places_kept(map_state: Any, reorder: Any, state: Any, *stationary: Any) -> Any:
    """Let the places in the cache stay where they were when the beam is reordered."""
    new = map_state(reorder, state, *stationary)
    return new._replace(places=state.places) if new.places.shape == state.places.shape else new


@around
def not_scaled(embed: Any, self: Any, table: Any, *rest: Any) -> Any:
    return embed(self, lambda ids: table(ids) / self.embed_size**0.5, *rest)


@around
def unweighted(compute: Any, label_smoothing: float, kernel: Any, bias: Any, rows: Any) -> Any:
    """Undo the weights that the gradient is multiplied by afterwards."""
    losses, nats, d_logits = compute(label_smoothing, kernel, bias, rows)
    return losses, nats, d_logits / jnp.where(rows.weights == 0, 1, rows.weights)[:, None]


from_one = around(lambda table, length, *rest, **options: table(length + 1, *rest, **options)[1:])
bottom_layer = given(state=lambda state: state._replace(rnn=state.rnn[:1]))
swapped_gates = given(**dict.fromkeys(("projected", "kernel_hh", "bias_hh"), forget_gate_first))
exchanged = around(lambda score, queries, keys, **options: score(keys, queries, **options))
polarity = result(lambda mask: None if mask is None else ~mask)

LSTM_STEP, UNROLL = "modules.recurrent:lstm_step", "modules.recurrent:unroll"
IN_SOFTMAX, IN_ATTEND = "functional.attend:masked_softmax", "functional.attend:"
HEADS, LOSS, DECODER = "MultiHeadAttention", "masked_cross_entropy", "Seq2SeqAttentionDecoder"
IN_DECODER, OF_DECODER = "models.rnn_decoder:", f"models.rnn_decoder:{DECODER}."
RAGGED, NAN, LARGE = "ragged lengths", "NaN where nothing attends", "scores of ±1e4"

ENCODER_LAYERS, DECODER_LAYERS = "TransformerEncoder", "TransformerDecoder"
IN_TRANSFORMER, OF_LAYER = "models.transformer:", "models.transformer:TransformerLayer."

CASE_FAULTS = (
    # Masks, softmax and attention
    Fault("mask polarity", "masked_softmax", polarity, "functional.softmax:attention_mask", RAGGED),
    Fault("one key more than the length", "attend", one_more, "functional.masks:length_mask", RAGGED),
    Fault("softmax over the queries", "attend", over_queries, IN_SOFTMAX, RAGGED),
    Fault("softmax not shifted by its maximum", "masked_softmax", instead(unshifted), variant=LARGE),
    Fault("a cast to float32 left in", "masked_softmax", in_float32),
    Fault("−1e9 in place of −inf", "masked_log_softmax", result(lambda x: x.clip(-1e9)), variant=RAGGED),
    Fault("the weights' gradient stopped", "attend", result(stop), IN_SOFTMAX, in_gradients=True),
    Fault("values not zeroed", "attend", unchanged, f"{IN_ATTEND}zero_unattended", NAN),
    Fault("dropout not rescaled", "attend", given(rate=0.0), f"{IN_ATTEND}drop", "dropout"),
    Fault("scale forgotten", "attention", instead(jax_attn.dot_score), f"{IN_ATTEND}scaled_dot_score"),
    Fault("keys for queries", "attention", exchanged, f"{IN_ATTEND}scaled_dot_score", "causal mask of all examples"),
    Fault("tanh left out", "AdditiveAttention", given(use_tanh=False), "modules.attention:additive_score"),
    Fault("heads dealt out in turn", HEADS, instead(heads_in_turn), f"modules.attention:{HEADS}._split"),
    Fault("positions from 1", "PositionalEncoding", from_one, "modules.embeddings:sinusoidal_positions"),
    # Recurrence
    Fault("gates i and f swapped", "LSTM", swapped_gates, LSTM_STEP),
    Fault("one bias dropped", "LSTM", given(bias_hh=None), LSTM_STEP),
    Fault("the hidden bias outside the reset", "gru_step", bias_outside_reset),
    Fault("run through the padding", "GRU", given(valid_lens=None), UNROLL, "two layers, ragged"),
    Fault("gradient through one step alone", "GRU", given(step=one_step_back), UNROLL, in_gradients=True),
    Fault("both directions forward", "Seq2SeqEncoder", given(reverse=False), UNROLL),
    # Models and losses
    Fault("the bottom layer asks", DECODER, bottom_layer, f"{IN_DECODER}_top"),
    Fault("a beam asks its neighbour", DECODER, given(queries=lambda x: shifted(x, 0)), f"{OF_DECODER}_attend"),
    Fault("the second state forgotten", DECODER, second_step_forgotten, f"{OF_DECODER}_advance", "lstm, between, fed"),
    Fault(
        "the tie learns one side alone",
        DECODER,
        instead(tie_not_learnt),
        f"{OF_DECODER}_logits",
        "tied, other sizes, fed",
        in_gradients=True,
    ),
    Fault("the diagonal masked", DECODER_LAYERS, result(lambda m: jnp.tril(m, -1)), f"{IN_TRANSFORMER}causal_mask"),
    Fault("a Transformer's positions from 1", ENCODER_LAYERS, from_one, f"{IN_TRANSFORMER}sinusoidal_positions"),
    Fault("the norm before the sum", DECODER_LAYERS, norm_before_the_sum, f"{OF_LAYER}_add"),
    Fault("embeddings not scaled", ENCODER_LAYERS, not_scaled, f"{IN_TRANSFORMER}TransformerStack.embed"),
    Fault("the source's padding read", DECODER_LAYERS, given(valid_lens=None), f"{OF_LAYER}prepare"),
    Fault("the cache one late", DECODER_LAYERS, given(start=lambda s: s + 1), f"{IN_TRANSFORMER}_attend_to_past"),
    Fault("the places of a beam kept", DECODER_LAYERS, places_kept, "search.step:map_state"),
    Fault(
        "dropout of the whole sum", DECODER_LAYERS, dropped_with_the_sum, f"{OF_LAYER}_add", "all dropouts", slow=True
    ),
    Fault(
        "tied, and learnt by one side",
        "EncoderDecoder (Transformer)",
        instead(tie_not_learnt),
        f"{IN_TRANSFORMER}TransformerDecoder._logits",
        "three-way tied",
        in_gradients=True,
        slow=True,
    ),
    Fault("labels shifted", LOSS, given(labels=shifted)),
    Fault("the mean counts the padding", LOSS, mean_over_padding, variant="tokens, ragged"),
    Fault(
        "gradient not weighted",
        "projected_cross_entropy",
        unweighted,
        "functional.losses:_losses_and_gradient",
        in_gradients=True,
    ),
)

# In the optimiser: one forward and backward pass shows none of them


@around
def merged_biases(adam: Any, *arguments: Any, **settings: Any) -> Any:
    """Use one recurrent bias instead of PyTorch's two, as most cells of JAX: Adam moves their sum half as far.

    The forward pass and both gradients are right. (The bias that never moves stands for no bias.)
    """
    right = adam(*arguments, **settings)

    def update(gradients: Any, state: Any, params: Any = None) -> Any:
        updates, state = right.update(gradients, state, params)
        return {name: jnp.zeros_like(x) if "bias_hh" in name else x for name, x in updates.items()}, state

    return optax.GradientTransformation(right.init, update)


inside_of_root = instead(lambda betas, eps: optax.scale_by_adam(*betas, eps=0.0, eps_root=eps))
with_decay = around(lambda adam, *given: optax.chain(adam(*given), optax.add_decayed_weights(1e-4)))
other_epsilon = given(eps=lambda eps: 0.0 if eps else 1e-6)
"""PyTorch's where it does not belong, and none where it does."""

ADAM, CLIP = "optim:scale_by_adam", "optim:clip_by_global_norm"
TRAINING_FAULTS = (
    Fault("both recurrent biases in one", "training", merged_biases, ADAM),
    Fault("Adam's epsilon inside of the root", "training", inside_of_root, ADAM),
    Fault("decay of 1e-4, Optax's AdamW", "training", with_decay, ADAM),
    Fault("the clipping's epsilon", "training", other_epsilon, CLIP),
)
