"""How well a query matches a key: one short function for each score.

Queries [*batch, Q, D] and keys [*batch, K, D] give scores [*batch, Q, K]. All are computed in float32 or wider and
returned in the inputs' dtype.

Source: d2l.ai, "Attention Scoring Functions" and "Attention Pooling by Similarity"; Bahdanau et al. 2015 (additive);
Luong et al. 2015 (dot, bilinear = "general"); Vaswani et al. 2017 (scaled dot).
"""

import math

import torch
from torch import Tensor

from torch_ref.functional.precision import common_dtype, widen

__all__ = ["additive_score", "bilinear_score", "cosine_score", "dot_score", "gaussian_score", "scaled_dot_score"]


def dot_score(queries: Tensor, keys: Tensor) -> Tensor:
    """score = q . k"""
    dtype = common_dtype(queries, keys)
    queries, keys = widen(queries, keys)
    return (queries @ keys.mT).to(dtype)


def scaled_dot_score(queries: Tensor, keys: Tensor) -> Tensor:
    """score = q . k / sqrt(D), which keeps the variance of the scores near 1."""
    dtype = common_dtype(queries, keys)
    queries, keys = widen(queries, keys)
    return (queries @ keys.mT / math.sqrt(queries.shape[-1])).to(dtype)


def bilinear_score(queries: Tensor, keys: Tensor, weight: Tensor) -> Tensor:
    """score = q W k, for queries and keys of different length.

    Shapes: queries [*batch, Q, Dq], keys [*batch, K, Dk], weight [Dq, Dk].
    """
    dtype = common_dtype(queries, keys, weight)
    queries, keys, weight = widen(queries, keys, weight)
    return (queries @ weight @ keys.mT).to(dtype)


def additive_score(queries: Tensor, keys: Tensor, w_v: Tensor, *, use_tanh: bool = True) -> Tensor:
    """score = w_v . tanh(q + k), for queries and keys already projected to H features.

    Shapes: queries [*batch, Q, H], keys [*batch, K, H], w_v [H].
    use_tanh=False leaves the tanh out, as one edition of the book does. The query then adds the same number to all
    scores of its row and cancels in the softmax. Some checkpoints are trained that way.
    """
    dtype = common_dtype(queries, keys, w_v)
    queries, keys, w_v = widen(queries, keys, w_v)
    features = queries.unsqueeze(-2) + keys.unsqueeze(-3)  # [*batch, Q, K, H]
    if use_tanh:
        features = torch.tanh(features)
    return (features @ w_v).to(dtype)


def gaussian_score(queries: Tensor, keys: Tensor, sigma: float | Tensor = 1.0) -> Tensor:
    """score = -|q - k|^2 / (2 sigma^2), the exponent of a Gaussian kernel."""
    dtype = common_dtype(queries, keys)
    queries, keys = widen(queries, keys)
    difference = queries.unsqueeze(-2) - keys.unsqueeze(-3)  # [*batch, Q, K, D]
    return (-(difference**2).sum(-1) / (2 * sigma**2)).to(dtype)


def cosine_score(queries: Tensor, keys: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    """score = cos(q, k) / temperature, where a norm counts as at least 1e-8 (Graves et al. 2014)."""
    dtype = common_dtype(queries, keys)
    queries, keys = (torch.nn.functional.normalize(x, dim=-1, eps=1e-8) for x in widen(queries, keys))
    return (queries @ keys.mT / temperature).to(dtype)
