"""Cross entropy over the labels that count, and the clipping of its gradients.

Source: d2l.ai, "Sequence-to-Sequence Learning", MaskedSoftmaxCELoss; "Implementation of Recurrent Neural Networks",
grad_clipping; Szegedy et al. 2016 (label smoothing).
"""

from typing import Any

import torch
from torch import Tensor, nn

from torch_ref.functional.masks import length_mask
from torch_ref.functional.precision import widen


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
    The loss is float32 or wider. A masked position reaches neither value nor gradient: its logits may be NaN and its
    label any number.
    """
    valid = torch.ones_like(labels, dtype=torch.bool)  # [*batch, T]
    if valid_lens is not None:
        valid = valid & length_mask(valid_lens, labels.shape[-1])
    if mask is not None:
        valid = valid & mask
    labels = torch.where(valid, labels, 0).long()
    (wide_logits,) = widen(torch.where(valid.unsqueeze(-1), logits, 0))
    log_probs = torch.log_softmax(wide_logits, dim=-1)
    loss = -log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    if label_smoothing > 0:
        loss = (1 - label_smoothing) * loss - label_smoothing * log_probs.mean(-1)
    loss = torch.where(valid, loss, 0)
    if reduction == "none":
        return loss
    if reduction == "sentences":
        return loss.mean(-1)
    if reduction == "tokens":
        return loss.sum() / valid.sum().clamp(min=1)
    raise ValueError(f"reduction must be none, sentences or tokens; got {reduction!r}")


def projected_cross_entropy(
    features: Tensor, kernel: Tensor, bias: Tensor, labels: Tensor, weights: Tensor, *, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return sum over t of weights[t] * loss[t], and loss[t] without smoothing and without its gradient.

    loss is the cross entropy of logits = features @ kernel + bias. The weight 0 masks its position.
    Shapes: features [*batch, T, H], kernel [H, N], bias [N], labels and weights [*batch, T] -> [], [*batch, T].
    """
    is_counted = weights != 0
    logits = torch.where(is_counted.unsqueeze(-1), features, 0) @ kernel + bias
    nats = masked_cross_entropy(logits, labels, mask=is_counted, reduction="none")
    loss = masked_cross_entropy(logits, labels, mask=is_counted, label_smoothing=label_smoothing, reduction="none")
    return (weights * loss).sum(), nats.detach()


def sentence_losses(
    model: Any, source: Tensor, source_lens: Tensor, target: Tensor, target_lens: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the book's loss of each sentence [B], and its number of valid labels [B].

    target [B, T] has <bos> first and target_lens counts it: the decoder reads target[:, :-1] and the labels are
    target[:, 1:]. A row of length 0 is padding of the batch: it has no loss and no labels.
    """
    label_lens = (target_lens - 1).clamp(min=0)
    logits, _ = model(source, target[:, :-1], source_lens)
    return masked_cross_entropy(logits, target[:, 1:], label_lens, reduction="sentences"), label_lens


def clip_gradients(model: nn.Module, theta: float) -> Tensor:
    """g <- g * min(1, theta / |g|) over all gradients together, without an epsilon; returns |g|."""
    if not theta >= 0:
        raise ValueError(f"theta must be at least 0; got {theta}")
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.sqrt(sum((g**2).sum() for g in gradients))
    if norm > theta:
        for g in gradients:
            g.mul_(theta / norm)
    return norm
