"""Dropout with an explicit keep-mask, so that two frameworks can share one.

Source: Srivastava et al. 2014, in the inverted form that both frameworks use.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def dropout(x: Tensor, rate: float, keep_mask: Tensor) -> Tensor:
    """x / (1 - rate) where keep_mask is True, 0 elsewhere.

    Shapes: keep_mask is boolean and has the shape of x, or 1 instead of a size: then the same entries are dropped
    along that axis (over time: Gal and Ghahramani 2016, variational dropout).
    """
    return torch.where(keep_mask, x / (1 - rate), 0)


def draw_keep_mask(shape: Sequence[int], rate: float, device: torch.device | None = None) -> Tensor:
    """Draw a mask that keeps each position with probability 1 - rate, from PyTorch's global generator."""
    return torch.rand(tuple(shape), device=device) >= rate


def drop(x: Tensor, rate: float, keep_mask: Tensor | None, training: bool = False) -> Tensor:
    """dropout(x) by the mask, or without one by a mask that is drawn in training."""
    if keep_mask is None and training and rate > 0:
        keep_mask = draw_keep_mask(x.shape, rate, x.device)
    return x if keep_mask is None else dropout(x, rate, keep_mask)


def draw_keep_masks(
    shapes: Sequence[Sequence[int]], rates: Sequence[float], device: torch.device | None = None
) -> list[Tensor | None]:
    """Draw a mask for each shape and rate, or None where the rate is 0."""
    pairs = zip(shapes, rates, strict=True)
    return [draw_keep_mask(shape, rate, device) if rate > 0 else None for shape, rate in pairs]
