"""Products of the rows of two matrices, with gradients in the one form that XLA multiplies fast on a CPU.

With S = Q Kᵀ, of a block's queries and keys, and G the gradient of S,

    dQ = G K        dK = Gᵀ Q = (Qᵀ G)ᵀ

and the two forms of dK are far apart: where Q and K are tall (1024 × 64), Gᵀ Q takes four times as long as S or dQ do,
Qᵀ G as long as they. XLA picks the slow one for an `einsum`, and would come back to it by folding the last transpose
into the product, but for a barrier between the two.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def transposed_product(
    wide: Float[Array, "*batch n wide"], narrow: Float[Array, "*batch n narrow"]
) -> Float[Array, "*batch wide narrow"]:
    """wideᵀ · narrow, as (narrowᵀ · wide)ᵀ"""
    product = jnp.einsum("...nb,...na->...ba", narrow, wide)
    return jnp.swapaxes(jax.lax.optimization_barrier(product), -1, -2)


@jax.custom_vjp
def inner_products(
    queries: Float[Array, "*batch query feature"], keys: Float[Array, "*batch key feature"]
) -> Float[Array, "*batch query key"]:
    """S = Q Kᵀ, all of one dtype. There is no forward mode."""
    return jnp.einsum("...qd,...kd->...qk", queries, keys)


def _forward(queries: Array, keys: Array) -> tuple[Array, tuple[Array, Array]]:
    return inner_products(queries, keys), (queries, keys)


def _backward(residuals: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    queries, keys = residuals
    return gradient @ keys, transposed_product(gradient, queries)


inner_products.defvjp(_forward, _backward)


def scaled_inner_products(
    queries: Float[Array, "*batch query feature"], keys: Float[Array, "*batch key feature"]
) -> Float[Array, "*batch query key"]:
    """S = Q Kᵀ / √D. The queries are divided: they are fewer than the scores."""
    return inner_products(queries / math.sqrt(queries.shape[-1]), keys)
