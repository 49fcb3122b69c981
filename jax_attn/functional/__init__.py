"""Pure functions of arrays: without Flax, and without parameters of their own."""

from jax_attn.functional.attend import attend, attention
from jax_attn.functional.blockwise import blockwise_attention
from jax_attn.functional.dropout import dropout
from jax_attn.functional.losses import masked_cross_entropy, projected_cross_entropy
from jax_attn.functional.masks import attention_mask, causal_mask, length_mask, sequence_mask
from jax_attn.functional.positions import sinusoidal_positions
from jax_attn.functional.recurrence import gru_step, lstm_step, reverse_sequence, unroll
from jax_attn.functional.scores import additive_score, bilinear_score, dot_score, gaussian_score, scaled_dot_score
from jax_attn.functional.softmax import masked_log_softmax, masked_softmax

__all__ = [
    "additive_score",
    "attend",
    "attention",
    "attention_mask",
    "bilinear_score",
    "blockwise_attention",
    "causal_mask",
    "dot_score",
    "dropout",
    "gaussian_score",
    "gru_step",
    "length_mask",
    "lstm_step",
    "masked_cross_entropy",
    "masked_log_softmax",
    "masked_softmax",
    "projected_cross_entropy",
    "reverse_sequence",
    "scaled_dot_score",
    "sequence_mask",
    "sinusoidal_positions",
    "unroll",
]
