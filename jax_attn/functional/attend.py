"""From scores to context: the masked softmax gives the weights, and the weights give the mean of the values.

Only `weigh` computes this. `attend`, `attention` and the modules (and so the decoder) check and prepare their arguments
and call it. `blockwise_attention` computes the same context by another algorithm.
"""

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Num

from jax_attn.functional.checks import (
    as_array,
    require_float,
    require_same_batch,
    require_same_length,
    shape_text,
    wide_dtype,
)
from jax_attn.functional.dropout import drop
from jax_attn.functional.masks import allow_all_where_empty, attention_mask, zero_unattended
from jax_attn.functional.scores import scaled_dot_score
from jax_attn.functional.softmax import EmptyRow, masked_softmax


def weigh(
    scores: Float[Array, "*batch query key"],
    values: Float[Array, "*batch key value"],
    allowed: Bool[Array, "*#batch #query #key"] | None,
    empty_row: EmptyRow,
    drop: Callable[[Array], Array] | None = None,
) -> tuple[Float[Array, "*batch query value"], Float[Array, "*batch query key"], Float[Array, "*batch query key"]]:
    """Compute context = drop(weights) · values with weights = masked_softmax(scores), in float32 or wider.

    Args:
        scores: `[*batch, Q, K]`.
        values: `[*batch, K, V]`, with zeros where no query attends, see `zero_unattended_values`.
        allowed: the mask, see `attention_mask`.
        empty_row: see `masked_softmax`.
        drop: dropout, or None.

    Returns:
        The context `[*batch, Q, V]`, the weights `[*batch, Q, K]` and `drop(weights)`.
    """
    wide = wide_dtype(scores, values)
    weights = masked_softmax(scores.astype(wide), mask=allowed, empty_row=empty_row)
    dropped = weights if drop is None else drop(weights)
    return jnp.einsum("...qk,...kv->...qv", dropped, values.astype(wide)), weights, dropped


def zero_unattended_values(
    values: Float[Array, "*batch key value"], allowed: Bool[Array, "*#batch #query #key"] | None, empty_row: EmptyRow
) -> Float[Array, "*batch key value"]:
    """Replace values by zeros where they have no weight. Under "uniform", a query with an empty row weighs all."""
    if allowed is not None and empty_row == "uniform":
        allowed = allow_all_where_empty(allowed)
    return zero_unattended(values, allowed)


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
    r"""Compute the mean of the values, weighted by the masked softmax of the scores.

    .. math:: \mathrm{context} = \mathrm{dropout}(\mathrm{softmax}(\mathrm{scores})) \, \mathrm{values}

    Args:
        scores: `[*batch, Q, K]`.
        values: `[*batch, K, V]`. A value that no query may attend to is not read, and may be NaN.
        valid_lens, mask, empty_row: see `masked_softmax`.
        dropout_rate, keep_mask: dropout on the weights, only if a keep-mask is given.

    Returns:
        The context `[*batch, Q, V]` and the weights `[*batch, Q, K]` before dropout. The weights have the scores'
        dtype. The context has the dtype to which scores and values are promoted.

    Raises:
        ValueError, TypeError: a shape, rank or dtype does not fit.
    """
    scores, values = as_array("scores", scores), as_array("values", values)
    require_float(scores=scores, values=values)
    if values.ndim != scores.ndim or values.shape[:-1] != scores.shape[:-2] + scores.shape[-1:]:
        raise ValueError(
            f"values must be {shape_text((*scores.shape[:-2], scores.shape[-1], 'V'))} for scores "
            f"{shape_text(scores.shape)}; got {shape_text(values.shape)}"
        )
    allowed = attention_mask(scores.shape, valid_lens, mask)
    values = zero_unattended_values(values, allowed, empty_row)
    dropped = partial(drop, rate=dropout_rate, keep_mask=keep_mask)
    context, weights, _ = weigh(scores, values, allowed, empty_row, dropped)
    return context.astype(jnp.result_type(scores, values)), weights.astype(scores.dtype)


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
    r"""Compute the attention of "Attention Is All You Need" (Vaswani et al., 2017).

    .. math:: \mathrm{softmax}(Q K^\top / \sqrt{D}) \, V

    Args:
        query, key, value: `[*batch, Q, D]`, `[*batch, K, D]`, `[*batch, K, V]`.
        mask: boolean, broadcastable to `[*batch, Q, K]`; True = may attend.
        dropout: applied to the weights, any function of an array.
        valid_lens, empty_row: see `masked_softmax`.

    Returns:
        The context `[*batch, Q, V]` and the weights `[*batch, Q, K]` after `dropout`. The weights have the dtype to
        which query and key are promoted. The context has the dtype to which all three are promoted.

    Raises:
        ValueError, TypeError: a shape, rank or dtype does not fit.
    """
    query, key, value = as_array("query", query), as_array("key", key), as_array("value", value)
    require_float(query=query, key=key, value=value)
    require_same_batch(query=query, key=key)
    require_same_length(key=key, value=value)
    allowed = attention_mask((*query.shape[:-1], key.shape[-2]), valid_lens, mask)
    wide = wide_dtype(query, key, value)
    scores = scaled_dot_score(query.astype(wide), zero_unattended(key, allowed).astype(wide))
    context, _, weights = weigh(scores, zero_unattended_values(value, allowed, empty_row), allowed, empty_row, dropout)
    return context.astype(jnp.result_type(query, key, value)), weights.astype(jnp.result_type(query, key))
