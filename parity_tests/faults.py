"""Faults planted on purpose, one at a time, on the JAX side: a comparison that misses one of them proves nothing."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jax_attn
from jax_attn.functional import losses, masks, scores, softmax
from jax_attn.models import rnn_decoder
from jax_attn.modules import recurrent
from parity_tests.cases import CASES
from parity_tests.compare import compare_variant
from parity_tests.jax_side import forget_programs

attend = importlib.import_module("jax_attn.functional.attend")  # by name: the package shows its function


@dataclass(frozen=True)
class Fault:
    """`make(what was there)` in the place of `target.attribute`, and the case that has to notice."""

    name: str
    case: str
    target: Any
    attribute: str
    make: Callable[[Any], Any]

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(self.target, self.attribute, self.make(getattr(self.target, self.attribute)))


def inverted(attention_mask: Any) -> Any:
    def wrong(*arguments: Any) -> Any:
        mask = attention_mask(*arguments)
        return None if mask is None else ~mask

    return wrong


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


FAULTS = (
    Fault("mask polarity", "masked_softmax", softmax, "attention_mask", inverted),
    Fault("one key more than the length", "attend", masks, "length_mask", one_more),
    Fault("one label more than the length", "masked_cross_entropy", losses, "length_mask", one_more),
    Fault("scale forgotten", "attention", attend, "scaled_dot_score", lambda _: scores.dot_score),
    Fault("keys and queries exchanged", "attention", attend, "scaled_dot_score", exchanged),
    Fault("softmax over the queries", "attend", attend, "masked_softmax", over_queries),
    Fault("values not zeroed", "attend", attend, "zero_unattended", lambda _: lambda values, allowed: values),
    Fault("dropout not rescaled", "attend", attend, "dropout", lambda _: lambda x, rate, keep: jnp.where(keep, x, 0)),
    Fault("tanh left out", "AdditiveAttention", scores, "_sum_of_tanh", lambda f: lambda q, k, w, _: f(q, k, w, False)),
    Fault("gates i and f swapped", "LSTM", recurrent, "lstm_step", gates_swapped(0, 1, 4)),
    Fault("gates r and z swapped", "GRU", recurrent, "gru_step", gates_swapped(0, 1, 3)),
    Fault("one bias dropped", "LSTM", recurrent, "lstm_step", bias_dropped),
    Fault("reset before the product", "GRU", recurrent, "gru_step", reset_before),
    Fault("run through the padding", "GRU", recurrent, "unroll", through_padding),
    Fault("both directions forward", "Seq2SeqEncoder", recurrent, "unroll", backward_as_forward),
    Fault("labels shifted", "masked_cross_entropy", jax_attn, "masked_cross_entropy", labels_shifted),
    Fault("length penalty forgotten", "beam_search", jax_attn, "beam_search", penalty_forgotten),
    Fault(
        "the bottom layer asks",
        "Seq2SeqAttentionDecoder",
        rnn_decoder,
        "_top",
        lambda _: lambda state: jax.tree.leaves(state.rnn[0])[0],
    ),
)


def is_caught(fault: Fault) -> bool:
    """Whether the fault's case fails while the fault is there: one variant after the other, until one sees it."""
    case = next(case for case in CASES if case.name == fault.case)
    forget_programs()  # what was compiled before is without the fault
    try:
        with pytest.MonkeyPatch.context() as patch:
            fault.plant(patch)
            runs = (compare_variant(case, variant, "float64") for variant in case.variants)
            return any(measurement.failed for run in runs for measurement in run)
    finally:
        forget_programs()
