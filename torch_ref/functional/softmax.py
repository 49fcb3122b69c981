"""Softmax over the keys a query may attend to, and what an empty row means.

Source: d2l.ai, "Attention Scoring Functions", masked_softmax; the empty row is settled here: weights of zero
(empty_row="zero", the default), or 1/K each (empty_row="uniform", what a large negative number gives in the book).
"""

import torch
from torch import Tensor

from torch_ref.functional.checks import check_choice, check_floating, check_min_rank
from torch_ref.functional.masks import EMPTY_ROWS, attention_mask, open_empty_rows
from torch_ref.functional.precision import widen


def masked_softmax(
    scores: Tensor, valid_lens: Tensor | None = None, mask: Tensor | None = None, *, empty_row: str = "zero"
) -> Tensor:
    """weights[q, k] = exp(scores[q, k]) / sum over allowed j of exp(scores[q, j]); 0 where k is not allowed.

    Shapes: scores [*batch, Q, K], valid_lens [*batch] or [*batch, Q], mask broadcastable to the scores ->
    [*batch, Q, K].
    Example: scores [0, 0, 9, 9] with length 2 -> [1/2, 1/2, 0, 0].
    A masked score, NaN included, reaches neither the weights nor a gradient. A row with nothing allowed is 0, or 1/K
    without gradient under empty_row="uniform".
    Errors: TypeError for scores that are not floating or a mask that is not boolean; ValueError for wrong shapes.
    """
    scores, dtype, allowed = _checked(scores, valid_lens, mask, empty_row)
    if allowed is None:
        return torch.softmax(scores, dim=-1).to(dtype)
    weights = torch.softmax(_fill(scores, allowed), dim=-1)
    return torch.where(open_empty_rows(allowed, empty_row), weights, 0).to(dtype)


def masked_log_softmax(
    scores: Tensor, valid_lens: Tensor | None = None, mask: Tensor | None = None, *, empty_row: str = "zero"
) -> Tensor:
    """log of masked_softmax: -inf, with gradient 0, where a key is not allowed.

    Shapes and errors as masked_softmax. An empty row is all -inf, or -log K under empty_row="uniform".
    """
    scores, dtype, allowed = _checked(scores, valid_lens, mask, empty_row)
    if allowed is None:
        return torch.log_softmax(scores, dim=-1).to(dtype)
    log_weights = torch.log_softmax(_fill(scores, allowed), dim=-1)
    return torch.where(open_empty_rows(allowed, empty_row), log_weights, -torch.inf).to(dtype)


def _checked(
    scores: Tensor, valid_lens: Tensor | None, mask: Tensor | None, empty_row: str
) -> tuple[Tensor, torch.dtype, Tensor | None]:
    """The scores widened, the dtype to return, the mask."""
    check_floating("scores", scores)
    check_min_rank("scores", scores, ["Q", "K"])
    check_choice("empty_row", empty_row, EMPTY_ROWS)
    allowed = attention_mask(scores.shape, valid_lens, mask)
    return *widen(scores), scores.dtype, allowed


def _fill(scores: Tensor, allowed: Tensor) -> Tensor:
    """-inf where masked; an empty row becomes all 0, since the softmax of nothing but -inf is NaN."""
    empty = ~allowed.any(-1, keepdim=True)
    return torch.where(allowed, scores, torch.where(empty, 0.0, -torch.inf).to(scores.dtype))
