"""Modules own parameters and call functional."""

from torch_ref.modules.attention import (
    AdditiveAttention,
    BilinearAttention,
    DotProductAttention,
    GaussianAttention,
    Memory,
    MLPAttention,
    MultiHeadAttention,
)
from torch_ref.modules.embeddings import Embeddings, PositionalEncoding
from torch_ref.modules.recurrent import GRU, LSTM

__all__ = [
    "GRU",
    "LSTM",
    "AdditiveAttention",
    "BilinearAttention",
    "DotProductAttention",
    "Embeddings",
    "GaussianAttention",
    "MLPAttention",
    "Memory",
    "MultiHeadAttention",
    "PositionalEncoding",
]
