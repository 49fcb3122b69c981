"""The loss of a sequence model, over the tokens that are there."""

from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Num

from jax_attn.functional.checks import require_float, require_integer, require_rank, require_shape, wide_dtype
from jax_attn.functional.masks import checked_mask, length_mask

Reduction = Literal["tokens", "sentences", "none"]


def masked_cross_entropy(
    logits: Float[Array, "*batch time vocab"],
    labels: Int[Array, "*batch time"],
    valid_lens: Num[Array, "*batch"] | None = None,
    mask: Bool[Array, "..."] | None = None,
    *,
    label_smoothing: float = 0.0,
    reduction: Reduction = "tokens",
) -> Float[Array, "..."]:
    """Cross entropy in nats of the labels that count.

        loss[t] = −(1 − ε) log p[label_t] − ε/N Σ_n log p[n],   p = softmax(logits[t])

    Args:
        logits: `[*batch, T, N]`.
        labels: `[*batch, T]` integers in [0, N) wherever they count; elsewhere anything, −100 included. A label that
            counts and is out of range gives NaN: under jit no error can be raised, and a wrong number must not pass.
        valid_lens: `[*batch]`, how many positions count.
        mask: boolean, broadcastable to `[*batch, T]`; True = counts. With both, both must allow.
        label_smoothing: ε, with the meaning of PyTorch's `cross_entropy`.
        reduction: "tokens": the sum over the number of tokens that count (0 when none does);
            "sentences": `[*batch]`, each sentence's sum over T, padding counted in: the book's `MaskedSoftmaxCELoss`;
            "none": `[*batch, T]`, 0 where masked.

    Returns:
        The loss, in float32 or wider. Masked positions reach neither value nor gradient, be they NaN.
    """
    if reduction not in get_args(Reduction):
        raise ValueError(f"reduction must be one of {get_args(Reduction)}; got {reduction!r}")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1]; got {label_smoothing}")
    require_float(logits=logits)
    require_integer(labels=labels)
    require_rank(2, "[*batch, T, N]", logits=logits)
    require_shape(logits.shape[:-1], labels=labels)
    counts = jnp.ones(labels.shape, bool)
    if valid_lens is not None:
        require_shape(labels.shape[:-1], valid_lens=jnp.asarray(valid_lens))
        counts &= length_mask(valid_lens, labels.shape[-1])
    if mask is not None:
        counts &= checked_mask(mask, labels.shape)

    logits = jnp.where(counts[..., None], logits, 0).astype(wide_dtype(logits))
    known = (labels >= 0) & (labels < logits.shape[-1])
    # A comparison instead of a gather: it fuses with the sums around it, and its gradient is no scatter.
    is_label = jnp.arange(logits.shape[-1]) == labels[..., None]
    highest = jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
    shifted = logits - highest
    log_total = jnp.log(jnp.exp(shifted).sum(axis=-1))
    losses = log_total - (1 - label_smoothing) * jnp.where(is_label, shifted, 0).sum(axis=-1)
    if label_smoothing:
        losses = losses - label_smoothing * shifted.mean(axis=-1)
    losses = jnp.where(counts, jnp.where(known, losses, jnp.nan), 0)
    if reduction == "none":
        return losses
    if reduction == "sentences":
        return losses.mean(axis=-1)
    return losses.sum() / jnp.maximum(counts.sum(), 1)
