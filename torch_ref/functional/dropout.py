"""Dropout with an explicit keep-mask, so that two frameworks can share one.

Source: Srivastava et al. 2014, in the inverted form that both frameworks use.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def dropout(x: Tensor, rate: float, keep_mask: Tensor) -> Tensor:
    """x / (1 - rate) where keep_mask is True, 0 elsewhere.

    Shapes: keep_mask is boolean and has the shape of x.
    """
    return torch.where(keep_mask, x / (1 - rate), 0)


def draw_keep_mask(shape: Sequence[int], rate: float, device: torch.device | None = None) -> Tensor:
    """Draw a mask that keeps each position with probability 1 - rate, from PyTorch's global generator."""
    return torch.rand(tuple(shape), device=device) >= rate
