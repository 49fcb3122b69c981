"""Pure functions of arrays: without Flax, and without parameters of their own."""

from jax_attn.functional import scores
from jax_attn.functional.attend import attend, attention
from jax_attn.functional.blockwise import blockwise_attention
from jax_attn.functional.dropout import dropout
from jax_attn.functional.losses import masked_cross_entropy, projected_cross_entropy
from jax_attn.functional.masks import attention_mask, causal_mask, length_mask, sequence_mask
from jax_attn.functional.positions import sinusoidal_positions
from jax_attn.functional.recurrence import gru_step, lstm_step, unroll
from jax_attn.functional.scores import *  # noqa: F403 (its __all__ says what)
from jax_attn.functional.softmax import masked_log_softmax, masked_softmax

__all__ = [
    *scores.__all__,
    "attend",
    "attention",
    "attention_mask",
    "blockwise_attention",
    "causal_mask",
    "dropout",
    "gru_step",
    "length_mask",
    "lstm_step",
    "masked_cross_entropy",
    "masked_log_softmax",
    "masked_softmax",
    "projected_cross_entropy",
    "sequence_mask",
    "sinusoidal_positions",
    "unroll",
]
