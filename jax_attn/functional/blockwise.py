"""Attention in linear memory: the context by blocks of queries and keys, without ever holding all the weights.

For a block of queries, the keys are read block by block. With m the highest score so far, l = Σ exp(s − m) and
o = Σ exp(s − m) v, a block with a higher score m′ rescales both by exp(m − m′); at the end context = o / l. That is the
softmax, exactly. Kept for the gradient are the context, m and l of each query, from which a block's weights are
computed again (see `_backward`); log Σ exp(s) in the place of m and l would cost digits where scores are large.

Source: Milakov and Gimelshein, 2018 (the online softmax); Rabe and Staats, 2021; Dao et al., 2022 (FlashAttention).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Num

from jax_attn.functional.checks import (
    require_bool,
    require_float,
    require_same_batch,
    require_same_length,
    require_shape,
    wide_dtype,
)
from jax_attn.functional.dropout import dropout
from jax_attn.functional.masks import checked_lens, checked_mask, zero_unattended
from jax_attn.functional.products import inner_products, scaled_inner_products, transposed_product
from jax_attn.functional.scores import dot_score, scaled_dot_score
from jax_attn.functional.softmax import EmptyRow, require_empty_row

BLOCK_SIZE = 1024
"""Queries, and keys, of one block: its scores are 4 MB in float32."""

OF_BLOCKS: dict[Callable[..., Array], Callable[..., Array]] = {
    dot_score: inner_products,
    scaled_dot_score: scaled_inner_products,
}
"""The scores that are computed in a form of their own, once the arguments are checked and wide."""

TOGETHER = 2
"""Examples (or heads) whose dot products are taken at once: two cores then wait less for each other, by a tenth."""


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
    """The context of `attend(score(queries, keys, *parameters), values, …)`, without its scores and weights.

        context = blockwise_attention(additive_score, queries, keys, values, valid_lens, parameters=(w_v,))

    Memory grows as Q + K and not as Q · K, for the gradient too. Leading axes are taken one example after the other
    (dot products: two), so that a block's scores stay in the cache; with many short sequences the plain form is the
    faster one.

    Args:
        score: any function of queries `[q, D]`, keys `[k, D′]` and the parameters to scores `[q, k]`, each the score of
            one pair alone. It is given all of them in float32 or wider, and any lengths. Its own derivative is used,
            but for dot products, scaled or not: see `inner_products`.
        queries, keys, values: `[*batch, Q, D]`, `[*batch, K, D′]`, `[*batch, K, V]`.
        valid_lens: `[*batch]` or `[*batch, Q]`, see `attention_mask`.
        mask: boolean, broadcastable to `[*batch, Q, K]`.
        parameters: arrays that `score` takes besides, the same for all examples; differentiated with the rest.
        empty_row: what a query that may attend to nothing gets, see `masked_softmax`.
        dropout_rate, keep_mask: dropout on the weights, only where a keep-mask is given.
        block_size: the most queries, and keys, of one block.

    Returns:
        The context `[*batch, Q, V]` in the dtype of all inputs together. There is no forward mode.

    Raises:
        ValueError, TypeError: shapes, ranks or dtypes that do not fit, as in `attend`; a block of less than one.
    """
    queries, keys, values, *given = map(jnp.asarray, (queries, keys, values, *parameters))
    require_float(queries=queries, keys=keys, values=values)
    require_float(**{f"parameters[{i}]": parameter for i, parameter in enumerate(given)})
    require_same_batch(queries=queries, keys=keys)
    require_same_length(keys=keys, values=values)
    require_empty_row(empty_row)
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1; got {block_size}")
    shape = (*queries.shape[:-1], keys.shape[-2])
    pairs = Pairs.checked(shape, valid_lens, mask, keep_mask)
    seen = pairs.seen(shape[-1])
    if empty_row == "uniform":
        pairs = pairs.with_uniform_rows(shape[-1])

    dtype = jnp.result_type(queries, keys, values, *given)
    wide = wide_dtype(queries, keys, values, *given)
    queries, keys, values, *given = (x.astype(wide) for x in (queries, keys, values, *given))
    keys = zero_unattended(keys, seen)
    values = zero_unattended(values, seen if pairs.uniform is None else seen | pairs.uniform.any(-2, keepdims=True))
    static = Static(OF_BLOCKS.get(score, score), dropout_rate, block_size)
    attend = partial(_attend, static, tuple(given))
    together = TOGETHER if score in OF_BLOCKS else 1
    return _over_batch(attend, len(shape) - 2, (queries, keys, values), pairs, together).astype(dtype)


class Static(NamedTuple):
    """What is known when traced."""

    score: Callable[..., Array]
    dropout_rate: float
    block_size: int


class Pairs(NamedTuple):
    """What is said of each pair of a query and a key; an axis that makes no difference has size 1."""

    lens: Num[Array, "*#batch #query 1"] | None
    mask: Bool[Array, "*#batch #query #key"] | None
    keep: Bool[Array, "*batch query key"] | None
    uniform: Bool[Array, "*#batch #query 1"] | None = None
    """Which queries weigh all keys alike, as they may attend to none."""

    @classmethod
    def checked(cls, shape: tuple[int, ...], valid_lens: Any, mask: Any, keep_mask: Any) -> "Pairs":
        """The arguments with the rank of the scores. No mask is made of the lengths: it would have the scores' size."""
        if valid_lens is not None:
            valid_lens = checked_lens(valid_lens, shape)
            valid_lens = valid_lens.reshape(*valid_lens.shape, *(1,) * (len(shape) - valid_lens.ndim))
        if mask is not None:
            mask = checked_mask(mask, shape)
            mask = mask.reshape((1,) * (len(shape) - mask.ndim) + mask.shape)
        if keep_mask is not None:
            require_bool(keep_mask=keep_mask)
            require_shape(shape, keep_mask=keep_mask)
        return cls(valid_lens, mask, keep_mask)

    def seen(self, num_keys: int) -> Any:
        """Which keys some query may attend to, `[*batch, 1, K]`, or a mask of which that is true."""
        lens, mask = self.lens, self.mask
        if lens is not None and (mask is None or mask.shape[-2] == 1):
            lens = lens.max(axis=-2, keepdims=True, initial=0)
        return Pairs(lens, mask, None)._allowed(jnp.arange(num_keys))

    def with_uniform_rows(self, num_keys: int) -> "Pairs":
        """Those pairs, where an empty row is uniform."""
        if self.mask is None:
            return self if self.lens is None else self._replace(uniform=self.lens <= 0)
        return self._replace(uniform=~self._allowed(jnp.arange(num_keys)).any(axis=-1, keepdims=True))

    def _allowed(self, positions: Array) -> Any:
        within = None if self.lens is None else positions < self.lens
        return within if self.mask is None else self.mask if within is None else self.mask & within


def _over_batch(
    attend: Callable[..., Array], axes: int, inputs: tuple[Array, ...], pairs: Pairs, together: int
) -> Array:
    """`attend` for each example in turn, over so many leading axes, with so many of the last one taken together."""
    if axes == 0:
        return attend(*inputs, pairs)
    shared = jax.tree.map(lambda x: x[0] if x.shape[0] == 1 else None, pairs)
    of_each = jax.tree.map(lambda x: None if x.shape[0] == 1 else x, pairs)

    def one(example: tuple[tuple[Array, ...], Pairs]) -> Array:
        own = jax.tree.map(lambda a, b: b if a is None else a, shared, example[1], is_leaf=lambda x: x is None)
        return _over_batch(attend, axes - 1, example[0], own, together)

    together = together if axes == 1 and inputs[0].shape[0] % together == 0 else 1
    return jax.lax.map(one, (inputs, of_each), batch_size=together if together > 1 else None)


class Grid(NamedTuple):
    """The blocks of one example's queries and keys: how many of each, and how large."""

    query_blocks: int
    query_block: int
    key_blocks: int
    key_block: int
    num_keys: int

    @classmethod
    def of(cls, num_queries: int, num_keys: int, block_size: int) -> "Grid":
        """As few blocks as will do, all of one size: what the last one lacks is less than one for each block."""
        counts = [max(1, -(-size // block_size)) for size in (num_queries, num_keys)]
        sizes = [-(-size // count) for size, count in zip((num_queries, num_keys), counts, strict=True)]
        return cls(counts[0], sizes[0], counts[1], sizes[1], num_keys)

    def by_query(self, array: Array, fill: float = 0.0) -> Array:
        """`[Q, …]` as `[blocks, queries of one, …]`."""
        padded = _pad(array, 0, self.query_blocks * self.query_block, fill)
        return padded.reshape(-1, self.query_block, *array.shape[1:])

    def by_key(self, array: Array) -> Array:
        """`[K, …]` as `[blocks, keys of one, …]`."""
        return _pad(array, 0, self.key_blocks * self.key_block).reshape(-1, self.key_block, *array.shape[1:])

    def padded(self, pairs: Pairs) -> Pairs:
        """The pairs with whole blocks along the axes that are not of size 1."""
        sizes = self.query_blocks * self.query_block, self.key_blocks * self.key_block

        def pad(array: Array) -> Array:
            for axis, size in enumerate(sizes):
                array = array if array.shape[axis] == 1 else _pad(array, axis, size)
            return array

        return jax.tree.map(pad, pairs)

    def cut(self, pairs: Pairs, i: Array, j: Array) -> "Block":
        """Of padded pairs, those of query block i and key block j."""

        def slice_(array: Array) -> Array:
            for axis, (n, size) in enumerate(((i, self.query_block), (j, self.key_block))):
                if array.shape[axis] != 1:
                    array = jax.lax.dynamic_slice_in_dim(array, n * size, size, axis)
            return array

        lens, mask, keep, uniform = jax.tree.map(slice_, pairs)
        positions = j * self.key_block + jnp.arange(self.key_block)
        whole = self.num_keys == self.key_blocks * self.key_block
        allowed = Pairs(lens, mask, None)._allowed(positions)
        if uniform is not None:
            allowed = allowed | uniform
        if not whole:
            exist = (positions < self.num_keys)[None]
            allowed = exist if allowed is None else allowed & exist
        return Block(allowed, keep, uniform)


class Block(NamedTuple):
    """What is said of the pairs of one block."""

    allowed: Bool[Array, "#query key"] | None
    keep: Bool[Array, "query key"] | None
    uniform: Bool[Array, "#query 1"] | None

    def mask(self, scores: Array) -> Array:
        """The scores that the softmax sees."""
        scores = scores if self.uniform is None else jnp.where(self.uniform, 0, scores)
        return scores if self.allowed is None else jnp.where(self.allowed, scores, -jnp.inf)

    def drop(self, weights: Array, rate: float) -> Array:
        return weights if self.keep is None else dropout(weights, rate, self.keep)


def _pad(array: Array, axis: int, size: int, fill: float = 0.0) -> Array:
    """Filled up at the end of an axis, to a size."""
    missing = [(0, size - n if i == axis else 0) for i, n in enumerate(array.shape)]
    return array if array.shape[axis] == size else jnp.pad(array, missing, constant_values=fill)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    static: Static, parameters: tuple[Array, ...], queries: Array, keys: Array, values: Array, pairs: Pairs
) -> Array:
    """The context `[Q, V]` of one example."""
    return _forward(static, parameters, queries, keys, values, pairs)[0]


def _forward(
    static: Static, parameters: tuple[Array, ...], queries: Array, keys: Array, values: Array, pairs: Pairs
) -> tuple[Array, tuple[Any, ...]]:
    num_queries, num_keys = queries.shape[0], keys.shape[0]
    grid = Grid.of(num_queries, num_keys, static.block_size)
    padded, dtype = grid.padded(pairs), queries.dtype
    key_blocks = (jnp.arange(grid.key_blocks), grid.by_key(keys), grid.by_key(values))

    def of_queries(block: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        i, query = block

        def add_keys(so_far: tuple[Array, Array, Array], block: tuple[Array, Array, Array]) -> tuple[Any, None]:
            highest, total, context = so_far
            j, key, value = block
            pairs = grid.cut(padded, i, j)
            scores = pairs.mask(static.score(query, key, *parameters))
            higher = jnp.maximum(highest, scores.max(axis=-1, initial=-jnp.inf))
            finite = jnp.where(higher == -jnp.inf, 0, higher)  # nothing allowed yet: −inf − (−inf) would be NaN
            exponents, rescale = jnp.exp(scores - finite[:, None]), jnp.exp(highest - finite)
            total = total * rescale + exponents.sum(axis=-1)
            context = context * rescale[:, None] + pairs.drop(exponents, static.dropout_rate) @ value
            return (higher, total, context), None

        rows = jnp.zeros(grid.query_block, dtype)
        start = rows - jnp.inf, rows, jnp.zeros((grid.query_block, values.shape[-1]), dtype)
        (highest, total, context), _ = jax.lax.scan(add_keys, start, key_blocks)
        total, highest = jnp.where(total > 0, total, 1), jnp.where(total > 0, highest, jnp.inf)  # of an empty row
        return context / total[:, None], highest, total

    blocks = jnp.arange(grid.query_blocks), grid.by_query(queries)
    context, highest, total = (x.reshape(-1, *x.shape[2:])[:num_queries] for x in jax.lax.map(of_queries, blocks))
    return context, (parameters, queries, keys, values, pairs, context, highest, total)


def _backward(static: Static, residuals: tuple[Any, ...], to_context: Array) -> tuple[Any, ...]:
    """From d, the gradient of a query's context o, to that of its scores s, block by block, with e = exp(s − m):

        p = e / l        ds = p (d · v − d · o) = e (d/l · v − d/l · o)
        dv = Σ_q p d = Σ_q e d/l        dqueries, dkeys, dparameters: the score's own derivative along ds

    so that l divides queries and never pairs. With dropout, e in dv and d · v are those of the kept pairs, over
    1 − rate; d · o is then Σ_k p (d · v) as before.
    """
    parameters, queries, keys, values, pairs, context, highest, total = residuals
    grid = Grid.of(queries.shape[0], keys.shape[0], static.block_size)
    padded = grid.padded(pairs)
    to_context = to_context / total[:, None]  # d/l from here on
    along = (to_context * context).sum(axis=-1)
    key_blocks = (jnp.arange(grid.key_blocks), grid.by_key(keys), grid.by_key(values))
    statistics = grid.by_query(highest, fill=jnp.inf), grid.by_query(along)
    query_blocks = jnp.arange(grid.query_blocks), grid.by_query(queries), grid.by_query(to_context), statistics

    def of_queries(so_far: Any, block: Any) -> tuple[Any, Array]:
        i, query, to_context, (highest, along) = block
        to_parameters, to_keys, to_values = so_far

        def of_keys(so_far: Any, block: tuple[Array, Array, Array]) -> tuple[Any, tuple[Array, Array]]:
            j, key, value = block
            to_parameters, to_query = so_far
            pairs = grid.cut(padded, i, j)
            scores, pull_back = jax.vjp(lambda *inputs: pairs.mask(static.score(*inputs)), query, key, *parameters)
            exponents = jnp.exp(scores - highest[:, None])
            to_value = transposed_product(pairs.drop(exponents, static.dropout_rate), to_context)
            to_weights = pairs.drop(to_context @ value.T, static.dropout_rate)
            more_query, to_key, *more_parameters = pull_back(exponents * (to_weights - along[:, None]))
            to_parameters = jax.tree.map(jnp.add, to_parameters, tuple(more_parameters))
            return (to_parameters, to_query + more_query), (to_key, to_value)

        start = to_parameters, jnp.zeros_like(query)
        (to_parameters, to_query), more = jax.lax.scan(of_keys, start, key_blocks)
        return (to_parameters, to_keys + more[0], to_values + more[1]), to_query

    start = jax.tree.map(jnp.zeros_like, (parameters, key_blocks[1], key_blocks[2]))
    (to_parameters, to_keys, to_values), to_queries = jax.lax.scan(of_queries, start, query_blocks)

    def joined(blocks: Array, like: Array) -> Array:
        return blocks.reshape(-1, like.shape[-1])[: like.shape[0]]

    return to_parameters, joined(to_queries, queries), joined(to_keys, keys), joined(to_values, values), None


_attend.defvjp(_forward, _backward)
