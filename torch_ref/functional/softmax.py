"""Softmax over the keys that a query may attend to.

A query that may attend to nothing (an empty row) gets weights of zero with empty_row="zero", the default, or 1/K each
with empty_row="uniform", as the book's large negative number does.

Source: d2l.ai, "Attention Scoring Functions", masked_softmax.
"""

import torch
from torch import Tensor

from torch_ref.functional.masks import attention_mask, open_empty_rows
from torch_ref.functional.precision import widen


def masked_softmax(
    scores: Tensor, valid_lens: Tensor | None = None, mask: Tensor | None = None, *, empty_row: str = "zero"
) -> Tensor:
    """weights[q, k] = exp(scores[q, k]) / sum over allowed j of exp(scores[q, j]); 0 where k is not allowed.

    Shapes: scores [*batch, Q, K], valid_lens [*batch] or [*batch, Q], mask broadcastable to the scores ->
    [*batch, Q, K].
    Example: scores [0, 0, 9, 9] with length 2 -> [1/2, 1/2, 0, 0].
    A masked score, NaN included, reaches neither the weights nor a gradient. An empty row is 0, or 1/K without gradient
    with empty_row="uniform".
    """
    allowed = attention_mask(scores.shape, valid_lens, mask)
    (wide,) = widen(scores)
    if allowed is None:
        return torch.softmax(wide, dim=-1).to(scores.dtype)
    weights = torch.softmax(_fill(wide, allowed), dim=-1)
    return torch.where(open_empty_rows(allowed, empty_row), weights, 0).to(scores.dtype)


def masked_log_softmax(
    scores: Tensor, valid_lens: Tensor | None = None, mask: Tensor | None = None, *, empty_row: str = "zero"
) -> Tensor:
    """log of masked_softmax: -inf, with gradient 0, where a key is not allowed.

    Shapes as masked_softmax. An empty row is all -inf, or -log K with empty_row="uniform".
    """
    allowed = attention_mask(scores.shape, valid_lens, mask)
    (wide,) = widen(scores)
    if allowed is None:
        return torch.log_softmax(wide, dim=-1).to(scores.dtype)
    log_weights = torch.log_softmax(_fill(wide, allowed), dim=-1)
    return torch.where(open_empty_rows(allowed, empty_row), log_weights, -torch.inf).to(scores.dtype)


def _fill(scores: Tensor, allowed: Tensor) -> Tensor:
    """Put -inf where masked. An empty row becomes all 0, since the softmax of nothing but -inf is NaN."""
    empty = ~allowed.any(-1, keepdim=True)
    return torch.where(allowed, scores, torch.where(empty, 0.0, -torch.inf).to(scores.dtype))
