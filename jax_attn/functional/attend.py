"""From scores to context: weights by masked softmax, and the values' weighted mean."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Num

from jax_attn.functional.checks import require_float, require_same_batch, require_same_length, shape_text, wide_dtype
from jax_attn.functional.dropout import dropout
from jax_attn.functional.masks import allow_all_where_empty, attention_mask, zero_unattended
from jax_attn.functional.scores import scaled_dot_score
from jax_attn.functional.softmax import EmptyRow, masked_softmax


def attend(
    scores: Float[Array, "*batch query key"],
    values: Float[Array, "*batch key value"],
    valid_lens: Num[Array, "..."] | None = None,
    mask: Bool[Array, "..."] | None = None,
    *,
    empty_row: EmptyRow = "zero",
    dropout_rate: float = 0.0,
    keep_mask: Bool[Array, "*batch query key"] | None = None,
) -> tuple[Float[Array, "*batch query value"], Float[Array, "*batch query key"]]:
    """context = dropout(masked_softmax(scores)) · values

    Args:
        scores: `[*batch, Q, K]`.
        values: `[*batch, K, V]`; what no query may attend to is not read, be it NaN.
        valid_lens, mask, empty_row: see `masked_softmax`.
        dropout_rate, keep_mask: dropout on the weights, only where a keep-mask is given.

    Returns:
        The context `[*batch, Q, V]` and the weights `[*batch, Q, K]` before dropout. The weights have the scores'
        dtype, the context that to which scores and values are promoted.
    """
    scores, values = jnp.asarray(scores), jnp.asarray(values)
    require_float(scores=scores, values=values)
    if values.ndim != scores.ndim or values.shape[:-1] != scores.shape[:-2] + scores.shape[-1:]:
        raise ValueError(
            f"values must be {shape_text((*scores.shape[:-2], scores.shape[-1], 'V'))} for scores "
            f"{shape_text(scores.shape)}; got {shape_text(values.shape)}"
        )
    allowed = attention_mask(scores.shape, valid_lens, mask)
    dtype = jnp.result_type(scores, values)
    wide = wide_dtype(scores, values)
    weights = masked_softmax(scores.astype(wide), mask=allowed, empty_row=empty_row)
    values = zero_unattended(values.astype(wide), attended(allowed, empty_row))
    context = weighted_mean(weights, values, dropout_rate, keep_mask)
    return context.astype(dtype), weights.astype(scores.dtype)


def attended(allowed: Bool[Array, "..."] | None, empty_row: EmptyRow) -> Bool[Array, "..."] | None:
    """The mask of what carries weight: under "uniform", an empty row weighs every value."""
    return allow_all_where_empty(allowed) if allowed is not None and empty_row == "uniform" else allowed


def weighted_mean(
    weights: Float[Array, "*batch query key"],
    values: Float[Array, "*batch key value"],
    dropout_rate: float = 0.0,
    keep_mask: Bool[Array, "*batch query key"] | None = None,
) -> Float[Array, "*batch query value"]:
    """Σ_k weights[q, k] · values[k], the weights dropped by the keep-mask if there is one."""
    if keep_mask is not None:
        weights = dropout(weights, dropout_rate, keep_mask)
    return jnp.einsum("...qk,...kv->...qv", weights, values)


def attention(
    query: Float[Array, "*batch query feature"],
    key: Float[Array, "*batch key feature"],
    value: Float[Array, "*batch key value"],
    mask: Bool[Array, "..."] | None = None,
    dropout: Callable[[Array], Array] | None = None,
    *,
    valid_lens: Num[Array, "..."] | None = None,
    empty_row: EmptyRow = "zero",
) -> tuple[Float[Array, "*batch query value"], Float[Array, "*batch query key"]]:
    """softmax(Q Kᵀ / √D) V, the scaled dot-product attention of "Attention Is All You Need" (Vaswani et al., 2017).

    Args:
        query, key, value: `[*batch, Q, D]`, `[*batch, K, D]`, `[*batch, K, V]`.
        mask: boolean, broadcastable to `[*batch, Q, K]`; True = may attend.
        dropout: applied to the weights: any function of an array.
        valid_lens, empty_row: see `masked_softmax`.

    Returns:
        The context `[*batch, Q, V]` and the weights `[*batch, Q, K]`, after `dropout`. The weights have the dtype to
        which query and key are promoted, the context that of all three.
    """
    query, key, value = jnp.asarray(query), jnp.asarray(key), jnp.asarray(value)
    require_float(query=query, key=key, value=value)
    require_same_batch(query=query, key=key)
    require_same_length(key=key, value=value)
    allowed = attention_mask((*query.shape[:-1], key.shape[-2]), valid_lens, mask)
    wide = wide_dtype(query, key, value)
    scores = scaled_dot_score(query, zero_unattended(key, allowed), dtype=wide)
    weights = masked_softmax(scores, mask=allowed, empty_row=empty_row)
    if dropout is not None:
        weights = dropout(weights)
    context = weighted_mean(weights, zero_unattended(value.astype(wide), attended(allowed, empty_row)))
    return context.astype(jnp.result_type(query, key, value)), weights.astype(jnp.result_type(query, key))
