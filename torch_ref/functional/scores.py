"""How well a query matches a key: one short function for each score.

Queries [*batch, Q, D] and keys [*batch, K, D] give scores [*batch, Q, K]. All are computed in float32 or wider and
returned in the inputs' dtype. Leading axes must be equal.

Source: d2l.ai, "Attention Scoring Functions" and "Attention Pooling by Similarity"; Bahdanau et al. 2015 (additive);
Luong et al. 2015 (dot, bilinear = "general"); Vaswani et al. 2017 (scaled dot).
"""

import math

import torch
from torch import Tensor

from torch_ref.functional.checks import check_floating, check_min_rank, check_shape
from torch_ref.functional.precision import common_dtype, widen


def dot_score(queries: Tensor, keys: Tensor) -> Tensor:
    """score = q . k

    Errors: TypeError for dtypes that are not floating; ValueError such as `keys must be [2, K, 20]; got [2, 10, 2]`.
    """
    _check_pair(queries, keys)
    dtype = common_dtype(queries, keys)
    queries, keys = widen(queries, keys)
    return (queries @ keys.transpose(-2, -1)).to(dtype)


def scaled_dot_score(queries: Tensor, keys: Tensor) -> Tensor:
    """score = q . k / sqrt(D), which keeps the variance of the scores near 1."""
    _check_pair(queries, keys)
    dtype = common_dtype(queries, keys)
    queries, keys = widen(queries, keys)
    return (queries @ keys.transpose(-2, -1) / math.sqrt(queries.shape[-1])).to(dtype)


def bilinear_score(queries: Tensor, keys: Tensor, weight: Tensor) -> Tensor:
    """score = q W k, for queries and keys of different length.

    Shapes: queries [*batch, Q, Dq], keys [*batch, K, Dk], weight [Dq, Dk].
    """
    _check_pair(queries, keys, same_features=False)
    check_floating("weight", weight)
    check_shape("weight", weight, (queries.shape[-1], keys.shape[-1]))
    dtype = common_dtype(queries, keys, weight)
    queries, keys, weight = widen(queries, keys, weight)
    return (queries @ weight @ keys.transpose(-2, -1)).to(dtype)


def additive_score(queries: Tensor, keys: Tensor, w_v: Tensor, *, use_tanh: bool = True) -> Tensor:
    """score = w_v . tanh(q + k), for queries and keys already projected to H features.

    Shapes: queries [*batch, Q, H], keys [*batch, K, H], w_v [H].
    use_tanh=False leaves the tanh out, as one edition of the book does. The query then adds the same number to all
    scores of its row and cancels in the softmax; kept for checkpoints trained that way.
    """
    _check_pair(queries, keys)
    check_floating("w_v", w_v)
    check_shape("w_v", w_v, (queries.shape[-1],))
    dtype = common_dtype(queries, keys, w_v)
    queries, keys, w_v = widen(queries, keys, w_v)
    features = queries.unsqueeze(-2) + keys.unsqueeze(-3)  # [*batch, Q, K, H]
    if use_tanh:
        features = torch.tanh(features)
    return (features @ w_v).to(dtype)


def gaussian_score(queries: Tensor, keys: Tensor, sigma: float | Tensor = 1.0) -> Tensor:
    """score = -|q - k|^2 / (2 sigma^2), the exponent of a Gaussian kernel."""
    _check_pair(queries, keys)
    if isinstance(sigma, float | int) and not sigma > 0:
        raise ValueError(f"sigma must be positive; got {sigma}")
    dtype = common_dtype(queries, keys)
    queries, keys = widen(queries, keys)
    difference = queries.unsqueeze(-2) - keys.unsqueeze(-3)  # [*batch, Q, K, D]
    return (-(difference**2).sum(-1) / (2 * sigma**2)).to(dtype)


def _check_pair(queries: Tensor, keys: Tensor, same_features: bool = True) -> None:
    check_floating("queries", queries)
    check_floating("keys", keys)
    check_min_rank("queries", queries, ["Q", "D"])
    *batch, _, features = queries.shape
    check_shape("keys", keys, (*batch, "K", features if same_features else "D"))
