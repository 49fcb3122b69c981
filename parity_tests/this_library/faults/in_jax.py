"""Mistakes planted in jax_attn, one at a time."""

from typing import Any

import jax
import jax.numpy as jnp

import jax_attn
from parity_tests.this_library.faults.fault import (
    Fault,
    Make,
    after,
    around,
    bias_dropped,
    bias_outside_reset,
    instead,
    inverted,
    labels_shifted,
    with_options,
)

# Masks, softmax and attention


@around
def one_more(length_mask: Any, valid_lens: Any, size: int) -> Any:
    return length_mask(jnp.minimum(valid_lens + 1, size), size)


@around
def exchanged(score: Any, queries: Any, keys: Any, **options: Any) -> Any:
    """Put keys where the queries belong; it shows only where there are as many of both."""
    return score(keys, queries, **options) if queries.shape == keys.shape else score(queries, keys, **options)


def over_queries(scores: Any, *, mask: Any = None, empty_row: str = "zero") -> Any:
    return jax.nn.softmax(scores if mask is None else jnp.where(mask, scores, -1e6), axis=-2)


def unshifted(scores: Any, *arguments: Any, **options: Any) -> Any:
    """Leave out subtracting the row's maximum: exp overflows at large scores."""
    exponents = jnp.exp(scores)
    return exponents / exponents.sum(-1, keepdims=True)


@around
def in_float32(function: Any, scores: Any, **options: Any) -> Any:
    """Leave a cast in: it cannot be seen at a tolerance of 1e-3."""
    return function(scores.astype(jnp.float32), **options).astype(scores.dtype)


def head_by_head(self: Any, x: Any) -> Any:
    """Deal features out to the heads in turn, not in blocks."""
    return jnp.moveaxis(x.reshape(*x.shape[:-1], -1, self.num_heads), -1, -3)


@around
def scaled_by_all_heads(score: Any, queries: Any, keys: Any, **options: Any) -> Any:
    return score(queries, keys, **options) / (queries.shape[-3] if queries.ndim > 3 else 1) ** 0.5


def not_rescaled(x: Any, rate: float, keep: Any) -> Any:
    return jnp.where(keep, x, 0)


@around
def square_root_of_sigma(score: Any, queries: Any, keys: Any, sigma: float, **options: Any) -> Any:
    return score(queries, keys, sigma**0.5, **options)


def sines_first(table: Any) -> Any:
    return jnp.concatenate([table[:, ::2], table[:, 1::2]], axis=-1)


# Recurrence


def gates_swapped(first: int, second: int, gates: int) -> Make:
    order = list(range(gates))
    order[first], order[second] = second, first

    def reorder(x: Any) -> Any:
        parts = None if x is None else jnp.split(x, gates, axis=-1)
        return None if parts is None else jnp.concatenate([parts[i] for i in order], axis=-1)

    return around(lambda step, carry, *arrays: step(carry, *map(reorder, arrays)))


@around
def forget_gate_open(step: Any, carry: Any, projected: Any, *weights: Any) -> Any:
    """Add 1 to the forget gate, as TensorFlow's cell does."""
    size = projected.shape[-1] // 4
    return step(carry, projected.at[..., size : 2 * size].add(1), *weights)


@around
def cell_without_tanh(step: Any, *arguments: Any) -> Any:
    (h, c), _ = step(*arguments)
    h = h * c / jnp.tanh(c)
    return (h, c), h


def reset_before(h: Any, projected: Any, kernel: Any, bias: Any = None) -> Any:
    """Compute the GRU of the first paper: n = tanh(x_n + W_n (r ∘ h) + b_n)."""
    size = h.shape[-1]
    bias = jnp.zeros(3 * size, h.dtype) if bias is None else bias
    gates = jax.nn.sigmoid((projected + h @ kernel + bias)[..., : 2 * size])
    r, z = gates[..., :size], gates[..., size:]
    n = jnp.tanh(projected[..., 2 * size :] + (r * h) @ kernel[:, 2 * size :] + bias[2 * size :])
    h = (1 - z) * n + z * h
    return h, h


@around
def update_turned_round(step: Any, h: Any, projected: Any, kernel: Any, bias: Any = 0) -> Any:
    """Compute h' = z n + (1 − z) h, the convention of the GRU's first paper."""
    new, _ = step(h, projected, kernel, bias)
    size = h.shape[-1]
    z = jax.nn.sigmoid((projected + h @ kernel + bias)[..., size : 2 * size])
    new = z * (new - z * h) / (1 - z) + (1 - z) * h
    return new, new


@around
def through_padding(unroll: Any, step: Any, carry: Any, inputs: Any, valid_lens: Any = None, **options: Any) -> Any:
    return unroll(step, carry, inputs, None, **options)


@around
def truncated(unroll: Any, step: Any, *arguments: Any, **options: Any) -> Any:
    """Propagate gradients through one step instead of through time."""
    return unroll(lambda carry, x: step(jax.lax.stop_gradient(carry), x), *arguments, **options)


@around
def weights_not_learnt(step: Any, carry: Any, projected: Any, kernel: Any, bias: Any = None) -> Any:
    return step(carry, projected, jax.lax.stop_gradient(kernel), bias)


# Models, losses and search


@around
def context_and_embedding_exchanged(cells: Any, self: Any, memory: Any) -> Any:
    embedding, (first, *upper) = cells(self, memory)
    if first.kernel_ih.shape != embedding.kernel_ih.shape:
        return embedding, (first, *upper)
    exchanged = embedding._replace(kernel_ih=first.kernel_ih)
    return exchanged, (first._replace(kernel_ih=embedding.kernel_ih), *upper)


def bottom_state(state: Any) -> Any:
    return jax.tree.leaves(state.rnn[0])[0]


@around
def no_final_tanh(logits: Any, self: Any, x: Any) -> Any:
    return logits(self, jnp.arctanh(x) if self.query == "new" else x)


@around
def neighbour_asked(attend: Any, self: Any, queries: Any, *rest: Any) -> Any:
    return attend(self, jnp.roll(queries, 1, axis=0), *rest)


@around
def mean_over_padding(loss: Any, *arguments: Any, reduction: str = "tokens", **options: Any) -> Any:
    if reduction != "tokens":
        return loss(*arguments, reduction=reduction, **options)
    return loss(*arguments, reduction="none", **options).mean()


@around
def smoothing_among_the_others(loss: Any, logits: Any, *rest: Any, label_smoothing: float, **options: Any) -> Any:
    size = logits.shape[-1]
    return loss(logits, *rest, label_smoothing=label_smoothing * size / (size - 1), **options)


@around
def weights_forgotten(losses: Any, label_smoothing: float, kernel: Any, bias: Any, rows: Any) -> Any:
    unweighted = rows._replace(weights=(rows.weights != 0).astype(rows.weights.dtype))
    return losses(label_smoothing, kernel, bias, unweighted)


@around
def first_not_summed(scan: Any, body: Any, carry: Any, xs: Any) -> Any:
    """Leave the first step out of a loop's sums. What the loop stacks is right, and so are the losses."""
    return scan(body, carry, jax.tree.map(lambda x: x[1:], xs))[0], scan(body, carry, xs)[1]


@around
def neighbours_weights(read_back: Any, *arguments: Any) -> Any:
    ids, token_scores, weights = read_back(*arguments)
    return ids, token_scores, None if weights is None else jnp.roll(weights, 1, axis=1)


@around
def inverse_temperature(search: Any, *arguments: Any, temperature: float = 1.0, **options: Any) -> Any:
    return search(*arguments, temperature=1 / temperature, **options)


def last_score_forgotten(found: Any) -> Any:
    return found._replace(scores=found.token_scores[..., :-1].sum(-1))


def given_not_rescaled(x: Any, rate: float, keep: Any) -> Any:
    return x if keep is None else jnp.where(keep, x, 0)


@around
def a_step_late(time_first: Any, masks: Any, time: int) -> Any:
    """Drop the words of the step before: of the labels' neighbours, not of the tokens that are read."""
    masks = time_first(masks, time)
    return masks._replace(words=None if masks.words is None else jnp.roll(masks.words, 1, axis=0))


@around
def second_step_forgotten(advance: Any, self: Any, cells: Any, projected: Any, state: Any, *rest: Any) -> Any:
    """Carry the first step's state on: the second one then moves the output alone."""
    new, output, weights = advance(self, cells, projected, state, *rest)
    first, _ = self.rnn.advance(cells[0], state.rnn[0], projected, state.feed)
    return new._replace(rnn=(first, *new.rnn[1:])), output, weights


@around
def tie_not_learnt(logits: Any, self: Any, x: Any) -> Any:
    """Let no gradient reach the embedding from the output layer."""
    return x @ jax.lax.stop_gradient(self.embedding.embedding).T + self.dense_bias


def last_argument_changed(by: int) -> Make:
    return around(lambda function, *arguments: function(*arguments[:-1], arguments[-1] + by))


unscaled = after(lambda x: x / x.shape[-1] ** 0.5)
from_one = around(lambda table, length, *rest: table(length + 1, *rest)[1:])
always_uniform, all_attended = with_options(empty_row="uniform"), with_options(source_lens=None)
narrow = instead(jnp.result_type)
ATTEND, ATTENTION, RECURRENT = "functional.attend", "modules.attention", "modules.recurrent"
DECODER, DECODER_CLASS = "Seq2SeqAttentionDecoder", "models.rnn_decoder:Seq2SeqAttentionDecoder"
LOSS, LOG_SOFTMAX, HEADS = "masked_cross_entropy", "masked_log_softmax", "MultiHeadAttention"
PROJECTED, BLOCKS = "projected_cross_entropy", "three blocks, smoothed"
FORBID_END, FORBID_REPEATS = "search.constraints:forbid_end", "search.constraints:forbid_repeats"
RAGGED, RAGGED_TOKENS, NAN, LARGE = "ragged lengths", "tokens, ragged", "NaN where nothing attends", "scores of ±1e4"
DROPOUT = "two layers, both directions, ragged, dropout"
CAUSAL, LARGE_DOT, TEN = "causal mask of all examples", "scores of ±1e4, scaled", "10 positions, 7 features"
SHORT, BABBLE, COLD = "NaN where it is forbidden", "no 2 tokens twice of a babble", "{'temperature': 0.5}"
LUONG = "Luong: lstm, dot, new, fed"
ENCODER, DROPPED = "Seq2SeqEncoder", "variational dropout"
BETWEEN, TIED = "lstm, between, fed", "tied, other sizes, fed"
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
    Fault("embeddings not scaled", "Embeddings", "modules.embeddings:nn.Embed.__call__", unscaled),
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
    Fault("no dropout between layers", "LSTM", f"{RECURRENT}:drop", instead(lambda x, rate, keep: x), DROPOUT),
)
MODEL_FAULTS = (
    Fault("the bottom layer asks", DECODER, "models.rnn_decoder:_top", instead(bottom_state)),
    Fault("context and embedding exchanged", DECODER, f"{DECODER_CLASS}._cells", context_and_embedding_exchanged),
    Fault("the attentional vector without its tanh", DECODER, f"{DECODER_CLASS}._logits", no_final_tanh, LUONG),
    Fault("a beam asks its neighbour's memory", DECODER, f"{DECODER_CLASS}._attend", neighbour_asked),
    Fault("embeddings dropped, not rescaled", ENCODER, "models.rnn_encoder:drop", instead(given_not_rescaled), DROPPED),
    Fault("words of the step before dropped", DECODER, "models.rnn_decoder:_time_first", a_step_late, "all dropouts"),
    Fault("the second step's state forgotten", DECODER, f"{DECODER_CLASS}._advance", second_step_forgotten, BETWEEN),
    Fault("the tie learns one side alone", DECODER, f"{DECODER_CLASS}._logits", tie_not_learnt, TIED),
    Fault("labels shifted", LOSS, f":{LOSS}", labels_shifted),
    Fault("one label more than the length", LOSS, "functional.losses:length_mask", one_more, RAGGED_TOKENS),
    Fault("the mean counts the padding", LOSS, f":{LOSS}", mean_over_padding, RAGGED_TOKENS),
    Fault("smoothing spread over the others", LOSS, f":{LOSS}", smoothing_among_the_others, "smoothed"),
    Fault("weights forgotten in the gradient", PROJECTED, "functional.losses:_losses_and_gradient", weights_forgotten),
    Fault("gradient without its first block", PROJECTED, "functional.losses:jax.lax.scan", first_not_summed, BLOCKS),
)
SEARCH_FAULTS = (
    Fault("length penalty forgotten", "beam_search", ":beam_search", with_options(length_penalty=0.0), PENALTY),
    Fault("padding must be covered too", "beam_search", "search.beam:make_penalties", all_attended, COVERAGE),
    Fault("a beam's weights from the wrong place", "beam_search", "search.beam:_read_back", neighbours_weights),
    Fault("one token short of the least length", "greedy_search", FORBID_END, last_argument_changed(-1), SHORT),
    Fault("repeats of one token more", "greedy_search", FORBID_REPEATS, last_argument_changed(1), BABBLE),
    Fault("hot where it should be cold", "sample_search", ":sample_search", inverse_temperature, COLD),
    Fault("the last token's score forgotten", "greedy_search", ":greedy_search", after(last_score_forgotten)),
)
JAX_FAULTS = (*MASK_FAULTS, *ATTENTION_FAULTS, *RECURRENT_FAULTS, *MODEL_FAULTS, *SEARCH_FAULTS)
