"""Σ_h w_h tanh(q_h + k_h) for every query and key, in the memory of the scores and at a few operations a term.

The plain form makes an array of `[*batch, Q, K, H]` terms, H times as many as there are scores. Here the terms are
added one after the other to the whole result, as in a product of matrices, and the gradient computes them again.

Most of the work would be the tanh, and it is avoided: with x = e^{2q} and y = e^{2k}, of which there are only Q·H and
K·H,

    tanh(q + k) = 1 − 2 / (1 + x y)

and two terms share one division: c₁/d₁ + c₂/d₂ = (c₁ d₂ + c₂ d₁) / (d₁ d₂). The error is a few roundings of Σ_h |w_h|,
as with a tanh. In two cases, found at run time, tanh itself is summed: if some |q| or |k| is above 43 (float32; 353 in
float64), where an exponential could overflow, and if all are so small that 1 − 2 / (1 + x y) would lose their digits.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

CHAIN = 16
"""Terms added by one loop of the compiled code, so that the result is read and written once for all of them."""


class Term(NamedTuple):
    """One term c · f(q + k), as x = prepare(q), y = prepare(k) and c, which broadcast to the result's shape."""

    x: Array
    y: Array
    c: Array


class Arithmetic(NamedTuple):
    """A way to add two terms: of c · tanh (`values`), or of c · tanh′ = c · (1 − tanh²) (`slopes`)."""

    prepare: Callable[[Array], Array]
    values: Callable[[Term, Term], Array]
    slopes: Callable[[Term, Term], Array]


@jax.custom_vjp
def sum_of_tanh(
    queries: Float[Array, "*batch query hidden"],
    keys: Float[Array, "*batch key hidden"],
    w_v: Float[Array, "hidden"],
) -> Float[Array, "*batch query key"]:
    """Compute s[q, k] = Σ_h w_v[h] tanh(queries[q, h] + keys[k, h]).

    All three have one dtype, float32 or wider. With g the gradient of s, tanh and tanh′ at queries[q, h] + keys[k, h],

        dqueries[q, h] = w_v[h] Σ_k g[q, k] tanh′       dw_v[h] = Σ_q Σ_k g[q, k] tanh
        dkeys[k, h]    = w_v[h] Σ_q g[q, k] tanh′

    which are three more sums of the same kind. There is no forward mode (`jvp`). A second derivative in reverse mode is
    right, but keeps the terms.
    """

    def scores(by: Arithmetic) -> Array:
        q, k = by.prepare(queries), jnp.swapaxes(by.prepare(keys), -1, -2)  # [*batch, Q, H], [*batch, H, K]
        return _sum_terms(by.values, x=("in", q), y=("nj", k), c=("in", w_v[None]))

    return _by_range(queries, keys, scores)


def _forward(queries: Array, keys: Array, w_v: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    return sum_of_tanh(queries, keys, w_v), (queries, keys, w_v)


def _backward(residuals: tuple[Array, Array, Array], gradient: Array) -> tuple[Array, Array, Array]:
    queries, keys, w_v = residuals

    def gradients(by: Arithmetic) -> tuple[Array, Array, Array]:
        q, k = by.prepare(queries), by.prepare(keys)
        g, g_by_key = ("in", gradient), ("in", jnp.swapaxes(gradient, -1, -2))  # [*batch, Q, K], [*batch, K, Q]
        d_queries = _sum_terms(by.slopes, x=("ij", q), y=("nj", k), c=g)
        d_keys = _sum_terms(by.slopes, x=("ij", k), y=("nj", q), c=g_by_key)
        d_w_v = _sum_terms(by.values, x=("ij", q), y=("nj", k), c=g)  # still [*batch, Q, H]
        return w_v * d_queries, w_v * d_keys, d_w_v.reshape(-1, w_v.shape[0]).sum(axis=0)

    return _by_range(queries, keys, gradients)


sum_of_tanh.defvjp(_forward, _backward)


def _sum_terms(add: Callable[[Term, Term], Array], **parts: tuple[str, Array]) -> Array:
    """Compute r[i, j] = Σ_n term n, whose parts x, y and c are given with the letters of their last two axes.

    An "in" part is the same for all j, an "nj" part for all i, and an "ij" part in every term.

    One loop of the compiled code adds `CHAIN` terms. n is the fastest axis in memory: 16 streams a power of two apart
    would evict one another from the cache (half the speed). On a CPU, chains of 8 and of 32 are slower.
    """
    axes = {name: letters for name, (letters, _) in parts.items()}
    arrays = {name: array for name, (_, array) in parts.items()}
    chains = {name: _chains(array, axes[name].index("n") - 2) for name, array in arrays.items() if "n" in axes[name]}

    def add_chain(total: Array, chain: dict[str, Array]) -> tuple[Array, None]:
        def part(name: str, n: int) -> Array:
            if axes[name] == "ij":
                return arrays[name]
            return chain[name][..., n, None] if axes[name] == "in" else chain[name][..., None, n, :]

        def term(n: int) -> Term:
            return Term(*(part(name, n) for name in Term._fields))

        for n in range(0, CHAIN, 2):
            total = total + add(term(n), term(n + 1))
        return total, None

    num_rows = arrays["x"].shape[-2]
    *batch, _, num_columns = arrays["y"].shape  # always an "nj" part
    total = jnp.zeros((*batch, num_rows, num_columns), arrays["x"].dtype)
    return jax.lax.scan(add_chain, total, chains)[0]


def _chains(array: Array, axis: int) -> Array:
    """Cut the axis of N terms into chains, `[N / CHAIN, …, CHAIN, …]`. Zeros fill up the last one, and add nothing."""
    axis %= array.ndim
    count = -(-array.shape[axis] // CHAIN)
    padding = [(0, count * CHAIN - size if i == axis else 0) for i, size in enumerate(array.shape)]
    chains = jnp.pad(array, padding).reshape(*array.shape[:axis], count, CHAIN, *array.shape[axis + 1 :])
    return jnp.moveaxis(chains, axis, 0)


def _by_range(queries: Array, keys: Array, compute: Callable[[Arithmetic], Any]) -> Any:
    """Call `compute` with exponentials where none can overflow and no digits are lost, else (NaN too) with tanh."""
    limit = jnp.log(jnp.finfo(queries.dtype).max) / 2 - 1
    query, key = (jnp.max(jnp.abs(x), initial=0) for x in (queries, keys))
    fits = (query < limit) & (key < limit) & (query + key > 1)
    return jax.lax.cond(fits, lambda: compute(BY_EXPONENTIALS), lambda: compute(BY_TANH))


def _denominators(one: Term, two: Term) -> tuple[Array, Array]:
    """Compute 1 + x y of two terms. The ceiling keeps their product finite; there tanh is 1 to half a rounding."""
    highest = 8 / jnp.finfo(one.x.dtype).eps
    first, second = (1 + jnp.minimum(term.x * term.y, highest) for term in (one, two))
    return first, second


def _exponential_values(one: Term, two: Term) -> Array:
    first, second = _denominators(one, two)
    return one.c + two.c - 2 * (one.c * second + two.c * first) / (first * second)


def _exponential_slopes(one: Term, two: Term) -> Array:
    first, second = _denominators(one, two)
    inverse = 2 / (first * second)
    u, v = inverse * second, inverse * first  # each 1 − tanh, and 1 − tanh² = (1 − tanh) (1 + tanh)
    return one.c * (u * (2 - u)) + two.c * (v * (2 - v))


def _tanh_values(one: Term, two: Term) -> Array:
    return one.c * jnp.tanh(one.x + one.y) + two.c * jnp.tanh(two.x + two.y)


def _tanh_slopes(one: Term, two: Term) -> Array:
    return one.c * (1 - jnp.tanh(one.x + one.y) ** 2) + two.c * (1 - jnp.tanh(two.x + two.y) ** 2)


BY_EXPONENTIALS = Arithmetic(lambda x: jnp.exp(2 * x), _exponential_values, _exponential_slopes)
BY_TANH = Arithmetic(lambda x: x, _tanh_values, _tanh_slopes)
