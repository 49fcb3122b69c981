"""Attention scoring functions: how well each key answers each query.

Each takes queries `[*batch, Q, D]` and keys `[*batch, K, D]` and returns scores `[*batch, Q, K]`. It computes them in
float32 or wider, and returns them in the inputs' dtype: attention gives it wide inputs, so that nothing is rounded on
the way to the softmax. All raise ValueError if shapes do not fit, and TypeError if a dtype
is not floating. Parameters are arguments; the modules own them.

Source: https://d2l.ai/chapter_attention-mechanisms-and-transformers/attention-scoring-functions.html
"""

import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jax_attn.functional.checks import (
    require_above_zero,
    require_float,
    require_same_batch,
    require_same_features,
    require_shape,
    shape_text,
    wide_dtype,
)
from jax_attn.functional.sum_of_tanh import sum_of_tanh

__all__ = ["additive_score", "bilinear_score", "cosine_score", "dot_score", "gaussian_score", "scaled_dot_score"]


MANY = 16
"""Additive scores are summed term by term if there are at least so many queries and keys. For fewer, as in a decoder's
step, one product is faster (measured on a CPU)."""


def dot_score(
    queries: Float[Array, "*batch query feature"],
    keys: Float[Array, "*batch key feature"],
) -> Float[Array, "*batch query key"]:
    r"""Score by the inner product.

    .. math:: a(q, k) = q^\top k
    """
    return _inner_products(queries, keys).astype(jnp.result_type(queries, keys))


def scaled_dot_score(
    queries: Float[Array, "*batch query feature"],
    keys: Float[Array, "*batch key feature"],
) -> Float[Array, "*batch query key"]:
    r"""Score by the inner product, scaled so that its variance does not grow with D (Vaswani et al., 2017).

    .. math:: a(q, k) = q^\top k / \sqrt{D}
    """
    scores = _inner_products(queries, keys)
    if queries.shape[-1] == 0:
        raise ValueError(f"queries must have at least 1 feature, to divide by √D; got {shape_text(queries.shape)}")
    scores = scores / math.sqrt(queries.shape[-1])
    return scores.astype(jnp.result_type(queries, keys))


def bilinear_score(
    queries: Float[Array, "*batch query query_feature"],
    keys: Float[Array, "*batch key key_feature"],
    weight: Float[Array, "query_feature key_feature"],
) -> Float[Array, "*batch query key"]:
    r"""Score queries and keys of different length by a matrix (Luong et al., 2015, "general").

    .. math:: a(q, k) = q^\top W k

    Args:
        weight: W, `[features of a query, features of a key]`.
    """
    require_float(queries=queries, keys=keys, weight=weight)
    require_same_batch(queries=queries, keys=keys)
    require_shape((queries.shape[-1], keys.shape[-1]), weight=weight)
    wide = wide_dtype(queries, keys, weight)
    keys_of_queries = jnp.einsum("...kd,ed->...ke", keys.astype(wide), weight.astype(wide))
    return _inner_products(queries, keys_of_queries).astype(jnp.result_type(queries, keys, weight))


def additive_score(
    queries: Float[Array, "*batch query hidden"],
    keys: Float[Array, "*batch key hidden"],
    w_v: Float[Array, "hidden"],
    *,
    use_tanh: bool = True,
) -> Float[Array, "*batch query key"]:
    r"""Score queries W_q query and keys W_k key, which are projected already (Bahdanau et al., 2015).

    .. math:: a(q, k) = w_v^\top \tanh(q + k)

    With 16 or more queries and keys, no array of Q·K·H elements is made (see `sum_of_tanh`), and there is no forward
    mode (`jvp`).

    Args:
        w_v: `[H]`.
        use_tanh: False leaves the tanh out, for checkpoints that were trained so. The score is then a term of the query
            plus a term of the key. The query's cancels in the softmax, and every query gets the same weights.
    """
    require_float(queries=queries, keys=keys, w_v=w_v)
    require_same_features(queries=queries, keys=keys)
    require_shape(queries.shape[-1:], w_v=w_v)
    dtype = jnp.result_type(queries, keys, w_v)
    wide = wide_dtype(queries, keys, w_v)
    queries, keys, w_v = queries.astype(wide), keys.astype(wide), w_v.astype(wide)
    if not use_tanh:
        scores = jnp.expand_dims(queries @ w_v, -1) + jnp.expand_dims(keys @ w_v, -2)
    elif min(queries.shape[-2], keys.shape[-2]) >= MANY:
        scores = sum_of_tanh(queries, keys, w_v)
    else:
        scores = _product_with_tanh(queries, keys, w_v)
    return scores.astype(dtype)


@jax.checkpoint
def _product_with_tanh(queries: Array, keys: Array, w_v: Array) -> Array:
    """Multiply all `[*batch, Q, K, H]` terms with w_v at once. The gradient computes them again."""
    hidden = jnp.expand_dims(queries, -2) + jnp.expand_dims(keys, -3)  # [*batch, Q, K, H]
    return jnp.tanh(hidden) @ w_v


def gaussian_score(
    queries: Float[Array, "*batch query feature"],
    keys: Float[Array, "*batch key feature"],
    sigma: float = 1.0,
) -> Float[Array, "*batch query key"]:
    r"""Score by the distance; the softmax of it is Nadaraya-Watson regression with a Gaussian kernel.

    .. math:: a(q, k) = -\|q - k\|^2 / (2 \sigma^2)

    The squared differences are summed one by one: ‖q‖² − 2 q·k + ‖k‖² would lose the digits of close pairs.
    """
    require_float(queries=queries, keys=keys)
    require_same_features(queries=queries, keys=keys)
    require_above_zero(sigma=sigma)
    wide = wide_dtype(queries, keys)
    difference = jnp.expand_dims(queries.astype(wide), -2) - jnp.expand_dims(keys.astype(wide), -3)
    scores = -jnp.sum(difference**2, axis=-1) / (2 * sigma**2)
    return scores.astype(jnp.result_type(queries, keys))


def cosine_score(
    queries: Float[Array, "*batch query feature"],
    keys: Float[Array, "*batch key feature"],
    temperature: float | Float[Array, ""] = 1.0,
) -> Float[Array, "*batch query key"]:
    r"""Score by the cosine of the angle, where a norm counts as at least 1e-8 (Graves et al., 2014).

    .. math:: a(q, k) = \frac{q^\top k}{\|q\| \, \|k\| \, \tau}

    Args:
        temperature: τ > 0, a number or an array without axes. The scores lie in [−1/τ, 1/τ].
    """
    require_float(queries=queries, keys=keys)
    require_shape((), temperature=jnp.asarray(temperature))
    require_above_zero(temperature=temperature)
    wide = wide_dtype(queries, keys)
    scores = _inner_products(_unit(queries.astype(wide)), _unit(keys.astype(wide))) / temperature
    return scores.astype(jnp.result_type(queries, keys))


def _unit(x: Array) -> Array:
    """Divide by the norm. The square root sees no 0, at which its gradient would be NaN."""
    return x / jnp.sqrt(jnp.maximum(jnp.square(x).sum(axis=-1, keepdims=True), 1e-16))


def _inner_products(queries: Array, keys: Array) -> Array:
    require_float(queries=queries, keys=keys)
    require_same_features(queries=queries, keys=keys)
    wide = wide_dtype(queries, keys)
    return jnp.einsum("...qd,...kd->...qk", queries.astype(wide), keys.astype(wide))
