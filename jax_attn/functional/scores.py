"""Attention scoring functions: how well each key answers each query.

Each takes queries `[*batch, Q, D]` and keys `[*batch, K, D]` and returns scores `[*batch, Q, K]`, computed in float32
or wider and returned in the inputs' dtype, or in `dtype` if given (attention asks for the wide one, so that nothing is
rounded on the way to the softmax). All raise ValueError on shapes that do not fit and TypeError on dtypes that are not
floating. Parameters are arguments: the modules own them.

Source: https://d2l.ai/chapter_attention-mechanisms-and-transformers/attention-scoring-functions.html
"""

import math

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from jax_attn.functional.additive import sum_of_tanh
from jax_attn.functional.checks import (
    require_float,
    require_same_batch,
    require_same_features,
    require_shape,
    wide_dtype,
)

MANY = 16
"""From so many queries and keys on, additive scores are summed term by term. The few queries of a decoder's step are
faster by one product (measured on a CPU)."""


def dot_score(
    queries: Float[Array, "*batch query feature"],
    keys: Float[Array, "*batch key feature"],
    *,
    dtype: DTypeLike | None = None,
) -> Float[Array, "*batch query key"]:
    """a(q, k) = q · k"""
    return _inner_products(queries, keys).astype(dtype or jnp.result_type(queries, keys))


def scaled_dot_score(
    queries: Float[Array, "*batch query feature"],
    keys: Float[Array, "*batch key feature"],
    *,
    dtype: DTypeLike | None = None,
) -> Float[Array, "*batch query key"]:
    """a(q, k) = q · k / √D, whose variance stays that of the entries whatever D (Vaswani et al., 2017)"""
    scores = _inner_products(queries, keys) / math.sqrt(queries.shape[-1])
    return scores.astype(dtype or jnp.result_type(queries, keys))


def bilinear_score(
    queries: Float[Array, "*batch query query_feature"],
    keys: Float[Array, "*batch key key_feature"],
    weight: Float[Array, "query_feature key_feature"],
    *,
    dtype: DTypeLike | None = None,
) -> Float[Array, "*batch query key"]:
    """a(q, k) = qᵀ W k, for queries and keys of different length (Luong et al., 2015, "general")

    Args:
        weight: W, `[features of a query, features of a key]`.
    """
    require_float(queries=queries, keys=keys, weight=weight)
    require_same_batch(queries=queries, keys=keys)
    require_shape((queries.shape[-1], keys.shape[-1]), weight=weight)
    wide = wide_dtype(queries, keys, weight)
    return dot_score(
        queries, jnp.einsum("...kd,ed->...ke", keys.astype(wide), weight.astype(wide)),
        dtype=dtype or jnp.result_type(queries, keys, weight),
    )  # fmt: skip


def additive_score(
    queries: Float[Array, "*batch query hidden"],
    keys: Float[Array, "*batch key hidden"],
    w_v: Float[Array, "hidden"],
    *,
    use_tanh: bool = True,
    gpu_kernel: bool = False,
    dtype: DTypeLike | None = None,
) -> Float[Array, "*batch query key"]:
    """a(q, k) = w_vᵀ tanh(q + k), of projected queries q = W_q query and keys k = W_k key (Bahdanau et al., 2015)

    With 16 or more of both, no array of Q·K·H elements is made, see `tanh_sums`; there is then no forward mode (`jvp`).

    Args:
        w_v: `[H]`.
        use_tanh: False leaves the tanh out, for checkpoints that were trained so. The score is then a sum of one term
            of the query and one of the key, the query's cancels in the softmax, and every query gets the same weights.
        gpu_kernel: where it is summed term by term, do so by a kernel for NVIDIA GPUs, which is interpreted, and slow,
            on anything else. It is proved equal interpreted, and it compiles for CUDA, but it has not yet been run on a
            GPU; see `tanh_sums_gpu`. Without the tanh there is nothing to sum, and it is refused.
    """
    require_float(queries=queries, keys=keys, w_v=w_v)
    require_same_features(queries=queries, keys=keys)
    require_shape(queries.shape[-1:], w_v=w_v)
    if gpu_kernel and not use_tanh:
        raise ValueError("gpu_kernel sums tanh, and needs use_tanh=True; got use_tanh=False")
    wide = wide_dtype(queries, keys, w_v)
    scores = _sum_of_tanh(queries.astype(wide), keys.astype(wide), w_v.astype(wide), use_tanh, gpu_kernel)
    return scores.astype(dtype or jnp.result_type(queries, keys, w_v))


def _sum_of_tanh(queries: Array, keys: Array, w_v: Array, use_tanh: bool, gpu_kernel: bool) -> Array:
    """Σ_h w_v[h] tanh(q[h] + k[h]), in the form that suits the shape."""
    if not use_tanh:  # the sum falls apart
        return jnp.expand_dims(queries @ w_v, -1) + jnp.expand_dims(keys @ w_v, -2)
    if min(queries.shape[-2], keys.shape[-2]) >= MANY:
        return sum_of_tanh(queries, keys, w_v, gpu_kernel)
    return _product_with_tanh(queries, keys, w_v)


@jax.checkpoint
def _product_with_tanh(queries: Array, keys: Array, w_v: Array) -> Array:
    """One product of all `[*batch, Q, K, H]` terms with w_v; for the gradient they are computed again, not kept."""
    hidden = jnp.expand_dims(queries, -2) + jnp.expand_dims(keys, -3)  # [*batch, Q, K, H]
    return jnp.tanh(hidden) @ w_v


def gaussian_score(
    queries: Float[Array, "*batch query feature"],
    keys: Float[Array, "*batch key feature"],
    sigma: float = 1.0,
    *,
    dtype: DTypeLike | None = None,
) -> Float[Array, "*batch query key"]:
    """a(q, k) = −‖q − k‖² / (2 σ²), whose softmax is Nadaraya-Watson regression with a Gaussian kernel

    The differences are summed as they are: ‖q‖² − 2 q·k + ‖k‖² would lose the digits of close pairs.
    """
    require_float(queries=queries, keys=keys)
    require_same_features(queries=queries, keys=keys)
    if isinstance(sigma, float | int) and not sigma > 0:
        raise ValueError(f"sigma must be positive; got {sigma}")
    wide = wide_dtype(queries, keys)
    difference = jnp.expand_dims(queries.astype(wide), -2) - jnp.expand_dims(keys.astype(wide), -3)
    scores = -jnp.sum(difference**2, axis=-1) / (2 * sigma**2)
    return scores.astype(dtype or jnp.result_type(queries, keys))


def _inner_products(queries: Array, keys: Array) -> Array:
    require_float(queries=queries, keys=keys)
    require_same_features(queries=queries, keys=keys)
    wide = wide_dtype(queries, keys)
    return jnp.einsum("...qd,...kd->...qk", queries.astype(wide), keys.astype(wide))
