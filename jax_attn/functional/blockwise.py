"""Attention in linear memory: the context by blocks of queries and keys, without ever holding all the weights.

For a block of queries, the keys are read block by block. With m the highest score so far, l = Σ exp(s − m) and
o = Σ exp(s − m) v, a block with a higher score m′ rescales both by exp(m − m′). At the end context = o / l, which is
exactly the softmax's. The gradient needs the context, m and l of each query, and computes the weights of a block again,
see `_backward`. (To keep log Σ exp(s) in the place of m and l would cost digits where scores are large.)

Source: Milakov and Gimelshein, 2018 (the online softmax); Rabe and Staats, 2021; Dao et al., 2022 (FlashAttention).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Num

from jax_attn.functional import checks
from jax_attn.functional.attend import make_dropout
from jax_attn.functional.masks import checked_lens, checked_mask, zero_unattended
from jax_attn.functional.scores import dot_score, scaled_dot_score
from jax_attn.functional.softmax import EmptyRow, require_empty_row

BLOCK_SIZE = 1024
"""Queries, and keys, of one block: its scores are 4 MB in float32."""


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
    are taken one after the other, so that a block's scores stay in the cache. With many short sequences the plain
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
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1; got {block_size}")
    shape = (*queries.shape[:-1], keys.shape[-2])
    if keep_mask is not None:
        checks.require_bool(keep_mask=keep_mask)
        checks.require_shape(shape, keep_mask=keep_mask)

    dtype = jnp.result_type(queries, keys, values, *parameters_)
    wide = checks.wide_dtype(queries, keys, values, *parameters_)
    queries, keys, values, *parameters_ = (x.astype(wide) for x in (queries, keys, values, *parameters_))
    lens = None if valid_lens is None else checked_lens(valid_lens, shape)
    mask = None if mask is None else checked_mask(mask, shape)
    attended = _attended_keys(lens, mask, shape[-1])
    uniform: Any = None
    keys = zero_unattended(keys, attended)
    if attended is not None and empty_row == "uniform":
        uniform = _empty_rows(lens, mask, shape[-1])
        lens = jnp.where(uniform, shape[-1], shape[-1] if lens is None else lens)
        attended |= uniform.any(axis=-2, keepdims=True)
    values = zero_unattended(values, attended)
    pairs = Pairs(lens, mask, uniform, keep_mask)
    attend_example = partial(_attend, _FAST.get(score, score), dropout_rate, block_size, tuple(parameters_))
    return _over_batch(attend_example, len(shape) - 2, (queries, keys, values), pairs).astype(dtype)


class Pairs(NamedTuple):
    """What is given for the pairs of queries and keys. An axis has size 1 where it makes no difference."""

    lens: Num[Array, "*#batch #query 1"] | None
    mask: Bool[Array, "*#batch #query #key"] | None
    uniform: Bool[Array, "*#batch #query 1"] | None  # the queries that may attend to no key: their `lens` are K
    keep: Bool[Array, "*batch query key"] | None  # the weights that dropout keeps


def _allowed(lens: Any, mask: Any, positions: Array) -> Any:
    """Return which of the keys at these positions a query may attend to, or None for all."""
    within = None if lens is None else positions < lens
    return within if mask is None else mask if within is None else mask & within


def _attended_keys(lens: Any, mask: Any, num_keys: int) -> Any:
    """Return a mask of the keys that some query may attend to, or None for all. Lengths never make one of all pairs."""
    if lens is not None and (mask is None or mask.shape[-2] == 1):
        lens = lens.max(axis=-2, keepdims=True, initial=0)
    return _allowed(lens, mask, jnp.arange(num_keys))


def _empty_rows(lens: Any, mask: Any, num_keys: int) -> Any:
    """Return which queries may attend to no key, `[*batch, #Q, 1]`."""
    return lens <= 0 if mask is None else ~_allowed(lens, mask, jnp.arange(num_keys)).any(axis=-1, keepdims=True)


def _over_batch(attend_example: Callable[..., Array], axes: int, inputs: tuple[Array, ...], pairs: Pairs) -> Array:
    """Call `attend_example` for each example in turn, over so many leading axes."""
    if axes == 0:
        return attend_example(*inputs, pairs)
    shared = jax.tree.map(lambda x: x[0] if x.shape[0] == 1 else None, pairs)
    own = jax.tree.map(lambda x: None if x.shape[0] == 1 else x, pairs)

    def next_axis(example: tuple[tuple[Array, ...], Pairs]) -> Array:
        inputs, own = example
        pairs = jax.tree.map(lambda a, b: b if a is None else a, shared, own, is_leaf=lambda x: x is None)
        return _over_batch(attend_example, axes - 1, inputs, pairs)

    return jax.lax.map(next_axis, (inputs, own))


def _pick(array: Array, i: Array, axis: int) -> Array:
    """Take number i of an axis, or the only one of an axis of size 1."""
    return jax.lax.dynamic_index_in_dim(array, 0 if array.shape[axis] == 1 else i, axis, keepdims=False)


def _blocks(array: Array, block_size: int, axis: int = 0, fill: float = 0) -> Array:
    """Cut an axis into blocks, `[…, blocks, size, …]`: as few as possible, of one size, the last one filled up."""
    length = array.shape[axis]
    count = max(1, -(-length // block_size))
    size = -(-length // count)
    padding = [(0, count * size - length if i == axis else 0) for i in range(array.ndim)]
    shape = (*array.shape[:axis], count, size, *array.shape[axis + 1 :])
    return jnp.pad(array, padding, constant_values=fill).reshape(shape)


def _joined(blocks: Array, length: int) -> Array:
    """Undo `_blocks` of the first axis."""
    return jax.lax.collapse(blocks, 0, 2)[:length]


def _blocks_of_pairs(pairs: Pairs, num_keys: int, block_size: int) -> Pairs:
    """Cut both axes of one example's pairs into blocks, `[I, q, J, k]`; positions past K are outside of `lens`."""
    if pairs.lens is None and num_keys % max(1, -(-num_keys // block_size)):  # the last block will be filled up
        pairs = pairs._replace(lens=jnp.full((1, 1), num_keys))
    return jax.tree.map(lambda x: _blocks(_blocks(x, block_size, axis=1), block_size), pairs)


def _block(pairs: Pairs, i: Array, j: Array) -> Pairs:
    """Return the pairs of query block i and key block j, each `[#q, #k]` of `[I, q, J, k]`."""
    return jax.tree.map(lambda x: _pick(_pick(x, i, 0), j, 1), pairs)


def _masked(scores: Array, pairs: Pairs, first: Array) -> Array:
    """Return the scores `[q, k]` that the softmax sees, −inf where masked; `first` is the position of key 0."""
    mask = pairs.mask if pairs.mask is None or pairs.uniform is None else pairs.mask | pairs.uniform
    allowed = _allowed(pairs.lens, mask, first + jnp.arange(scores.shape[1]))
    if pairs.uniform is not None:
        scores = jnp.where(pairs.uniform, 0, scores)
    return scores if allowed is None else jnp.where(allowed, scores, -jnp.inf)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _attend(
    score: Callable[..., Array],
    rate: float,
    block_size: int,
    parameters: tuple[Array, ...],
    queries: Float[Array, "query feature"],
    keys: Float[Array, "key key_feature"],
    values: Float[Array, "key value"],
    pairs: Pairs,
) -> Float[Array, "query value"]:
    """Compute the context of one example."""
    return _forward(score, rate, block_size, parameters, queries, keys, values, pairs)[0]


def _forward(
    score: Any, rate: float, block_size: int, parameters: Any, queries: Array, keys: Array, values: Array, pairs: Pairs
) -> tuple[Array, tuple[Any, ...]]:
    query_blocks, key_blocks, value_blocks = (_blocks(x, block_size) for x in (queries, keys, values))
    pair_blocks, size = _blocks_of_pairs(pairs, keys.shape[0], block_size), key_blocks.shape[1]
    rows = jnp.zeros(query_blocks.shape[1], queries.dtype)
    start = rows - jnp.inf, rows, jnp.zeros((*rows.shape, values.shape[-1]), queries.dtype)

    def attend_queries(block: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        i, query = block

        def add_keys(so_far: tuple[Array, Array, Array], block: tuple[Array, Array, Array]) -> tuple[Any, None]:
            highest, total, context = so_far
            j, key, value = block
            block_pairs = _block(pair_blocks, i, j)
            scores = _masked(score(query, key, *parameters), block_pairs, j * size)
            higher = jnp.maximum(highest, scores.max(axis=-1, initial=-jnp.inf))
            finite = jnp.where(higher == -jnp.inf, 0, higher)  # nothing allowed yet: −inf − (−inf) would be NaN
            exponents, rescale = jnp.exp(scores - finite[:, None]), jnp.exp(highest - finite)
            total = total * rescale + exponents.sum(axis=-1)
            context = context * rescale[:, None] + _drop(exponents, rate, block_pairs) @ value
            return (higher, total, context), None

        blocks = jnp.arange(key_blocks.shape[0]), key_blocks, value_blocks
        (highest, total, context), _ = jax.lax.scan(add_keys, start, blocks)
        total, highest = jnp.where(total > 0, total, 1), jnp.where(total > 0, highest, jnp.inf)  # of an empty row
        return context / total[:, None], highest, total

    results = jax.lax.map(attend_queries, (jnp.arange(query_blocks.shape[0]), query_blocks))
    context, highest, total = (_joined(x, queries.shape[0]) for x in results)
    return context, (parameters, queries, keys, values, pairs, context, highest, total)


def _backward(
    score: Callable[..., Array], rate: float, block_size: int, residuals: tuple[Any, ...], d_context: Array
) -> tuple[Any, ...]:
    """Compute all gradients from d, that of the context o, block by block. With e = exp(s − m) the weights are

        p = e / l,   and the scores' gradient   ds = p (d · v − d · o) = e (d/l · v − d/l · o)
        dv = Σ_q p d = Σ_q e d/l

    so that l divides queries, not pairs. The score's own derivative leads from ds to queries, keys and parameters.
    With dropout, e in dv and d · v are those of the kept pairs, over 1 − rate; d · o is then Σ_k p (d · v) as before.
    """
    parameters, queries, keys, values, pairs, context, highest, total = residuals
    d_context = d_context / total[:, None]  # d/l from here on
    d_dot_o = (d_context * context).sum(axis=-1)
    query_blocks, d_blocks, d_dot_o_blocks, key_blocks, value_blocks = (
        _blocks(x, block_size) for x in (queries, d_context, d_dot_o, keys, values)
    )
    by_query = query_blocks, d_blocks, d_dot_o_blocks, _blocks(highest, block_size, fill=jnp.inf)
    pair_blocks, size = _blocks_of_pairs(pairs, keys.shape[0], block_size), key_blocks.shape[1]

    def add_queries(so_far: Any, block: Any) -> tuple[Any, Array]:
        i, query, d_context, d_dot_o, highest = block
        d_parameters, d_keys, d_values = so_far

        def add_keys(so_far: Any, block: tuple[Array, Array, Array]) -> tuple[Any, tuple[Array, Array]]:
            j, key, value = block
            block_pairs = _block(pair_blocks, i, j)
            scores, pull_back = jax.vjp(
                lambda *inputs: _masked(score(*inputs), block_pairs, j * size), query, key, *parameters
            )
            exponents = jnp.exp(scores - highest[:, None])
            d_value = transposed_product(_drop(exponents, rate, block_pairs), d_context)
            d_weights = _drop(d_context @ value.T, rate, block_pairs)
            d_query, d_key, *d_parameters = pull_back(exponents * (d_weights - d_dot_o[:, None]))
            return jax.tree.map(jnp.add, so_far, (tuple(d_parameters), d_query)), (d_key, d_value)

        blocks = jnp.arange(key_blocks.shape[0]), key_blocks, value_blocks
        start = d_parameters, jnp.zeros_like(query)
        (d_parameters, d_query), (more_keys, more_values) = jax.lax.scan(add_keys, start, blocks)
        return (d_parameters, d_keys + more_keys, d_values + more_values), d_query

    start = jax.tree.map(jnp.zeros_like, (parameters, key_blocks, value_blocks))
    numbers = jnp.arange(query_blocks.shape[0])
    (d_parameters, d_keys, d_values), d_queries = jax.lax.scan(add_queries, start, (numbers, *by_query))
    d_keys, d_values = _joined(d_keys, len(keys)), _joined(d_values, len(keys))
    return d_parameters, _joined(d_queries, len(queries)), d_keys, d_values, None


_attend.defvjp(_forward, _backward)


def _drop(weights: Array, rate: float, pairs: Pairs) -> Array:
    drop = make_dropout(rate, pairs.keep)
    return weights if drop is None else drop(weights)


def transposed_product(
    wide: Float[Array, "*batch n wide"], narrow: Float[Array, "*batch n narrow"]
) -> Float[Array, "*batch wide narrow"]:
    """Compute wideᵀ · narrow as (narrowᵀ · wide)ᵀ, which XLA does four times faster on a CPU for tall matrices.

    The barrier keeps it from folding the last transpose into the product, which would be the first form again.
    """
    product = jnp.einsum("...nb,...na->...ba", narrow, wide)
    return jnp.swapaxes(jax.lax.optimization_barrier(product), -1, -2)


@jax.custom_vjp
def inner_products(
    queries: Float[Array, "*batch query feature"], keys: Float[Array, "*batch key feature"]
) -> Float[Array, "*batch query key"]:
    """Compute S = Q Kᵀ, whose gradient for the keys takes the form of `transposed_product`; it has no forward mode."""
    return jnp.einsum("...qd,...kd->...qk", queries, keys)


def _inner_products_backward(residuals: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    queries, keys = residuals
    return gradient @ keys, transposed_product(gradient, queries)


inner_products.defvjp(lambda queries, keys: (inner_products(queries, keys), (queries, keys)), _inner_products_backward)


def scaled_inner_products(queries: Array, keys: Array) -> Array:
    """Compute S = Q Kᵀ / √D. The queries are divided: they are fewer than the scores."""
    return inner_products(queries / math.sqrt(queries.shape[-1]), keys)


_FAST: dict[Any, Callable[..., Array]] = {dot_score: inner_products, scaled_dot_score: scaled_inner_products}
"""The scores that are computed in a form of their own once the arguments are checked and wide."""
