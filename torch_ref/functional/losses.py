"""Cross entropy over the labels that count.

Source: d2l.ai, "Sequence-to-Sequence Learning", MaskedSoftmaxCELoss; Szegedy et al. 2016 (label smoothing).
"""

import torch
from torch import Tensor

from torch_ref.functional.checks import (
    check_bool,
    check_broadcastable,
    check_choice,
    check_floating,
    check_ids,
    check_integer,
    check_min_rank,
    check_shape,
    check_tensor,
)
from torch_ref.functional.masks import length_mask
from torch_ref.functional.precision import widen

REDUCTIONS = ("none", "sentences", "tokens")


def masked_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    valid_lens: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    label_smoothing: float = 0.0,
    reduction: str = "tokens",
) -> Tensor:
    """loss[t] = -(1 - e) log p[t, label[t]] - e mean over n of log p[t, n], with e = label_smoothing; 0 where masked.

    Shapes: logits [*batch, T, N], labels [*batch, T], valid_lens [*batch], mask boolean and broadcastable to
    [*batch, T] (both given: both must allow).
    reduction "none": [*batch, T]. "sentences": the mean over all T positions, masked ones counted as 0 -> [*batch], the
    book's MaskedSoftmaxCELoss. "tokens": the sum divided by the number of valid positions -> a scalar, 0 without any.
    A masked position reaches neither value nor gradient: its logits may be NaN and its label anything.
    Errors: TypeError for a wrong dtype; ValueError for a wrong shape, or a valid label outside 0..N-1.
    """
    check_floating("logits", logits)
    check_integer("labels", labels)
    check_min_rank("logits", logits, ["T", "N"])
    check_shape("labels", labels, logits.shape[:-1])
    check_choice("reduction", reduction, REDUCTIONS)
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing must be in [0, 1]; got {label_smoothing}")
    valid = _valid_positions(labels, valid_lens, mask)  # [*batch, T]
    labels = torch.where(valid, labels, 0).long()
    check_ids("labels", labels, logits.shape[-1])

    (wide_logits,) = widen(torch.where(valid.unsqueeze(-1), logits, 0))
    log_probs = torch.log_softmax(wide_logits, dim=-1)
    loss = -log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    if label_smoothing > 0:
        loss = (1 - label_smoothing) * loss - label_smoothing * log_probs.mean(-1)
    loss = torch.where(valid, loss, 0)
    if reduction == "sentences":
        loss = loss.mean(-1)
    elif reduction == "tokens":
        loss = loss.sum() / valid.sum().clamp(min=1)
    return loss  # in float32 or wider: a mean of many tokens is not worth rounding to half precision


def projected_cross_entropy(
    features: Tensor, kernel: Tensor, bias: Tensor, labels: Tensor, weights: Tensor, *, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Sum over t of weights[t] * loss[t], and each loss[t] without its gradient, where loss is the cross entropy of
    logits = features @ kernel + bias; the weight 0 masks its position.

    Shapes: features [*batch, T, H], kernel [H, N], bias [N], labels and weights [*batch, T] -> [], [*batch, T].
    Errors: TypeError for a wrong dtype; ValueError for a wrong shape, or a label outside 0..N-1 whose weight is not 0.
    """
    for name, tensor in {"features": features, "kernel": kernel, "bias": bias, "weights": weights}.items():
        check_floating(name, tensor)
    check_shape("kernel", kernel, (features.shape[-1], bias.shape[0]))
    check_shape("weights", weights, features.shape[:-1])
    counts = weights != 0
    logits = torch.where(counts.unsqueeze(-1), features, 0) @ kernel + bias
    loss = masked_cross_entropy(logits, labels, mask=counts, label_smoothing=label_smoothing, reduction="none")
    return (weights * loss).sum(), loss.detach()


def _valid_positions(labels: Tensor, valid_lens: Tensor | None, mask: Tensor | None) -> Tensor:
    valid = torch.ones_like(labels, dtype=torch.bool)
    if valid_lens is not None:
        check_tensor("valid_lens", valid_lens)
        check_shape("valid_lens", valid_lens, labels.shape[:-1])
        valid = valid & length_mask(valid_lens, labels.shape[-1])
    if mask is not None:
        check_bool("mask", mask)
        check_broadcastable("mask", mask, labels.shape)
        valid = valid & mask
    return valid
