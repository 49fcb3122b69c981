"""Flax Linen modules: they own the parameters; `jax_attn.functional` has the mathematics."""

from jax_attn.modules import attention
from jax_attn.modules.attention import *  # noqa: F403 (its __all__ says what)
from jax_attn.modules.embeddings import Embeddings, PositionalEncoding
from jax_attn.modules.feed_forward import FeedForward
from jax_attn.modules.recurrent import GRU, LSTM

__all__ = [
    *attention.__all__,
    "GRU",
    "LSTM",
    "Embeddings",
    "FeedForward",
    "PositionalEncoding",
]
