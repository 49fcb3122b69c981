"""Σ_h w_h tanh(q_h + k_h) for every query and key, in the memory of the scores and at a few operations a term.

The plain form writes out `[*batch, Q, K, H]` terms, H times as many as there are scores. Here the terms are added one
after the other to the whole result, as in a product of matrices, and the gradient computes them again.

The tanh is most of the work, and is avoided: with x = e^{2q} and y = e^{2k}, of which there are only Q·H and K·H,

    tanh(q + k) = 1 − 2 / (1 + x y)

and two terms share one division: c₁/d₁ + c₂/d₂ = (c₁ d₂ + c₂ d₁) / (d₁ d₂). The error is a few roundings of Σ_h |w_h|,
as with a tanh. Two cases are found at run time, and summed over tanh itself: some |q| or |k| above 43 (float32; 353 in
float64), where an exponential could overflow, and all of them so small that 1 − 2 / (1 + x y) would lose their digits.

The sums are written for XLA here, and as a kernel for a GPU in `tanh_sums_gpu`, which is used where it is asked for.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

CHAIN = 16
"""Terms added by one loop of the compiled code, so that the result is read and written once for all of them."""


class Term(NamedTuple):
    """c · f(q + k), with x of q and y of k as the arithmetic wants them; the three broadcast to the result's shape."""

    x: Array
    y: Array
    c: Array


class Arithmetic(NamedTuple):
    """How two terms at a time are added up: of c · tanh (`values`) and of c · tanh′ = c · (1 − tanh²) (`slopes`)."""

    prepare: Callable[[Array], Array]
    """q to x, and k to y."""
    values: Callable[[Term, Term], Array]
    slopes: Callable[[Term, Term], Array]


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def sum_of_tanh(
    queries: Float[Array, "*batch query hidden"],
    keys: Float[Array, "*batch key hidden"],
    w_v: Float[Array, "hidden"],
    gpu_kernel: bool = False,
) -> Float[Array, "*batch query key"]:
    """s[q, k] = Σ_h w_v[h] tanh(queries[q, h] + keys[k, h])

    All three have one dtype, float32 or wider. With g the gradient of s, tanh and tanh′ at queries[q, h] + keys[k, h],

        dqueries[q, h] = w_v[h] Σ_k g[q, k] tanh′       dw_v[h] = Σ_q Σ_k g[q, k] tanh
        dkeys[k, h]    = w_v[h] Σ_q g[q, k] tanh′

    which are three more sums of the same kind. There is no forward mode. Differentiated a second time in reverse it is
    right as well, but keeps the terms.

    Args:
        gpu_kernel: take the sums by the kernel of `tanh_sums_gpu`, which is refused a second derivative.
    """
    sum_terms = _summation(gpu_kernel)

    def scores(by: Arithmetic) -> Array:
        y = jnp.swapaxes(by.prepare(keys), -1, -2)  # [*batch, H, K]
        return sum_terms(by.values, rows={"x": by.prepare(queries), "c": w_v[None]}, columns={"y": y})

    return _by_range(queries, keys, scores)


def _forward(queries: Array, keys: Array, w_v: Array, gpu_kernel: bool) -> tuple[Array, tuple[Array, Array, Array]]:
    return sum_of_tanh(queries, keys, w_v, gpu_kernel), (queries, keys, w_v)


def _backward(gpu_kernel: bool, residuals: tuple[Array, Array, Array], gradient: Array) -> tuple[Array, Array, Array]:
    queries, keys, w_v = residuals
    sum_terms = _summation(gpu_kernel)

    def gradients(by: Arithmetic) -> tuple[Array, Array, Array]:
        of_queries, of_keys = by.prepare(queries), by.prepare(keys)
        by_query, by_key = {"c": gradient}, {"c": jnp.swapaxes(gradient, -1, -2)}  # [*batch, Q, K], [*batch, K, Q]
        to_queries = sum_terms(by.slopes, rows=by_query, columns={"y": of_keys}, x=of_queries)
        to_keys = sum_terms(by.slopes, rows=by_key, columns={"y": of_queries}, x=of_keys)
        to_w_v = sum_terms(by.values, rows=by_query, columns={"y": of_keys}, x=of_queries)  # still [*batch, Q, H]
        return w_v * to_queries, w_v * to_keys, to_w_v.reshape(-1, w_v.shape[0]).sum(axis=0)

    return _by_range(queries, keys, gradients)


sum_of_tanh.defvjp(_forward, _backward)


def _summation(gpu_kernel: bool) -> Callable[..., Array]:
    """How the terms are added: `_sum_terms`, or the kernel, imported with Pallas no sooner than it is asked for."""
    if not gpu_kernel:
        return _sum_terms
    from jax_attn.functional.tanh_sums_gpu import sum_terms

    return sum_terms


def _sum_terms(
    add: Callable[[Term, Term], Array], rows: dict[str, Array], columns: dict[str, Array], **same: Array
) -> Array:
    """r[i, j] = Σ_n term n, whose parts come from rows[i, n], from columns[n, j] or are the same in every term.

    One loop of the compiled code adds `CHAIN` terms, n fastest in memory: as many streams a power of two apart would
    evict one another from the cache (half the speed). XLA made slower code of chains of 8 and 32, on a CPU.
    """
    chains = (
        {name: jnp.moveaxis(_in_chains(array, -1), -2, 0) for name, array in rows.items()},
        {name: jnp.moveaxis(_in_chains(array, -2), -3, 0) for name, array in columns.items()},
    )

    def add_chain(total: Array, chain: tuple[dict[str, Array], dict[str, Array]]) -> tuple[Array, None]:
        def term(n: int) -> Term:
            row = {name: array[..., n, None] for name, array in chain[0].items()}
            column = {name: array[..., None, n, :] for name, array in chain[1].items()}
            return Term(**row, **column, **same)

        for n in range(0, CHAIN, 2):
            total = total + add(term(n), term(n + 1))
        return total, None

    (row, *_), (column, *_) = rows.values(), columns.values()
    total = jnp.zeros((*row.shape[:-1], column.shape[-1]), row.dtype)
    return jax.lax.scan(add_chain, total, chains)[0]


def _in_chains(array: Array, axis: int) -> Array:
    """The axis of N terms as two, `[N / CHAIN, CHAIN]`; the last chain is filled up with zeros, which add nothing."""
    axis %= array.ndim
    missing = -array.shape[axis] % CHAIN
    padded = jnp.pad(array, [(0, missing if i == axis else 0) for i in range(array.ndim)])
    chains = padded.shape[axis] // CHAIN
    return padded.reshape(*array.shape[:axis], chains, CHAIN, *array.shape[axis + 1 :])


def _by_range(queries: Array, keys: Array, compute: Callable[[Arithmetic], Any]) -> Any:
    """`compute` by exponentials where none can overflow and no digits are lost, else, and with NaN, by tanh."""
    limit = jnp.log(jnp.finfo(queries.dtype).max) / 2 - 1
    query, key = (jnp.max(jnp.abs(x), initial=0) for x in (queries, keys))
    fits = (query < limit) & (key < limit) & (query + key > 1)
    return jax.lax.cond(fits, lambda: compute(BY_EXPONENTIALS), lambda: compute(BY_TANH))


def _denominators(one: Term, two: Term) -> tuple[Array, Array]:
    """1 + x y of two terms. The ceiling keeps their product finite, and is where tanh is 1 to half a rounding."""
    highest = 8 / jnp.finfo(one.x.dtype).eps
    first, second = (1 + jnp.minimum(term.x * term.y, highest) for term in (one, two))
    return first, second


def _rational_values(one: Term, two: Term) -> Array:
    first, second = _denominators(one, two)
    return one.c + two.c - 2 * (one.c * second + two.c * first) / (first * second)


def _rational_slopes(one: Term, two: Term) -> Array:
    first, second = _denominators(one, two)
    inverse = 2 / (first * second)
    u, v = inverse * second, inverse * first  # each 1 − tanh, and 1 − tanh² = (1 − tanh) (1 + tanh)
    return one.c * (u * (2 - u)) + two.c * (v * (2 - v))


def _tanh_values(one: Term, two: Term) -> Array:
    return one.c * jnp.tanh(one.x + one.y) + two.c * jnp.tanh(two.x + two.y)


def _tanh_slopes(one: Term, two: Term) -> Array:
    return one.c * (1 - jnp.tanh(one.x + one.y) ** 2) + two.c * (1 - jnp.tanh(two.x + two.y) ** 2)


BY_EXPONENTIALS = Arithmetic(lambda x: jnp.exp(2 * x), _rational_values, _rational_slopes)
BY_TANH = Arithmetic(lambda x: x, _tanh_values, _tanh_slopes)
