"""The best that plain PyTorch gives for the functions of attention; `F.scaled_dot_product_attention` is another."""

import torch
from torch import Tensor


def additive_score(queries: Tensor, keys: Tensor, w_v: Tensor) -> Tensor:
    """w_vᵀ tanh(q + k), written so that `torch.compile` makes one loop of it and never holds `[B, Q, K, H]`."""
    return (torch.tanh(queries.unsqueeze(-2) + keys.unsqueeze(-3)) * w_v).sum(-1)


def masked_softmax(scores: Tensor, valid_lens: Tensor) -> Tensor:
    """Softmax over the keys within the length; no row is empty."""
    within = torch.arange(scores.shape[-1], device=scores.device) < valid_lens[:, None, None]
    return scores.masked_fill(~within, -torch.inf).softmax(-1)
