"""From scores and values to context and weights.

Source: d2l.ai, "Attention Scoring Functions"; the Annotated Transformer (`attention`) after Vaswani et al. 2017.
"""

from collections.abc import Callable

from torch import Tensor

from torch_ref.functional.dropout import drop
from torch_ref.functional.masks import attention_mask, zero_unattended
from torch_ref.functional.precision import common_dtype, widen
from torch_ref.functional.scores import scaled_dot_score
from torch_ref.functional.softmax import masked_softmax


def attend(
    scores: Tensor,
    values: Tensor,
    valid_lens: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    empty_row: str = "zero",
    dropout_rate: float = 0.0,
    keep_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """weights = masked_softmax(scores); context = dropout(weights) @ values.

    Shapes: scores [*batch, Q, K], values [*batch, K, V], keep_mask [*batch, Q, K] (None: no dropout) ->
    context [*batch, Q, V], weights [*batch, Q, K] before dropout.
    A value that no query of its example may attend to reaches neither the context nor a gradient, NaN included.
    """
    dtype = common_dtype(scores, values)
    wide_scores, values = widen(scores, values)
    allowed = attention_mask(scores.shape, valid_lens, mask)
    weights = masked_softmax(wide_scores, mask=allowed, empty_row=empty_row)
    context = drop(weights, dropout_rate, keep_mask) @ zero_unattended(values, allowed, empty_row)
    return context.to(dtype), weights.to(scores.dtype)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
    *,
    valid_lens: Tensor | None = None,
    empty_row: str = "zero",
) -> tuple[Tensor, Tensor]:
    """softmax(Q K^T / sqrt(D)) V, with the signature of the Annotated Transformer.

    Shapes: query [*batch, Q, D], key [*batch, K, D], value [*batch, K, V], mask boolean and broadcastable to
    [*batch, Q, K] -> context [*batch, Q, V], weights [*batch, Q, K].
    `dropout` is any function of the weights; the weights returned are its result. The weights have the dtype to which
    query and key are promoted, the context that of all three.
    Example: a mask of zeros over four keys gives weights of 0.25 with empty_row="uniform", and of 0 by default.
    """
    dtype, weights_dtype = common_dtype(query, key, value), common_dtype(query, key)
    query, key, value = widen(query, key, value)
    allowed = attention_mask((*query.shape[:-1], key.shape[-2]), valid_lens, mask)
    scores = scaled_dot_score(query, zero_unattended(key, allowed))
    weights = masked_softmax(scores, mask=allowed, empty_row=empty_row)
    if dropout is not None:
        weights = dropout(weights)
    context = weights @ zero_unattended(value, allowed, empty_row)
    return context.to(dtype), weights.to(weights_dtype)
