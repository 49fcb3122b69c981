"""Pure functions of tensors, without parameters of their own."""

from torch_ref.functional import scores
from torch_ref.functional.attend import attend, attention
from torch_ref.functional.blockwise import blockwise_attention
from torch_ref.functional.dropout import dropout
from torch_ref.functional.losses import masked_cross_entropy, projected_cross_entropy
from torch_ref.functional.masks import attention_mask, causal_mask, length_mask, sequence_mask
from torch_ref.functional.positions import sinusoidal_positions
from torch_ref.functional.recurrence import gru_step, lstm_step, unroll
from torch_ref.functional.scores import *  # noqa: F403 (its __all__ says what)
from torch_ref.functional.softmax import masked_log_softmax, masked_softmax

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
