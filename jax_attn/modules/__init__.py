"""Flax Linen modules: they own the parameters; `jax_attn.functional` has the mathematics."""

from jax_attn.modules.attention import (
    AdditiveAttention,
    BilinearAttention,
    DotProductAttention,
    GaussianAttention,
    Memory,
    MLPAttention,
    MultiHeadAttention,
)
from jax_attn.modules.embeddings import Embeddings, PositionalEncoding
from jax_attn.modules.recurrent import GRU, LSTM

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
