"""Modules own parameters and call functional."""

from torch_ref.modules import attention
from torch_ref.modules.attention import *  # noqa: F403 (its __all__ says what)
from torch_ref.modules.embeddings import Embeddings, PositionalEncoding
from torch_ref.modules.feed_forward import FeedForward
from torch_ref.modules.recurrent import GRU, LSTM

__all__ = [
    *attention.__all__,
    "GRU",
    "LSTM",
    "Embeddings",
    "FeedForward",
    "PositionalEncoding",
]
