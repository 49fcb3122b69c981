"""Mistakes planted in jax_attn, one at a time."""

from typing import Any

import jax
import jax.numpy as jnp

import jax_attn
from parity_tests.faults.fault import (
    Fault,
    Make,
    after,
    bias_dropped,
    bias_outside_reset,
    instead,
    inverted,
    last_argument,
    with_options,
)

# Masks, softmax and attention


def exchanged(score: Any) -> Any:
    """Keys where the queries belong; it shows only where there are as many of both."""

    def wrong(queries: Any, keys: Any, **options: Any) -> Any:
        return score(keys, queries, **options) if queries.shape == keys.shape else score(queries, keys, **options)

    return wrong


def over_queries(scores: Any, *, mask: Any = None, empty_row: str = "zero") -> Any:
    return jax.nn.softmax(scores if mask is None else jnp.where(mask, scores, -1e6), axis=-2)


def unshifted(scores: Any, *arguments: Any, **options: Any) -> Any:
    """exp(scores) without subtracting the row's maximum: overflows at large scores."""
    exponents = jnp.exp(scores)
    return exponents / exponents.sum(-1, keepdims=True)


def in_float32(function: Any) -> Any:
    """A cast left in: it cannot be seen at a tolerance of 1e-3."""
    return lambda scores, **options: function(scores.astype(jnp.float32), **options).astype(scores.dtype)


def head_by_head(self: Any, x: Any) -> Any:
    """Features dealt out to the heads in turn, not in blocks."""
    return jnp.moveaxis(x.reshape(*x.shape[:-1], -1, self.num_heads), -1, -3)


def scaled_by_all_heads(score: Any) -> Any:
    def wrong(queries: Any, keys: Any, **options: Any) -> Any:
        heads = queries.shape[-3] if queries.ndim > 3 else 1
        return score(queries, keys, **options) / heads**0.5

    return wrong


def square_root_of_sigma(score: Any) -> Any:
    return lambda queries, keys, sigma, **options: score(queries, keys, sigma**0.5, **options)


def not_rescaled(x: Any, rate: float, keep: Any) -> Any:
    return jnp.where(keep, x, 0)


def unscaled(embedded: Any) -> Any:
    return embedded / embedded.shape[-1] ** 0.5


def from_one(table: Any) -> Any:
    return lambda length, *rest: table(length + 1, *rest)[1:]


def sines_first(table: Any) -> Any:
    return jnp.concatenate([table[:, ::2], table[:, 1::2]], axis=-1)


# Recurrence


def gates_swapped(first: int, second: int, gates: int) -> Make:
    order = list(range(gates))
    order[first], order[second] = second, first

    def reorder(x: Any) -> Any:
        parts = None if x is None else jnp.split(x, gates, axis=-1)
        return None if parts is None else jnp.concatenate([parts[i] for i in order], axis=-1)

    def make(step: Any) -> Any:
        return lambda carry, projected, kernel, bias=None: step(
            carry, reorder(projected), reorder(kernel), reorder(bias)
        )

    return make


def forget_gate_open(step: Any) -> Any:
    """The +1 on the forget gate that TensorFlow's cell adds."""

    def wrong(carry: Any, projected: Any, kernel: Any, bias: Any = None) -> Any:
        size = projected.shape[-1] // 4
        return step(carry, projected.at[..., size : 2 * size].add(1), kernel, bias)

    return wrong


def cell_without_tanh(step: Any) -> Any:
    def wrong(carry: Any, projected: Any, kernel: Any, bias: Any = None) -> Any:
        (h, c), _ = step(carry, projected, kernel, bias)
        h = h * c / jnp.tanh(c)
        return (h, c), h

    return wrong


def reset_before(h: Any, projected: Any, kernel: Any, bias: Any = None) -> Any:
    """The GRU of the first paper: n = tanh(x_n + W_n (r ∘ h) + b_n)."""
    size = h.shape[-1]
    bias = jnp.zeros(3 * size, h.dtype) if bias is None else bias
    gates = jax.nn.sigmoid((projected + h @ kernel + bias)[..., : 2 * size])
    r, z = gates[..., :size], gates[..., size:]
    n = jnp.tanh(projected[..., 2 * size :] + (r * h) @ kernel[:, 2 * size :] + bias[2 * size :])
    h = (1 - z) * n + z * h
    return h, h


def update_turned_round(step: Any) -> Any:
    """h' = z n + (1 − z) h, the convention of the GRU's first paper."""

    def wrong(h: Any, projected: Any, kernel: Any, bias: Any = None) -> Any:
        new, _ = step(h, projected, kernel, bias)
        size = h.shape[-1]
        share = h @ kernel + (0 if bias is None else bias)
        z = jax.nn.sigmoid((projected + share)[..., size : 2 * size])
        new = z * (new - z * h) / (1 - z) + (1 - z) * h
        return new, new

    return wrong


def through_padding(unroll: Any) -> Any:
    return lambda step, carry, inputs, valid_lens=None, **options: unroll(step, carry, inputs, None, **options)


def without_lengths(reverse: Any) -> Any:
    return lambda inputs, valid_lens=None: reverse(inputs)


def truncated(unroll: Any) -> Any:
    """Backpropagation through one step instead of through time."""

    def wrong(step: Any, carry: Any, *arguments: Any, **options: Any) -> Any:
        return unroll(lambda carry, x: step(jax.lax.stop_gradient(carry), x), carry, *arguments, **options)

    return wrong


def weights_not_learnt(step: Any) -> Any:
    return lambda carry, projected, kernel, bias=None: step(carry, projected, jax.lax.stop_gradient(kernel), bias)


# Models, losses and search


def context_and_embedding_exchanged(cells: Any) -> Any:
    def wrong(self: Any, memory: Any) -> Any:
        embedding, (first, *upper) = cells(self, memory)
        if first.kernel_ih.shape != embedding.kernel_ih.shape:
            return embedding, (first, *upper)
        exchanged = embedding._replace(kernel_ih=first.kernel_ih)
        return exchanged, (first._replace(kernel_ih=embedding.kernel_ih), *upper)

    return wrong


def bottom_state(state: Any) -> Any:
    return jax.tree.leaves(state.rnn[0])[0]


def no_final_tanh(logits: Any) -> Any:
    return lambda self, x: logits(self, jnp.arctanh(x) if self.query == "new" else x)


def neighbour_asked(attend: Any) -> Any:
    return lambda self, queries, *rest: attend(self, jnp.roll(queries, 1, axis=0), *rest)


def labels_shifted(loss: Any) -> Any:
    return lambda logits, labels, *rest, **options: loss(logits, jnp.roll(labels, 1, axis=-1), *rest, **options)


def mean_over_padding(loss: Any) -> Any:
    def wrong(logits: Any, labels: Any, valid_lens: Any = None, mask: Any = None, **options: Any) -> Any:
        if options.get("reduction", "tokens") != "tokens":
            return loss(logits, labels, valid_lens, mask, **options)
        return loss(logits, labels, valid_lens, mask, **{**options, "reduction": "none"}).mean()

    return wrong


def smoothing_among_the_others(loss: Any) -> Any:
    def wrong(logits: Any, *arguments: Any, label_smoothing: float = 0.0, **options: Any) -> Any:
        size = logits.shape[-1]
        return loss(logits, *arguments, label_smoothing=label_smoothing * size / (size - 1), **options)

    return wrong


def weights_forgotten(losses: Any) -> Any:
    def wrong(label_smoothing: float, kernel: Any, bias: Any, rows: Any) -> Any:
        unweighted = rows._replace(weights=(rows.weights != 0).astype(rows.weights.dtype))
        return losses(label_smoothing, kernel, bias, unweighted)

    return wrong


def neighbours_weights(read_back: Any) -> Any:
    def wrong(*arguments: Any) -> Any:
        ids, token_scores, weights = read_back(*arguments)
        return ids, token_scores, None if weights is None else jnp.roll(weights, 1, axis=1)

    return wrong


def inverse_temperature(search: Any) -> Any:
    return lambda *arguments, temperature=1.0, **options: search(*arguments, temperature=1 / temperature, **options)


def last_score_forgotten(found: Any) -> Any:
    return found._replace(scores=found.token_scores[..., :-1].sum(-1))


def one_more(length_mask: Any) -> Any:
    return lambda valid_lens, size: length_mask(jnp.minimum(valid_lens + 1, size), size)


always_uniform, all_attended = with_options(empty_row="uniform"), with_options(source_lens=None)
narrow = instead(jnp.result_type)
ATTEND, ATTENTION, RECURRENT = "functional.attend", "modules.attention", "modules.recurrent"
DECODER, DECODER_CLASS = "Seq2SeqAttentionDecoder", "models.rnn_decoder:Seq2SeqAttentionDecoder"
LOSS, LOG_SOFTMAX, HEADS = "masked_cross_entropy", "masked_log_softmax", "MultiHeadAttention"
PROJECTED_LOSSES = "functional.losses:_losses_and_gradient"
FORBID_END, FORBID_REPEATS = "search.constraints:forbid_end", "search.constraints:forbid_repeats"
RAGGED, RAGGED_TOKENS, NAN, LARGE = "ragged lengths", "tokens, ragged", "NaN where nothing attends", "scores of ±1e4"
DROPOUT = "two layers, both directions, ragged, dropout"
CAUSAL, LARGE_DOT, TEN = "causal mask of all examples", "scores of ±1e4, scaled=True", "10 positions, 7 features"
SHORT, BABBLE, COLD = "NaN where it is forbidden", "no 2 tokens twice of a babble", "{'temperature': 0.5}"
LUONG = "Luong: lstm, dot, new, fed"
PENALTY = "a table, {'beam_size': 4, 'length_penalty': 0.75}"
COVERAGE = "coverage of ragged sources, and everything else"

MASK_FAULTS = (
    Fault("mask polarity", "masked_softmax", "functional.softmax:attention_mask", inverted, RAGGED),
    Fault("one key more than the length", "attend", "functional.masks:length_mask", one_more, RAGGED),
    Fault("the query itself is hidden", "causal_mask", ":causal_mask", after(lambda mask: jnp.tril(mask, -1))),
    Fault("softmax over the queries", "attend", f"{ATTEND}:masked_softmax", instead(over_queries)),
    Fault("softmax not shifted by its maximum", "masked_softmax", ":masked_softmax", instead(unshifted), LARGE),
    Fault("an empty row always uniform", "attend", f"{ATTEND}:masked_softmax", always_uniform, "an empty row"),
    Fault("−1e9 in place of −inf", LOG_SOFTMAX, f":{LOG_SOFTMAX}", after(lambda x: jnp.maximum(x, -1e9)), RAGGED),
    Fault("a cast to float32 left in", "masked_softmax", ":masked_softmax", in_float32),
    Fault("sequence mask ignores its value", "sequence_mask", ":sequence_mask", with_options(value=0), "no features"),
)
ATTENTION_FAULTS = (
    Fault("scale forgotten", "attention", f"{ATTEND}:scaled_dot_score", instead(jax_attn.dot_score)),
    Fault("keys and queries exchanged", "attention", f"{ATTEND}:scaled_dot_score", exchanged, CAUSAL),
    Fault("values not zeroed", "attend", f"{ATTEND}:zero_unattended", instead(lambda values, allowed: values), NAN),
    Fault("dropout not rescaled", "attend", f"{ATTEND}:dropout", instead(not_rescaled), "dropout"),
    Fault("the weights' gradient stopped", "attend", f"{ATTEND}:masked_softmax", after(jax.lax.stop_gradient)),
    Fault("tanh left out", "AdditiveAttention", f"{ATTENTION}:additive_score", with_options(use_tanh=False)),
    Fault("sigma not squared", "GaussianAttention", f"{ATTENTION}:gaussian_score", square_root_of_sigma, "narrow"),
    Fault("heads dealt out in turn", HEADS, f"{ATTENTION}:{HEADS}._split", instead(head_by_head)),
    Fault("scaled by all heads together", HEADS, f"{ATTENTION}:scaled_dot_score", scaled_by_all_heads),
    Fault(
        "rounded to bfloat16", "DotProductAttention", f"{ATTENTION}:wide_dtype", narrow, LARGE_DOT, "bfloat16", jit=True
    ),
    Fault("embeddings not scaled", "Embeddings", "modules.embeddings:nn.Embed.__call__", after(unscaled)),
    Fault("positions from 1", "PositionalEncoding", "modules.embeddings:sinusoidal_positions", from_one),
    Fault("sines first, then cosines", "sinusoidal_positions", ":sinusoidal_positions", after(sines_first), TEN),
)
RECURRENT_FAULTS = (
    Fault("gates i and f swapped", "LSTM", f"{RECURRENT}:lstm_step", gates_swapped(0, 1, 4)),
    Fault("gates g and o swapped", "lstm_step", ":lstm_step", gates_swapped(2, 3, 4)),
    Fault("gates r and z swapped", "GRU", f"{RECURRENT}:gru_step", gates_swapped(0, 1, 3)),
    Fault("one bias dropped", "LSTM", f"{RECURRENT}:lstm_step", bias_dropped),
    Fault("the forget gate's bias one higher", "lstm_step", ":lstm_step", forget_gate_open),
    Fault("the cell without its tanh", "lstm_step", ":lstm_step", cell_without_tanh),
    Fault("reset before the product", "gru_step", ":gru_step", instead(reset_before)),
    Fault("the hidden bias outside the reset", "gru_step", ":gru_step", bias_outside_reset),
    Fault("the update gate turned round", "gru_step", ":gru_step", update_turned_round),
    Fault("run through the padding", "GRU", f"{RECURRENT}:unroll", through_padding, "two layers, ragged"),
    Fault("gradient through one step alone", "GRU", f"{RECURRENT}:unroll", truncated),
    Fault("no gradient for the weights of the loop", "GRU", f"{RECURRENT}:gru_step", weights_not_learnt),
    Fault("both directions forward", "Seq2SeqEncoder", f"{RECURRENT}:unroll", with_options(reverse=False)),
    Fault("padding reversed with the rest", "reverse_sequence", ":reverse_sequence", without_lengths, "ragged"),
    Fault("no dropout between layers", "LSTM", f"{RECURRENT}:drop", instead(lambda x, rate, keep: x), DROPOUT),
)
MODEL_FAULTS = (
    Fault("the bottom layer asks", DECODER, "models.rnn_decoder:_top", instead(bottom_state)),
    Fault("context and embedding exchanged", DECODER, f"{DECODER_CLASS}._cells", context_and_embedding_exchanged),
    Fault("the attentional vector without its tanh", DECODER, f"{DECODER_CLASS}._logits", no_final_tanh, LUONG),
    Fault("a beam asks its neighbour's memory", DECODER, f"{DECODER_CLASS}._attend", neighbour_asked),
    Fault("labels shifted", LOSS, f":{LOSS}", labels_shifted),
    Fault("one label more than the length", LOSS, "functional.losses:length_mask", one_more, RAGGED_TOKENS),
    Fault("the mean counts the padding", LOSS, f":{LOSS}", mean_over_padding, RAGGED_TOKENS),
    Fault("smoothing spread over the others", LOSS, f":{LOSS}", smoothing_among_the_others, "smoothed"),
    Fault("weights forgotten in the gradient", "projected_cross_entropy", PROJECTED_LOSSES, weights_forgotten),
)
SEARCH_FAULTS = (
    Fault("length penalty forgotten", "beam_search", ":beam_search", with_options(length_penalty=0.0), PENALTY),
    Fault("padding must be covered too", "beam_search", "search.beam:make_penalties", all_attended, COVERAGE),
    Fault("a beam's weights from the wrong place", "beam_search", "search.beam:_read_back", neighbours_weights),
    Fault("one token short of the least length", "greedy_search", FORBID_END, last_argument(lambda n: n - 1), SHORT),
    Fault("repeats of one token more", "greedy_search", FORBID_REPEATS, last_argument(lambda n: n + 1), BABBLE),
    Fault("hot where it should be cold", "sample_search", ":sample_search", inverse_temperature, COLD),
    Fault("the last token's score forgotten", "greedy_search", ":greedy_search", after(last_score_forgotten)),
)
JAX_FAULTS = (*MASK_FAULTS, *ATTENTION_FAULTS, *RECURRENT_FAULTS, *MODEL_FAULTS, *SEARCH_FAULTS)
