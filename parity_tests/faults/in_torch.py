"""Mistakes planted on the PyTorch side: the reference is held by the comparison just as the port is."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import torch_ref
from parity_tests.faults.fault import Fault as AnyFault
from parity_tests.faults.fault import after, inverted, with_options
from torch_ref.functional import masks
from torch_ref.models import rnn_decoder, rnn_encoder
from torch_ref.modules import attention, embeddings, recurrent
from torch_ref.search import result as search_result

Fault = partial(AnyFault, side="PyTorch")


def module(name: str) -> Any:
    """A module of torch_ref.functional that shares its name with a function."""
    return __import__(f"torch_ref.functional.{name}", fromlist=[name])


def before(change: Callable[..., Any]) -> Callable[[Any], Any]:
    """A function whose first argument is changed."""

    def make(function: Any) -> Any:
        return lambda first, *arguments, **options: function(change(first), *arguments, **options)

    return make


def masked_to_zero(_: Any) -> Any:
    """A masked score of 0, which is a score like any other."""
    return lambda scores, allowed: torch.where(allowed, scores, 0)


def heads_in_turn(_: Any) -> Any:
    """Features dealt out to the heads in turn, not in blocks."""
    return lambda self, x: x.unflatten(-1, (-1, self.num_heads)).movedim(-1, -3)


def labels_shifted(loss: Any) -> Any:
    return lambda logits, labels, *rest, **options: loss(logits, labels.roll(1, -1), *rest, **options)


def features_in_reverse(call: Any) -> Any:
    """The two directions side by side in the other order."""

    def wrong(self: Any, *arguments: Any, **options: Any) -> Any:
        outputs, state = call(self, *arguments, **options)
        return outputs.flip(-1) if self.bidirectional else outputs, state

    return wrong


def lengths_ignored(packed: Any) -> Any:
    return lambda self, X, lens, initial: self._library(X, initial)


def other_features_ask(context: Any) -> Any:
    return lambda self, query, *rest: context(self, query.roll(1, -1), *rest)


def input_gate_open(step: Any) -> Any:
    def wrong(carry: Any, projected: Any, weight: Any, bias: Any = None) -> Any:
        i, f, g, o = projected.chunk(4, dim=-1)
        return step(carry, torch.cat([i + 100, f, g, o], dim=-1), weight, bias)

    return wrong


def bias_outside_reset(step: Any) -> Any:
    def wrong(carry: Any, projected: Any, weight: Any, bias: Any = None) -> Any:
        return step(carry, projected if bias is None else projected + bias, weight, None)

    return wrong


def end_not_seen(extended: Any) -> Any:
    """A finished hypothesis that counts as unfinished."""

    def wrong(self: Any, *arguments: Any) -> Any:
        return extended(self, *arguments[:-1], -1)

    return wrong


DECODER = rnn_decoder.Seq2SeqAttentionDecoder
LOSS = "masked_cross_entropy"

TORCH_FAULTS = (
    Fault("mask polarity", "masked_softmax", module("softmax"), "attention_mask", inverted),
    Fault("masked scores of 0", "masked_softmax", module("softmax"), "_fill", masked_to_zero),
    Fault("lengths one too short", "attend", masks, "length_mask", before(lambda lens: (lens - 1).clamp(min=0))),
    Fault(
        "keys not zeroed",
        "AdditiveAttention",
        attention,
        "zero_unattended",
        lambda _: lambda x, *rest: x,
        variant="NaN where nobody attends",
    ),
    Fault("scale forgotten", "DotProductAttention", attention, "scaled_dot_score", lambda _: torch_ref.dot_score),
    Fault("tanh left out", "AdditiveAttention", attention, "additive_score", with_options(use_tanh=False)),
    Fault(
        "no dropout on the weights",
        "attend",
        module("attend"),
        "keep_or_drop",
        lambda _: lambda x, *rest: x,
        variant="dropout",
    ),
    Fault("the weights detached", "attention", module("attend"), "masked_softmax", after(lambda x: x.detach())),
    Fault("heads dealt out in turn", "MultiHeadAttention", attention.MultiHeadAttention, "_split_heads", heads_in_turn),
    Fault("embeddings not scaled", "Embeddings", embeddings.math, "sqrt", lambda _: lambda x: 1.0),
    Fault("positions doubled", "PositionalEncoding", embeddings, "sinusoidal_positions", after(lambda x: 2 * x)),
    Fault("lengths ignored", "LSTM", recurrent.LSTM, "_packed", lengths_ignored, variant="two layers, ragged"),
    Fault("features in reverse", "Seq2SeqEncoder", rnn_encoder.CELLS["gru"], "forward", features_in_reverse),
    Fault("the input gate always open", "lstm_step", torch_ref, "lstm_step", input_gate_open),
    Fault("the hidden bias outside the reset", "gru_step", torch_ref, "gru_step", bias_outside_reset),
    Fault("other features ask", "Seq2SeqAttentionDecoder", DECODER, "_context", other_features_ask),
    Fault(
        "no tanh",
        "Seq2SeqAttentionDecoder",
        rnn_decoder.torch,
        "tanh",
        lambda _: lambda x: x,
        variant="Luong: lstm, dot, new, fed",
    ),
    Fault("labels shifted", LOSS, torch_ref, LOSS, labels_shifted),
    Fault("the smoothing forgotten", LOSS, torch_ref, LOSS, with_options(label_smoothing=0.0), variant="smoothed"),
    Fault(
        "length penalty forgotten",
        "beam_search",
        torch_ref,
        "beam_search",
        with_options(length_penalty=0.0),
        variant="a table, {'beam_size': 4, 'length_penalty': 0.75}",
    ),
    Fault("the end not seen", "greedy_search", search_result.Hypothesis, "extended", end_not_seen),
)
