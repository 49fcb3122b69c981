"""Attention scoring functions and the attention seq2seq, in JAX and Flax.

    functional   pure functions of arrays
    modules      Flax Linen modules: parameters around those functions
    models       the recurrent encoder and decoder with attention
    weights      parameters between PyTorch's names and layouts and Flax's
    plots        heatmaps of attention

The axes of every shape in this library:

    B  batch                 D  features of a query or key     T  time
    Q  queries               V  features of a value            N  vocabulary
    K  keys, and values      H  hidden units                   beam  hypotheses of a sentence

`*batch` stands for any number of leading axes: functions compute on the last ones, so that `vmap` and a batch axis give
the same answer. Arrays are batch-first. Masks are boolean, True = may attend.
"""

from jax_attn.functional import (
    SearchResult,
    additive_score,
    attend,
    attention,
    attention_mask,
    beam_search,
    bilinear_score,
    causal_mask,
    dot_score,
    dropout,
    gaussian_score,
    greedy_search,
    gru_step,
    length_mask,
    lstm_step,
    masked_cross_entropy,
    masked_log_softmax,
    masked_softmax,
    reverse_sequence,
    scaled_dot_score,
    sequence_mask,
    sinusoidal_positions,
    unroll,
)
from jax_attn.models import (
    DecoderKeepMasks,
    DecoderMemory,
    DecoderState,
    EncoderDecoder,
    EncoderOutput,
    Seq2SeqAttentionDecoder,
    Seq2SeqEncoder,
)
from jax_attn.modules import (
    GRU,
    LSTM,
    AdditiveAttention,
    BilinearAttention,
    DotProductAttention,
    Embeddings,
    GaussianAttention,
    Memory,
    MLPAttention,
    MultiHeadAttention,
    PositionalEncoding,
)
from jax_attn.plots import show_alignments, show_heatmaps

__all__ = [
    "GRU",
    "LSTM",
    "AdditiveAttention",
    "BilinearAttention",
    "DecoderKeepMasks",
    "DecoderMemory",
    "DecoderState",
    "DotProductAttention",
    "Embeddings",
    "EncoderDecoder",
    "EncoderOutput",
    "GaussianAttention",
    "MLPAttention",
    "Memory",
    "MultiHeadAttention",
    "PositionalEncoding",
    "SearchResult",
    "Seq2SeqAttentionDecoder",
    "Seq2SeqEncoder",
    "additive_score",
    "attend",
    "attention",
    "attention_mask",
    "beam_search",
    "bilinear_score",
    "causal_mask",
    "dot_score",
    "dropout",
    "gaussian_score",
    "greedy_search",
    "gru_step",
    "length_mask",
    "lstm_step",
    "masked_cross_entropy",
    "masked_log_softmax",
    "masked_softmax",
    "reverse_sequence",
    "scaled_dot_score",
    "sequence_mask",
    "show_alignments",
    "show_heatmaps",
    "sinusoidal_positions",
    "unroll",
]
