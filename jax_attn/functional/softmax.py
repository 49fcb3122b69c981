"""Softmax over the keys that a query may attend to, and its two meanings if there are none."""

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Num

from jax_attn.compiler import reduces_singly
from jax_attn.functional.checks import as_array, require_float, require_rank, wide_dtype
from jax_attn.functional.masks import allow_all_where_empty, attention_mask

EmptyRow = Literal["zero", "uniform"]


def require_empty_row(empty_row: str) -> None:
    """Raise ValueError unless `empty_row` is "zero" or "uniform"."""
    if empty_row not in get_args(EmptyRow):
        raise ValueError(f"empty_row must be one of {get_args(EmptyRow)}; got {empty_row!r}")


def masked_softmax(
    scores: Float[Array, "*batch query key"],
    valid_lens: Num[Array, "..."] | None = None,
    mask: Bool[Array, "..."] | None = None,
    *,
    empty_row: EmptyRow = "zero",
) -> Float[Array, "*batch query key"]:
    r"""Compute the softmax over the last axis among the allowed keys; the others get weight 0.

    .. math:: w_{qk} = \frac{\exp(s_{qk})}{\sum_{j \text{ allowed}} \exp(s_{qj})}

    Two examples with two queries and four keys, and their lengths:

        masked_softmax(zeros(2, 2, 4), [2, 3]) = [[[1/2, 1/2, 0, 0], [1/2, 1/2, 0, 0]],
                                                  [[1/3, 1/3, 1/3, 0], [1/3, 1/3, 1/3, 0]]]

    Args:
        scores: `[*batch, Q, K]`; never changed. A masked score may be NaN or infinite.
        valid_lens: `[*batch]` or `[*batch, Q]`, see `attention_mask`.
        mask: boolean, broadcastable to the scores; True = may attend.
        empty_row: the weights of a query that may attend to nothing. "zero" gives zeros, and so a zero context;
            "uniform" gives 1/K, as a large negative number instead of masked scores does (d2l.ai,
            `jax.nn.dot_product_attention`). No gradient flows to that row's scores either way.

    Returns:
        Weights in the scores' dtype, computed in float32 or wider.

    Raises:
        ValueError: a shape or rank does not fit, or `empty_row` is unknown.
        TypeError: the scores are not floating, or the mask is not boolean.

    Source: https://d2l.ai/chapter_attention-mechanisms-and-transformers/attention-scoring-functions.html
    """
    scores = as_array("scores", scores)
    exponents, total, *_ = _exponentials(scores, valid_lens, mask, empty_row)
    return (exponents / total).astype(scores.dtype)


def masked_log_softmax(
    scores: Float[Array, "*batch query key"],
    valid_lens: Num[Array, "..."] | None = None,
    mask: Bool[Array, "..."] | None = None,
    *,
    empty_row: EmptyRow = "zero",
) -> Float[Array, "*batch query key"]:
    r"""Compute the logarithm of `masked_softmax` in log space: a masked entry is −inf, with gradient 0.

    .. math:: \log w_{qk} = s_{qk} - \log \sum_{j \text{ allowed}} \exp(s_{qj})

    Arguments and errors are those of `masked_softmax`; an empty row is all −inf ("zero") or all −log K ("uniform").
    """
    scores = as_array("scores", scores)
    _, total, shifted, allowed = _exponentials(scores, valid_lens, mask, empty_row)
    return jnp.where(allowed, shifted - jnp.log(total), -jnp.inf).astype(scores.dtype)


def row_maximum(x: Float[Array, "*batch key"]) -> Float[Array, "*batch 1"]:
    """Return the maximum of each row, −inf if it is empty. Of a row with NaN it is NaN or any number of the row.

    On a CPU XLA loses NaN in the maximum of a large array (jaxlib 0.12.0.1, and 0.10.2 without its flag). What is
    computed from a row minus its maximum has NaN all the same, since the row has it.

    Where XLA would compare the numbers of a row one by one (`reduces_singly`), the halves of the rows are compared
    until one number is left. The halves of a row of odd length share a number.
    """
    while (size := x.shape[-1]) > 1 and reduces_singly():
        half = -(-size // 2)
        x = jnp.maximum(x[..., :half], x[..., size - half :])
    return x.max(axis=-1, keepdims=True, initial=-jnp.inf)


def _exponentials(scores: Any, valid_lens: Any, mask: Any, empty_row: EmptyRow) -> tuple[Array, Array, Array, Array]:
    """Return exp(shifted), its row sums, shifted = scores − row maximum (−inf where masked), and the mask.

    In a row without a finite score the maximum is the least finite number, since −inf − (−inf) would be NaN, and the
    sum is 1 and not 0; every other row has at least 1. With `where` instead of `maximum` a CPU takes half as long
    again. The sum has no `maximum`: compiled together with it, XLA for JAX 0.12 would lose a NaN.
    """
    require_empty_row(empty_row)
    require_float(scores=scores)
    require_rank(2, "[*batch, Q, K]", scores=scores)
    scores = jnp.asarray(scores, wide_dtype(scores))
    allowed = attention_mask(scores.shape, valid_lens, mask)
    if allowed is None:
        allowed = jnp.ones((), bool)
    elif empty_row == "uniform":
        scores = jnp.where(allowed.any(axis=-1, keepdims=True), scores, 0)
        allowed = allow_all_where_empty(allowed)
    scores = jnp.where(allowed, scores, -jnp.inf)
    highest = jnp.maximum(row_maximum(jax.lax.stop_gradient(scores)), jnp.finfo(scores.dtype).min)
    shifted = scores - highest
    exponents = jnp.exp(shifted)
    total = exponents.sum(axis=-1, keepdims=True)
    return exponents, total + (total == 0), shifted, allowed
