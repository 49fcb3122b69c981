"""Mistakes planted in torch_ref: the comparison must notice a wrong reference as well as a wrong port."""

from functools import partial
from typing import Any

import torch

import torch_ref
from parity_tests.this_library.faults.fault import (
    Fault,
    after,
    around,
    bias_outside_reset,
    instead,
    inverted,
    labels_shifted,
    with_options,
)

_fault = partial(Fault, side="PyTorch")


def heads_in_turn(self: Any, x: Any) -> Any:
    """Deal features out to the heads in turn, not in blocks."""
    return x.unflatten(-1, (-1, self.num_heads)).movedim(-1, -3)


@around
def features_in_reverse(call: Any, self: Any, *arguments: Any, **options: Any) -> Any:
    """Put the two directions side by side in the other order."""
    outputs, state = call(self, *arguments, **options)
    return outputs.flip(-1) if self.bidirectional else outputs, state


@around
def input_gate_open(step: Any, carry: Any, projected: Any, *weights: Any) -> Any:
    i, f, g, o = projected.chunk(4, dim=-1)
    return step(carry, torch.cat([i + 100, f, g, o], dim=-1), *weights)


@around
def other_features_ask(context: Any, self: Any, query: Any, *rest: Any) -> Any:
    return context(self, query.roll(1, -1), *rest)


@around
def end_not_seen(extended: Any, self: Any, *arguments: Any) -> Any:
    """Count a finished hypothesis as unfinished."""
    return extended(self, *arguments[:-1], -1)


def run_unpacked(self: Any, X: Any, lens: Any, initial: Any) -> Any:
    return self._library(X, initial)


def zero_in_place(scores: Any, allowed: Any) -> Any:
    return torch.where(allowed, scores, 0)


unchanged = instead(lambda x, *rest: x)
shorter = around(lambda mask, lens, *rest: mask((lens - 1).clamp(min=0), *rest))
no_penalty, no_tanh = with_options(length_penalty=0.0), with_options(use_tanh=False)
detached, doubled = after(lambda x: x.detach()), after(lambda x: 2 * x)
ATTEND, ATTENTION, EMBEDDINGS = "functional.attend", "modules.attention", "modules.embeddings"
DECODER, HEADS, LOSS = "Seq2SeqAttentionDecoder", "MultiHeadAttention", "masked_cross_entropy"
RAGGED, NAN, LUONG = "ragged lengths", "NaN where nothing attends", "Luong: lstm, dot, new, fed"
PENALTY = "a table, {'beam_size': 4, 'length_penalty': 0.75}"

TORCH_FAULTS = (
    _fault("mask polarity", "masked_softmax", "functional.softmax:attention_mask", inverted, RAGGED),
    _fault("masked scores of 0", "masked_softmax", "functional.softmax:_fill", instead(zero_in_place), RAGGED),
    _fault("lengths one too short", "attend", "functional.masks:length_mask", shorter, RAGGED),
    _fault("keys not zeroed", "AdditiveAttention", f"{ATTENTION}:zero_unattended", unchanged, NAN),
    _fault(
        "scale forgotten",
        "DotProductAttention",
        f"{ATTENTION}:scaled_dot_score",
        instead(torch_ref.dot_score),
        "scaled_dot",
    ),
    _fault("tanh left out", "AdditiveAttention", f"{ATTENTION}:additive_score", no_tanh),
    _fault("no dropout on the weights", "attend", f"{ATTEND}:keep_or_drop", unchanged, "dropout"),
    _fault("the weights detached", "attention", f"{ATTEND}:masked_softmax", detached),
    _fault("heads dealt out in turn", HEADS, f"{ATTENTION}:{HEADS}._split_heads", instead(heads_in_turn)),
    _fault("embeddings not scaled", "Embeddings", f"{EMBEDDINGS}:math.sqrt", instead(lambda x: 1.0)),
    _fault("positions doubled", "PositionalEncoding", f"{EMBEDDINGS}:sinusoidal_positions", doubled),
    _fault("lengths ignored", "LSTM", "modules.recurrent:LSTM._packed", instead(run_unpacked), "two layers, ragged"),
    _fault("features in reverse", "Seq2SeqEncoder", "modules.recurrent:GRU.forward", features_in_reverse),
    _fault("the input gate always open", "lstm_step", ":lstm_step", input_gate_open),
    _fault("the hidden bias outside the reset", "gru_step", ":gru_step", bias_outside_reset),
    _fault("other features ask", DECODER, f"models.rnn_decoder:{DECODER}._context", other_features_ask),
    _fault("no tanh", DECODER, "models.rnn_decoder:torch.tanh", unchanged, LUONG),
    _fault("labels shifted", LOSS, f":{LOSS}", labels_shifted),
    _fault("the smoothing forgotten", LOSS, f":{LOSS}", with_options(label_smoothing=0.0), "smoothed"),
    _fault("length penalty forgotten", "beam_search", ":beam_search", no_penalty, PENALTY),
    _fault("the end not seen", "greedy_search", "search.result:Hypothesis.extended", end_not_seen),
)
