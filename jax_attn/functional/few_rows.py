"""The product of few rows with a large weight, as a recurrent step of a large model has it.

XLA's library of products on a CPU packs its right operand first, whatever it is multiplied with. Of a weight of
1024 × 2048, 64 rows leave that unpaid: with the weight on the left, as (Wᵀ xᵀ)ᵀ, the same product takes a seventh less
time, its transposition counted in, and with 32 rows a fifth. That needs Wᵀ at hand for y = x W, and W for the gradient
dx = dy Wᵀ.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Float

MOST_ROWS = 64
SMALLEST_WEIGHT = 2**20
"""Elements. With more rows, or a weight that soon is packed, the usual form is the faster (measured on two cores)."""

few_rows_product_p = Primitive("few_rows_product")
"""x, W, Wᵀ -> x W"""


def is_worth_it(x: Any, weight: Any) -> bool:
    """Whether a product of these shapes, [B, K] and [K, N], gains by another form."""
    return x.shape[0] <= MOST_ROWS and weight.size >= SMALLEST_WEIGHT


def few_rows_product(
    x: Float[Array, "row feature"],
    weight: Float[Array, "feature out"],
    transposed: Float[Array, "out feature"],
) -> Float[Array, "row out"]:
    """x W, on a CPU with the weight on the left.

    Args:
        x: `[B, K]`.
        weight: W, `[K, N]`.
        transposed: Wᵀ from `transpose`, made once for many products.

    Returns:
        The product `[B, N]`, differentiable in both modes and as often as one likes.
    """
    return few_rows_product_p.bind(x, weight, transposed)


def transpose(weight: Float[Array, "feature out"]) -> Float[Array, "out feature"]:
    """Wᵀ as an array of its own: XLA must not take the transposition back into the product."""
    return jax.lax.optimization_barrier(weight.T)


def _plain(x: Array, weight: Array, transposed: Array | None = None) -> Array:
    return jax.lax.dot_general(x, weight, (((1,), (0,)), ((), ())))


def _weight_on_the_left(x: Array, weight: Array, transposed: Array) -> Array:
    product = jax.lax.dot_general(transposed, x, (((1,), (1,)), ((), ())))
    return jax.lax.optimization_barrier(product).T  # or XLA would turn it round again


def _jvp(primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[Array, Any]:
    """y' = x' W + x W'. What Wᵀ moves by says nothing new."""
    x, weight, transposed = primals
    of_x, of_weight, _ = tangents
    y = few_rows_product(x, weight, transposed)
    moved: Any = ad.Zero(jax.typeof(y).to_tangent_aval())
    if not isinstance(of_x, ad.Zero):
        moved = few_rows_product(of_x, weight, transposed)
    if not isinstance(of_weight, ad.Zero):
        moved = ad.add_tangents(moved, _plain(x, of_weight))
    return y, moved


def _transpose_rule(cotangent: Any, x: Any, weight: Array, transposed: Array) -> list[Any]:
    """dx = dy Wᵀ, the same with the roles of W and Wᵀ exchanged."""
    if isinstance(cotangent, ad.Zero):
        return [ad.Zero(x.aval), None, None]
    return [few_rows_product(cotangent, transposed, weight), None, None]


def _batch(operands: Sequence[Array], axes: Sequence[int | None]) -> tuple[Array, int]:
    return jax.vmap(_plain, axes)(*operands), 0


few_rows_product_p.def_impl(_plain)
few_rows_product_p.def_abstract_eval(lambda x, weight, _: ShapedArray((x.shape[0], weight.shape[1]), x.dtype))
ad.primitive_jvps[few_rows_product_p] = _jvp
ad.primitive_transposes[few_rows_product_p] = _transpose_rule
batching.primitive_batchers[few_rows_product_p] = _batch
mlir.register_lowering(few_rows_product_p, mlir.lower_fun(_plain, multiple_results=False))
mlir.register_lowering(few_rows_product_p, mlir.lower_fun(_weight_on_the_left, multiple_results=False), platform="cpu")
