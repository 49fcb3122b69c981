"""Attention in linear memory: the context by blocks of queries and keys, without ever holding all the weights.

For a block of queries, the keys are read block by block. With m the highest score so far, l = Σ exp(s − m) and
o = Σ exp(s − m) v, a block with a higher score m′ rescales both by exp(m − m′). At the end context = o / l, which is
exactly the softmax's. The gradient needs the context, m and l of each query, and computes the weights of a block again,
see `_backward`. (To keep log Σ exp(s) instead of m and l would cost digits where scores are large.)

Source: Milakov and Gimelshein, 2018 (the online softmax); Rabe and Staats, 2021; Dao et al., 2022 (FlashAttention).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Num

from jax_attn.functional import checks
from jax_attn.functional.dropout import drop
from jax_attn.functional.masks import checked_lens, checked_mask, zero_unattended
from jax_attn.functional.scores import dot_score, scaled_dot_score
from jax_attn.functional.softmax import EmptyRow, require_empty_row, row_maximum

BLOCK_SIZE = 1024
"""Queries, and keys, of one block: 4 MB of scores in float32. Smaller products are slower on a CPU."""


def blockwise_attention(
    score: Callable[..., Array],
    queries: Float[Array, "*batch query query_feature"],
    keys: Float[Array, "*batch key key_feature"],
    values: Float[Array, "*batch key value"],
    valid_lens: Num[Array, "..."] | None = None,
    mask: Bool[Array, "..."] | None = None,
    *,
    parameters: tuple[Array, ...] = (),
    empty_row: EmptyRow = "zero",
    dropout_rate: float = 0.0,
    keep_mask: Bool[Array, "*batch query key"] | None = None,
    block_size: int = BLOCK_SIZE,
) -> Float[Array, "*batch query value"]:
    """Compute the context of `attend(score(queries, keys, *parameters), values, …)` without its scores and weights.

        context = blockwise_attention(additive_score, queries, keys, values, valid_lens, parameters=(w_v,))

    Besides a mask or keep-mask that is given, memory grows as Q + K and not as Q · K, for the gradient too. Examples
    are taken one after the other, so that one block's scores are held at a time. With many short sequences the plain
    form is faster.

    Args:
        score: a function of queries `[q, D]`, keys `[k, D′]` and the parameters that returns scores `[q, k]`, each
            from one query and one key alone. It is called in float32 or wider, with blocks of any size.
        queries, keys, values: `[*batch, Q, D]`, `[*batch, K, D′]`, `[*batch, K, V]`.
        valid_lens: `[*batch]` or `[*batch, Q]`, see `attention_mask`.
        mask: boolean, broadcastable to `[*batch, Q, K]`.
        parameters: further arrays that `score` takes, the same for all examples. They are differentiated too.
        empty_row: what a query that may attend to nothing gets, see `masked_softmax`.
        dropout_rate, keep_mask: dropout on the weights, only if a keep-mask is given.
        block_size: the most queries, and keys, of one block.

    Returns:
        The context `[*batch, Q, V]` in the dtype to which all inputs are promoted. It has no forward mode (`jvp`).

    Raises:
        ValueError, TypeError: a shape, rank or dtype does not fit, as in `attend`; `block_size` is less than 1.
    """
    named = {"queries": queries, "keys": keys, "values": values}
    named |= {f"parameters[{i}]": parameter for i, parameter in enumerate(parameters)}
    named = {name: checks.as_array(name, array) for name, array in named.items()}
    checks.require_float(**named)
    queries, keys, values, *parameters_ = named.values()
    checks.require_same_batch(queries=queries, keys=keys)
    checks.require_same_length(keys=keys, values=values)
    require_empty_row(empty_row)
    if score in _FAST:
        jax.eval_shape(score, queries, keys, *parameters_)  # for its checks, which the fast form does not make
    checks.require_integer(block_size=block_size)
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1; got {block_size}")
    *batch, num_queries, num_keys = shape = (*queries.shape[:-1], keys.shape[-2])
    if keep_mask is not None:
        checks.require_bool(keep_mask=keep_mask)
        checks.require_shape(shape, keep_mask=keep_mask)

    wide = checks.wide_dtype(*named.values())
    queries, keys, values, *parameters_ = (x.astype(wide) for x in (queries, keys, values, *parameters_))
    lens = None if valid_lens is None else checked_lens(valid_lens, shape)
    mask = None if mask is None else checked_mask(mask, shape)
    if 0 in batch:
        return jnp.zeros((*shape[:-1], values.shape[-1]), jnp.result_type(*named.values()))
    if lens is not None:  # under jit they are not checked, and must not reach into what fills up the last block
        lens = jnp.minimum(lens, np.int32(num_keys))
    attended = _attended(lens, mask, num_keys)
    inputs = queries, zero_unattended(keys, attended), zero_unattended(values, attended)
    blocks = [_cut(x, block_size, -2) for x in inputs]
    if lens is None and num_keys % max(1, blocks[1].shape[-2]):  # the last block of keys is filled up
        lens = jnp.full((1,) * len(shape), num_keys)
    pairs = jax.tree.map(lambda x: _cut(_cut(x, block_size, -1), block_size, -3), Pairs(lens, mask, keep_mask))

    def attend_example(example: tuple[Array, list[Array]]) -> tuple[Array, Array]:
        number, own = example
        place = jnp.unravel_index(number, batch)
        of_example = jax.tree.map(lambda x: x[tuple(0 if n == 1 else i for n, i in zip(x.shape, place))], pairs)  # noqa: B905
        return _attend(_FAST.get(score, score), dropout_rate, tuple(parameters_), *own, of_example)

    size = math.prod(batch)
    examples = jnp.arange(size), [x.reshape(size, *x.shape[len(batch) :]) for x in blocks]
    one = size == 1  # a loop for a single example would cost memory
    context, total = (
        attend_example(jax.tree.map(lambda x: x[0], examples)) if one else jax.lax.map(attend_example, examples)
    )
    context, total = (x.reshape(*batch, math.prod(x.shape[-3:-1]), x.shape[-1]) for x in (context, total))
    context, total = context[..., :num_queries, :], total[..., :num_queries, :]
    if empty_row == "uniform" and attended is not None:
        equal = jnp.full((1, num_keys) if keep_mask is None else shape, 1 / max(num_keys, 1), wide)
        context = jnp.where(total == 0, drop(equal, dropout_rate, keep_mask) @ values, context)
    return context.astype(jnp.result_type(*named.values()))


class Pairs(NamedTuple):
    """What is given for the pairs of queries and keys. An axis has size 1 where it makes no difference."""

    lens: Num[Array, "*#batch #I #q 1 1"] | None
    mask: Bool[Array, "*#batch #I #q #J #k"] | None
    keep: Bool[Array, "*batch I q J k"] | None  # the weights that dropout keeps


def _allowed(lens: Any, mask: Any, positions: Array) -> Any:
    """Return which of the keys at these positions a query may attend to, or None for all."""
    within = None if lens is None else positions < lens
    return within if mask is None else mask if within is None else mask & within


def _attended(lens: Any, mask: Any, num_keys: int) -> Any:
    """Return a mask of the keys that some query may attend to, or None for all. Lengths never make one of all pairs."""
    if lens is not None and (mask is None or mask.shape[-2] == 1):
        lens = lens.max(axis=-2, keepdims=True, initial=0)
    return _allowed(lens, mask, jnp.arange(num_keys))


def _cut(array: Array, block_size: int, axis: int) -> Array:
    """Cut an axis into blocks, `[…, blocks, size, …]`: as few as possible, the last one filled up with zeros."""
    axis, length = axis % array.ndim, array.shape[axis]
    count = max(1, -(-length // block_size))
    size = -(-length // count)
    padding = [(0, count * size - length if i == axis else 0) for i in range(array.ndim)]
    return jnp.pad(array, padding).reshape(*array.shape[:axis], count, size, *array.shape[axis + 1 :])


def _block(score: Callable[..., Array], pairs: Pairs, i: Array, j: Array) -> tuple[Callable[..., Array], Any]:
    """Return a function that scores query block i against key block j, −inf where masked, and what dropout keeps."""
    lens, mask, keep = jax.tree.map(lambda x: x[i if x.shape[0] > 1 else 0, :, j if x.shape[2] > 1 else 0], pairs)

    def masked(query: Array, key: Array, *parameters: Array) -> Array:
        allowed = _allowed(lens, mask, j * len(key) + jnp.arange(len(key)))
        scores = score(query, key, *parameters)
        return scores if allowed is None else jnp.where(allowed, scores, -jnp.inf)

    return masked, keep


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(
    score: Callable[..., Array],
    rate: float,
    parameters: tuple[Array, ...],
    queries: Float[Array, "I q feature"],
    keys: Float[Array, "J k key_feature"],
    values: Float[Array, "J k value"],
    pairs: Pairs,
) -> tuple[Float[Array, "I q value"], Float[Array, "I q 1"]]:
    """Compute the context of one example, and l: 0 for a query that may attend to nothing."""
    return _forward(score, rate, parameters, queries, keys, values, pairs)[0]


def _forward(
    score: Any, rate: float, parameters: Any, queries: Array, keys: Array, values: Array, pairs: Pairs
) -> tuple[tuple[Array, Array], tuple[Any, ...]]:
    def attend_queries(block: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        i, query = block

        def add_keys(so_far: tuple[Array, Array, Array], block: tuple[Array, Array, Array]) -> tuple[Any, None]:
            highest, total, context = so_far
            j, key, value = block
            masked, keep = _block(score, pairs, i, j)
            scores = masked(query, key, *parameters)
            higher = jnp.maximum(highest, row_maximum(scores))
            exponents, rescale = jnp.exp(scores - higher), jnp.exp(highest - higher)
            total = total * rescale + exponents.sum(axis=-1, keepdims=True)
            return (higher, total, context * rescale + drop(exponents, rate, keep) @ value), None

        row = jnp.zeros((len(query), 1), query.dtype)
        least = jnp.finfo(query.dtype).min  # not −inf: −inf − (−inf) would be NaN while nothing is allowed
        start = row + least, row, row * jnp.zeros(values.shape[-1], query.dtype)
        (highest, total, context), _ = jax.lax.scan(add_keys, start, (jnp.arange(len(keys)), keys, values))
        return context / (total + (total == 0)), highest, total

    context, highest, total = jax.lax.map(attend_queries, (jnp.arange(len(queries)), queries))
    return (context, total), (parameters, queries, keys, values, pairs, context, highest, total)


def _backward(
    score: Callable[..., Array], rate: float, residuals: tuple[Any, ...], d_results: tuple[Array, Array]
) -> tuple[Any, ...]:
    """Compute all gradients from d, that of the context o, block by block. With e = exp(s − m) the weights are

        p = e / l,   and the scores' gradient   ds = p (d · v − d · o) = e (d/l · v − d/l · o)
        dv = Σ_q p d = Σ_q e d/l

    so that l divides queries, not pairs. The score's own derivative leads from ds to queries, keys and parameters.
    With dropout, e in dv and d · v are those of the kept pairs, over 1 − rate; d · o is then Σ_k p (d · v) as before.
    """
    parameters, queries, keys, values, pairs, context, highest, total = residuals
    total, highest = total + (total == 0), jnp.where(total == 0, jnp.inf, highest)  # an empty row has weight 0
    d_contexts = d_results[0] / total  # d/l from here on
    d_dot_o = (d_contexts * context).sum(axis=-1, keepdims=True)

    def add_queries(so_far: Any, block: Any) -> tuple[Any, Array]:
        i, query, d_context, d_dot_o, highest = block
        d_parameters, d_keys, d_values = so_far

        def add_keys(so_far: Any, block: tuple[Array, Array, Array]) -> tuple[Any, tuple[Array, Array]]:
            j, key, value = block
            masked, keep = _block(score, pairs, i, j)
            scores, pull_back = jax.vjp(masked, query, key, *parameters)
            exponents = jnp.exp(scores - highest)
            # (dᵀ e)ᵀ is four times as fast on a CPU as eᵀ d, which XLA would make of it without the barrier
            d_value = jax.lax.optimization_barrier(d_context.T @ drop(exponents, rate, keep)).T
            d_weights = drop(d_context @ value.T, rate, keep)
            d_query, d_key, *d_parameters = pull_back(exponents * (d_weights - d_dot_o))
            return jax.tree.map(jnp.add, so_far, (tuple(d_parameters), d_query)), (d_key, d_value)

        start = d_parameters, jnp.zeros_like(query)
        (d_parameters, d_query), more = jax.lax.scan(add_keys, start, (jnp.arange(len(keys)), keys, values))
        return (d_parameters, d_keys + more[0], d_values + more[1]), d_query

    start = jax.tree.map(jnp.zeros_like, (parameters, keys, values))
    blocks = jnp.arange(len(queries)), queries, d_contexts, d_dot_o, highest
    (d_parameters, d_keys, d_values), d_queries = jax.lax.scan(add_queries, start, blocks)
    return d_parameters, d_queries, d_keys, d_values, None


_attend.defvjp(_forward, _backward)


def inner_products(
    queries: Float[Array, "*batch query feature"], keys: Float[Array, "*batch key feature"]
) -> Float[Array, "*batch query key"]:
    """Compute S = Q Kᵀ, whose gradient for the keys is (Qᵀ dS)ᵀ: on a CPU four times as fast as dSᵀ Q.

    The barrier keeps XLA from folding the transpose into the product, which would be the second form again.
    """
    return queries @ jax.lax.optimization_barrier(jnp.swapaxes(keys, -1, -2))


def scaled_inner_products(queries: Array, keys: Array) -> Array:
    """Compute S = Q Kᵀ / √D. The queries are divided: they are fewer than the scores."""
    return inner_products(queries / math.sqrt(queries.shape[-1]), keys)


_FAST: dict[Any, Callable[..., Array]] = {dot_score: inner_products, scaled_dot_score: scaled_inner_products}
"""The scores that are computed in a form of their own once the arguments are checked and wide."""
