"""Boolean masks: True = may attend.

Source: d2l.ai, "Attention Scoring Functions" (the masked softmax operation); Vaswani et al. 2017, section 3.2.3 (the
causal mask).
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def length_mask(valid_lens: Tensor, size: int) -> Tensor:
    """mask[..., t] = t < valid_lens[...].

    Shapes: valid_lens [*lens], of an integer or a floating dtype -> bool [*lens, size].
    Example: lengths [1, 3] and size 4 -> [[T, F, F, F], [T, T, T, F]].
    """
    # Compare in int64 or float64: bfloat16 cannot tell 256 from 257, and int8 has no 300.
    lens = valid_lens.double() if valid_lens.is_floating_point() else valid_lens.long()
    return torch.arange(size, device=lens.device) < lens.unsqueeze(-1)


def causal_mask(num_queries: int, num_keys: int | None = None, *, device: torch.device | None = None) -> Tensor:
    """mask[i, j] = j <= i: query i may attend to keys 0..i.

    Shapes: bool [num_queries, num_keys]; num_keys defaults to num_queries.
    """
    num_keys = num_queries if num_keys is None else num_keys
    return torch.arange(num_keys, device=device) <= torch.arange(num_queries, device=device).unsqueeze(-1)


def attention_mask(shape: Sequence[int], valid_lens: Tensor | None = None, mask: Tensor | None = None) -> Tensor | None:
    """Make one mask for scores of `shape` = [..., Q, K]. If both arguments are given, both must allow.

    Shapes: valid_lens [...] (one length for all queries of an example) gives [..., 1, K]; valid_lens [..., Q] (one for
    each query) gives [..., Q, K]; the rank decides. mask: boolean, broadcastable to `shape`. Neither given: None.
    Errors: ValueError for lengths of another shape, which would broadcast to a wrong mask; TypeError for a mask that is
    not boolean.
    """
    shape = tuple(shape)
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean; got {mask.dtype}")
    if valid_lens is None:
        return mask
    if valid_lens.shape not in (shape[:-2], shape[:-1]):
        choices = f"{list(shape[:-2])} or {list(shape[:-1])}"
        raise ValueError(f"valid_lens must be {choices}; got {list(valid_lens.shape)}")
    allowed = length_mask(valid_lens, shape[-1])
    if valid_lens.ndim == len(shape) - 2:
        allowed = allowed.unsqueeze(-2)  # [..., 1, K]
    return allowed if mask is None else allowed & mask


def open_empty_rows(allowed: Tensor, empty_row: str) -> Tensor:
    """Allow all keys in every row that allows none, if empty_row="uniform"; change nothing if it is "zero"."""
    if empty_row not in ("zero", "uniform"):
        raise ValueError(f"empty_row must be zero or uniform; got {empty_row!r}")
    return allowed | ~allowed.any(-1, keepdim=True) if empty_row == "uniform" else allowed


def zero_unattended(x: Tensor, allowed: Tensor | None, empty_row: str = "zero") -> Tensor:
    """Zero the keys or values [*batch, K, D] that no query of their example may attend to.

    A weight of zero does not keep a NaN out, since 0 * NaN is NaN: in the context, and in the gradients of the weights
    and of the projections. Keys are always zeroed by the mask itself (empty_row="zero"), since the scores of an empty
    row are not used. Values follow the caller's empty_row, since a uniform row is the mean of all values.
    """
    if allowed is None:
        return x
    attended = torch.atleast_2d(open_empty_rows(allowed, empty_row)).any(-2)  # [..., K]
    return torch.where(attended.unsqueeze(-1), x, 0)


def sequence_mask(X: Tensor, valid_lens: Tensor, value: float = 0) -> Tensor:
    """Copy X and set the positions t >= valid_len to `value`.

    Shapes: X [*batch, T, *features], valid_lens [*batch] -> the shape and dtype of X.
    Example: [[1, 2, 3], [4, 5, 6]] with lengths [1, 2] -> [[1, 0, 0], [4, 5, 0]].
    """
    valid = length_mask(valid_lens, X.shape[valid_lens.ndim])
    valid = valid.reshape(valid.shape + (1,) * (X.ndim - valid.ndim))
    return X.masked_fill(~valid, value)
