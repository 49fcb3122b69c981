"""Boolean masks: True = may attend.

Source: d2l.ai, "Attention Scoring Functions" (the masked softmax operation); Vaswani et al. 2017, section 3.2.3 (the
causal mask).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_ref.functional.checks import (
    check_bool,
    check_broadcastable,
    check_choice,
    check_count,
    check_lengths,
    check_min_rank,
    check_tensor,
    shape_text,
)

EMPTY_ROWS = ("zero", "uniform")


def length_mask(valid_lens: Tensor, size: int) -> Tensor:
    """mask[..., t] = t < valid_lens[...].

    Shapes: valid_lens [*lens], of an integer or a floating dtype -> bool [*lens, size].
    Example: lengths [1, 3] and size 4 -> [[T, F, F, F], [T, T, T, F]].
    Errors: TypeError for boolean lengths; ValueError for a negative size and for a length outside [0, size].
    """
    check_count("size", size)
    check_lengths("valid_lens", valid_lens, size)
    # Compared as int64 or as float64: bfloat16 cannot tell 256 from 257, and int8 has no 300.
    lens = valid_lens.double() if valid_lens.is_floating_point() else valid_lens.long()
    return torch.arange(size, device=lens.device) < lens.unsqueeze(-1)


def causal_mask(num_queries: int, num_keys: int | None = None, *, device: torch.device | None = None) -> Tensor:
    """mask[i, j] = j <= i: query i may attend to keys 0..i.

    Shapes: bool [num_queries, num_keys]; num_keys defaults to num_queries.
    """
    check_count("num_queries", num_queries)
    num_keys = num_queries if num_keys is None else num_keys
    check_count("num_keys", num_keys)
    return torch.arange(num_keys, device=device) <= torch.arange(num_queries, device=device).unsqueeze(-1)


def attention_mask(shape: Sequence[int], valid_lens: Tensor | None = None, mask: Tensor | None = None) -> Tensor | None:
    """The one mask for scores of `shape` = [..., Q, K]; both arguments given: both must allow.

    Shapes: valid_lens [...] (one length for all queries of an example) gives [..., 1, K]; valid_lens [..., Q] (one for
    each query) gives [..., Q, K]; rank decides which. mask: boolean, broadcastable to `shape`. Neither given: None.
    Errors: ValueError such as `valid_lens must be [2] or [2, 3]; got [3]`; TypeError for a wrong dtype.
    """
    shape = tuple(shape)
    if len(shape) < 2:
        raise ValueError(f"scores must be [..., Q, K]; got {shape_text(shape)}")
    if mask is not None:
        check_bool("mask", mask)
        check_broadcastable("mask", mask, shape)
    if valid_lens is None:
        return mask
    check_lengths("valid_lens", valid_lens)
    if valid_lens.shape not in (shape[:-2], shape[:-1]):
        choices = f"{shape_text(shape[:-2])} or {shape_text(shape[:-1])}"
        raise ValueError(f"valid_lens must be {choices}; got {shape_text(valid_lens.shape)}")
    allowed = length_mask(valid_lens, shape[-1])
    if valid_lens.ndim == len(shape) - 2:
        allowed = allowed.unsqueeze(-2)  # [..., 1, K]
    return allowed if mask is None else allowed & mask


def open_empty_rows(allowed: Tensor, empty_row: str) -> Tensor:
    """The keys each query draws from: with empty_row="uniform" an empty row draws from all of them."""
    check_choice("empty_row", empty_row, EMPTY_ROWS)
    return allowed | ~allowed.any(-1, keepdim=True) if empty_row == "uniform" else allowed


def zero_unattended(x: Tensor, allowed: Tensor | None, empty_row: str = "zero") -> Tensor:
    """Keys or values [*batch, K, D], zeroed where no query of their example may attend to them.

    A weight of zero is not enough to keep a NaN out, since 0 * NaN is NaN: in the context, and in the gradients of the
    weights and of the projections. Keys are always zeroed by the mask itself (empty_row="zero"), as an empty row's
    scores are not used; values follow the module's empty_row, as a uniform row is the mean of all of them.
    """
    if allowed is None:
        return x
    attended = torch.atleast_2d(open_empty_rows(allowed, empty_row)).any(-2)  # [..., K]
    return torch.where(attended.unsqueeze(-1), x, 0)


def sequence_mask(X: Tensor, valid_lens: Tensor, value: float = 0) -> Tensor:
    """X with the positions t >= valid_len set to `value`; X itself is left as it is.

    Shapes: X [*batch, T, *features], valid_lens [*batch] -> the shape and dtype of X.
    Example: [[1, 2, 3], [4, 5, 6]] with lengths [1, 2] -> [[1, 0, 0], [4, 5, 0]].
    """
    check_tensor("X", X)
    check_lengths("valid_lens", valid_lens)
    check_min_rank("X", X, ["T"])
    rank = valid_lens.ndim
    if rank >= X.ndim or valid_lens.shape != X.shape[:rank]:
        expected = shape_text(X.shape[: min(rank, X.ndim - 1)])
        raise ValueError(
            f"valid_lens must be {expected} for X {shape_text(X.shape)}; got {shape_text(valid_lens.shape)}"
        )
    valid = length_mask(valid_lens, X.shape[rank])
    valid = valid.reshape(valid.shape + (1,) * (X.ndim - valid.ndim))
    return X.masked_fill(~valid, value)
