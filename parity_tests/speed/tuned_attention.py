"""The best that plain PyTorch gives for the functions of attention, and torch_ref's for those that are no case."""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

import torch_ref


def additive_score(queries: Tensor, keys: Tensor, w_v: Tensor) -> Tensor:
    """w_vᵀ tanh(q + k), written so that `torch.compile` makes one loop of it and never holds `[B, Q, K, H]`."""
    return (torch.tanh(queries.unsqueeze(-2) + keys.unsqueeze(-3)) * w_v).sum(-1)


def additive_attention(queries: Tensor, keys: Tensor, values: Tensor, w_v: Tensor) -> Tensor:
    """The context of additive attention."""
    return torch.softmax(additive_score(queries, keys, w_v), dim=-1) @ values


def seed_additive_attention(queries: Tensor, keys: Tensor, values: Tensor, w_v: Tensor) -> Tensor:
    """The same by torch_ref."""
    return torch_ref.attend(torch_ref.additive_score(queries, keys, w_v), values)[0]


def dot_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The context of scaled dot-product attention, by PyTorch's own kernel."""
    return F.scaled_dot_product_attention(queries, keys, values)


def seed_dot_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The same by torch_ref."""
    return torch_ref.attend(torch_ref.scaled_dot_score(queries, keys), values)[0]


def masked_softmax(scores: Tensor, valid_lens: Tensor) -> Tensor:
    """Softmax over the keys within the length; no row is empty."""
    within = torch.arange(scores.shape[-1], device=scores.device) < valid_lens[:, None, None]
    return scores.masked_fill(~within, -torch.inf).softmax(-1)
