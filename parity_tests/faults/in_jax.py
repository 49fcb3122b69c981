"""Mistakes planted on the JAX side, one at a time."""

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jax_attn
from jax_attn.functional import losses, masks, projected_loss, scan, scores, softmax
from jax_attn.models import rnn_decoder
from jax_attn.modules import attention, embeddings, recurrent
from jax_attn.search import beam, constraints
from parity_tests.faults.fault import Fault, after, inverted, with_options

attend = importlib.import_module("jax_attn.functional.attend")  # by name: the package shows its function


def one_more(length_mask: Any) -> Any:
    return lambda valid_lens, size: length_mask(valid_lens + 1, size)


def exchanged(score: Any) -> Any:
    """Keys where the queries belong: seen only where there are as many of both."""

    def wrong(queries: Any, keys: Any, **options: Any) -> Any:
        return score(keys, queries, **options) if queries.shape == keys.shape else score(queries, keys, **options)

    return wrong


def over_queries(_: Any) -> Any:
    def wrong(scores: Any, *, mask: Any = None, empty_row: str = "zero") -> Any:
        return jax.nn.softmax(scores if mask is None else jnp.where(mask, scores, -1e6), axis=-2)

    return wrong


def gates_swapped(first: int, second: int, gates: int) -> Callable[[Any], Any]:
    order = list(range(gates))
    order[first], order[second] = second, first

    def make(step: Any) -> Any:
        def wrong(carry: Any, projected: Any, kernel: Any, bias: Any = None) -> Any:
            def reorder(x: Any) -> Any:
                parts = jnp.split(x, gates, axis=-1)
                return jnp.concatenate([parts[i] for i in order], axis=-1)

            return step(carry, reorder(projected), reorder(kernel), None if bias is None else reorder(bias))

        return wrong

    return make


def bias_dropped(step: Any) -> Any:
    return lambda carry, projected, kernel, bias=None: step(carry, projected, kernel, None)


def reset_before(_: Any) -> Any:
    """The GRU of the first paper: n = tanh(x_n + W_n (r ∘ h) + b_n)."""

    def wrong(h: Any, projected: Any, kernel: Any, bias: Any = None) -> Any:
        size = h.shape[-1]
        bias = jnp.zeros(3 * size, h.dtype) if bias is None else bias
        gates = jax.nn.sigmoid((projected + h @ kernel + bias)[..., : 2 * size])
        r, z = gates[..., :size], gates[..., size:]
        n = jnp.tanh(projected[..., 2 * size :] + (r * h) @ kernel[:, 2 * size :] + bias[2 * size :])
        h = (1 - z) * n + z * h
        return h, h

    return wrong


def weights_forgotten(losses: Any) -> Any:
    def wrong(label_smoothing: float, kernel: Any, bias: Any, rows: Any) -> Any:
        unweighted = rows._replace(weights=(rows.weights != 0).astype(rows.weights.dtype))
        return losses(label_smoothing, kernel, bias, unweighted)

    return wrong


def through_padding(unroll: Any) -> Any:
    return lambda step, carry, inputs, valid_lens=None, **options: unroll(step, carry, inputs, None, **options)


def backward_as_forward(unroll: Any) -> Any:
    return lambda *arguments, reverse=False: unroll(*arguments)


def labels_shifted(loss: Any) -> Any:
    def wrong(logits: Any, labels: Any, *rest: Any, **options: Any) -> Any:
        return loss(logits, jnp.roll(labels, 1, axis=-1), *rest, **options)

    return wrong


def penalty_forgotten(search: Any) -> Any:
    return lambda *arguments, length_penalty=0.0, **options: search(*arguments, **options)


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


def update_turned_round(step: Any) -> Any:
    """h' = z n + (1 − z) h, the convention of the GRU's first paper."""

    def wrong(h: Any, projected: Any, kernel: Any, bias: Any = None) -> Any:
        new, _ = step(h, projected, kernel, bias)
        size = h.shape[-1]
        share = h @ kernel + (0 if bias is None else bias)
        z = jax.nn.sigmoid((projected + share)[..., size : 2 * size])
        n = (new - z * h) / (1 - z)
        new = z * n + (1 - z) * h
        return new, new

    return wrong


def bias_outside_reset(step: Any) -> Any:
    """b_n added to the input's share: right for every gate but this one."""

    def wrong(h: Any, projected: Any, kernel: Any, bias: Any = None) -> Any:
        return step(h, projected if bias is None else projected + bias, kernel, None)

    return wrong


def truncated(unroll: Any) -> Any:
    """Backpropagation through one step instead of through time."""

    def wrong(step: Any, carry: Any, *arguments: Any, **options: Any) -> Any:
        def stopped(carry: Any, x: Any) -> Any:
            return step(jax.lax.stop_gradient(carry), x)

        return unroll(stopped, carry, *arguments, **options)

    return wrong


def first_step_forgotten(product: Any) -> Any:
    return lambda x, *arguments, **options: product(x.at[0].set(0), *arguments, **options)


def last_one(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function whose last argument is changed."""
    return lambda function: lambda *arguments: function(*arguments[:-1], change(arguments[-1]))


def weights_of_the_neighbour(read_back: Any) -> Any:
    def wrong(*arguments: Any) -> Any:
        ids, token_scores, weights = read_back(*arguments)
        return ids, token_scores, None if weights is None else jnp.roll(weights, 1, axis=1)

    return wrong


def inverse_temperature(search: Any) -> Any:
    return lambda *arguments, temperature=1.0, **options: search(*arguments, temperature=1 / temperature, **options)


def unscaled(embedded: Any) -> Any:
    return embedded / embedded.shape[-1] ** 0.5


def head_by_head(split: Any) -> Any:
    """Features dealt out to the heads in turn, not in blocks."""

    def wrong(self: Any, x: Any) -> Any:
        return jnp.moveaxis(x.reshape(*x.shape[:-1], -1, self.num_heads), -1, -3)

    return wrong


def scaled_by_all_heads(score: Any) -> Any:
    def wrong(queries: Any, keys: Any, **options: Any) -> Any:
        heads = queries.shape[-3] if queries.ndim > 3 else 1
        return score(queries, keys, **options) / heads**0.5

    return wrong


def context_and_embedding_exchanged(cells: Any) -> Any:
    def wrong(self: Any, memory: Any) -> Any:
        of_embedding, (first, *upper) = cells(self, memory)
        if first.kernel_ih.shape != of_embedding.kernel_ih.shape:
            return of_embedding, (first, *upper)
        exchanged = of_embedding._replace(kernel_ih=first.kernel_ih)
        return exchanged, (first._replace(kernel_ih=of_embedding.kernel_ih), *upper)

    return wrong


def smoothing_among_the_others(loss: Any) -> Any:
    def wrong(logits: Any, *arguments: Any, label_smoothing: float = 0.0, **options: Any) -> Any:
        size = logits.shape[-1]
        return loss(logits, *arguments, label_smoothing=label_smoothing * size / (size - 1), **options)

    return wrong


def mean_over_padding(loss: Any) -> Any:
    def wrong(logits: Any, labels: Any, valid_lens: Any = None, mask: Any = None, **options: Any) -> Any:
        if options.get("reduction", "tokens") != "tokens":
            return loss(logits, labels, valid_lens, mask, **options)
        return loss(logits, labels, valid_lens, mask, **{**options, "reduction": "none"}).mean()

    return wrong


def in_float32(function: Any) -> Any:
    """A cast left in: invisible at a tolerance of 1e-3."""
    return lambda scores, **options: function(scores.astype(jnp.float32), **options).astype(scores.dtype)


def last_token_forgotten(found: Any) -> Any:
    return found._replace(scores=found.token_scores[..., :-1].sum(-1))


def unshifted(_: Any) -> Any:
    """exp(scores) without taking the row's maximum away: overflows at large scores."""

    def wrong(scores: Any, *arguments: Any, **options: Any) -> Any:
        exponents = jnp.exp(scores)
        return exponents / exponents.sum(-1, keepdims=True)

    return wrong


JAX_FAULTS = (
    # Masks and softmax
    Fault("mask polarity", "masked_softmax", softmax, "attention_mask", inverted),
    Fault("one key more than the length", "attend", masks, "length_mask", one_more),
    Fault("the query itself is hidden", "causal_mask", jax_attn, "causal_mask", after(lambda mask: jnp.tril(mask, -1))),
    Fault("softmax over the queries", "attend", attend, "masked_softmax", over_queries),
    Fault("softmax not shifted by its maximum", "masked_softmax", jax_attn, "masked_softmax", unshifted),
    Fault("an empty row always uniform", "attend", attend, "masked_softmax", with_options(empty_row="uniform")),
    Fault(
        "−1e9 in place of −inf",
        "masked_log_softmax",
        jax_attn,
        "masked_log_softmax",
        after(lambda x: jnp.maximum(x, -1e9)),
    ),
    Fault("a cast to float32 left in", "masked_softmax", jax_attn, "masked_softmax", in_float32),
    Fault("sequence mask ignores its value", "sequence_mask", jax_attn, "sequence_mask", with_options(value=0)),
    # Attention
    Fault("scale forgotten", "attention", attend, "scaled_dot_score", lambda _: scores.dot_score),
    Fault(
        "keys and queries exchanged",
        "attention",
        attend,
        "scaled_dot_score",
        exchanged,
        variant="causal mask of all examples",
    ),
    Fault(
        "values not zeroed",
        "attend",
        attend,
        "zero_unattended",
        lambda _: lambda values, allowed: values,
        variant="NaN where nobody attends",
    ),
    Fault(
        "dropout not rescaled",
        "attend",
        attend,
        "dropout",
        lambda _: lambda x, rate, keep: jnp.where(keep, x, 0),
        variant="dropout",
    ),
    Fault("the weights' gradient stopped", "attend", attend, "masked_softmax", after(jax.lax.stop_gradient)),
    Fault("tanh left out", "AdditiveAttention", attention, "additive_score", with_options(use_tanh=False)),
    Fault(
        "sigma not squared",
        "GaussianAttention",
        attention,
        "gaussian_score",
        lambda score: lambda q, k, sigma, **options: score(q, k, sigma**0.5, **options),
        variant="narrow",
    ),
    Fault("heads dealt out in turn", "MultiHeadAttention", attention.MultiHeadAttention, "_split", head_by_head),
    Fault("scaled by all heads together", "MultiHeadAttention", attention, "scaled_dot_score", scaled_by_all_heads),
    Fault(
        "scores rounded to bfloat16",
        "DotProductAttention",
        attention,
        "wide_dtype",
        lambda _: jnp.result_type,
        "bfloat16",
    ),
    # Embeddings and positions
    Fault("embeddings not scaled", "Embeddings", embeddings.nn.Embed, "__call__", after(unscaled)),
    Fault(
        "positions from 1",
        "PositionalEncoding",
        embeddings,
        "sinusoidal_positions",
        lambda table: lambda length, *rest: table(length + 1, *rest)[1:],
    ),
    Fault(
        "sines first, then cosines",
        "sinusoidal_positions",
        jax_attn,
        "sinusoidal_positions",
        after(lambda table: jnp.concatenate([table[:, ::2], table[:, 1::2]], axis=-1)),
    ),
    # Recurrence
    Fault("gates i and f swapped", "LSTM", recurrent, "lstm_step", gates_swapped(0, 1, 4)),
    Fault("gates g and o swapped", "LSTM", recurrent, "lstm_step", gates_swapped(2, 3, 4)),
    Fault("gates r and z swapped", "GRU", recurrent, "gru_step", gates_swapped(0, 1, 3)),
    Fault("one bias dropped", "LSTM", recurrent, "lstm_step", bias_dropped),
    Fault("the forget gate's bias one higher", "LSTM", recurrent, "lstm_step", forget_gate_open),
    Fault("the cell without its tanh", "LSTM", recurrent, "lstm_step", cell_without_tanh),
    Fault("reset before the product", "GRU", recurrent, "gru_step", reset_before),
    Fault("the hidden bias outside the reset", "GRU", recurrent, "gru_step", bias_outside_reset),
    Fault("the update gate turned round", "GRU", recurrent, "gru_step", update_turned_round),
    Fault("run through the padding", "GRU", recurrent, "unroll", through_padding, variant="two layers, ragged"),
    Fault("gradient through one step alone", "GRU", recurrent, "unroll", truncated),
    Fault(
        "the weights' gradients without the first step",
        "LSTM",
        scan,
        "dot_general",
        first_step_forgotten,
        variant="two layers, both directions, ragged, initial state",
    ),
    Fault("no gradient for the weights of the loop", "GRU", scan, "_shifted", lambda _: lambda y, shift: y),
    Fault("both directions forward", "Seq2SeqEncoder", recurrent, "unroll", backward_as_forward),
    Fault(
        "padding reversed with the rest",
        "reverse_sequence",
        jax_attn,
        "reverse_sequence",
        lambda reverse: lambda inputs, valid_lens=None: reverse(inputs),
    ),
    Fault(
        "no dropout between layers",
        "LSTM",
        recurrent,
        "drop",
        lambda _: lambda x, rate, keep: x,
        variant="two layers, both directions, ragged, dropout",
    ),
    # Models
    Fault(
        "the bottom layer asks",
        "Seq2SeqAttentionDecoder",
        rnn_decoder,
        "_top",
        lambda _: lambda state: jax.tree.leaves(state.rnn[0])[0],
    ),
    Fault(
        "context and embedding exchanged",
        "Seq2SeqAttentionDecoder",
        rnn_decoder.Seq2SeqAttentionDecoder,
        "_cells",
        context_and_embedding_exchanged,
    ),
    Fault(
        "the attentional vector without its tanh",
        "Seq2SeqAttentionDecoder",
        rnn_decoder.Seq2SeqAttentionDecoder,
        "_logits",
        lambda logits: lambda self, x: logits(self, jnp.arctanh(x) if self.query == "new" else x),
        variant="Luong: lstm, dot, new, fed",
    ),
    Fault(
        "a beam asks its neighbour's memory",
        "Seq2SeqAttentionDecoder",
        rnn_decoder.Seq2SeqAttentionDecoder,
        "_attend",
        lambda attend: lambda self, queries, *rest: attend(self, jnp.roll(queries, 1, axis=0), *rest),
    ),
    # Loss
    Fault("labels shifted", "masked_cross_entropy", jax_attn, "masked_cross_entropy", labels_shifted),
    Fault("one label more than the length", "masked_cross_entropy", losses, "length_mask", one_more),
    Fault("the mean counts the padding", "masked_cross_entropy", jax_attn, "masked_cross_entropy", mean_over_padding),
    Fault(
        "smoothing spread over the others",
        "masked_cross_entropy",
        jax_attn,
        "masked_cross_entropy",
        smoothing_among_the_others,
        variant="smoothed",
    ),
    Fault("weights forgotten in the gradient", "projected_cross_entropy", projected_loss, "_losses", weights_forgotten),
    # Search
    Fault(
        "length penalty forgotten",
        "beam_search",
        jax_attn,
        "beam_search",
        penalty_forgotten,
        variant="a table, {'beam_size': 4, 'length_penalty': 0.75}",
    ),
    Fault(
        "padding has to be covered too",
        "beam_search",
        beam,
        "make_penalties",
        with_options(source_lens=None),
        variant="coverage of ragged sources, and everything else",
    ),
    Fault("a beam's weights from the wrong place", "beam_search", beam, "_read_back", weights_of_the_neighbour),
    Fault(
        "one token short of the least length",
        "greedy_search",
        constraints,
        "forbid_end",
        last_one(lambda n: n - 1),
        variant="NaN where it is forbidden",
    ),
    Fault(
        "repeats of one token more",
        "greedy_search",
        constraints,
        "forbid_repeats",
        last_one(lambda n: n + 1),
        variant="no 2 tokens twice of a babble",
    ),
    Fault("hot where it should be cold", "sample_search", jax_attn, "sample_search", inverse_temperature),
    Fault("the last token's score forgotten", "greedy_search", jax_attn, "greedy_search", after(last_token_forgotten)),
)
