"""Attention modules: the parameters of the scoring functions, and a memory of projected keys.

Every module can be called at once, or in two steps if many sets of queries attend to the same keys:

    context, weights = module.apply(params, queries, keys, values, valid_lens)

    memory = module.apply(params, keys, values, valid_lens, method="prepare")   # once: the keys projected, the mask
    context, weights = module.apply(params, queries, memory, method="attend")   # for each set of queries

The weights have the dtype to which queries and keys are promoted, and the context that of queries, keys and values. The
parameters' dtype does not count.

`ATTENTIONS` names all of them, and `make_attention` builds one by its name.

Source: https://d2l.ai/chapter_attention-mechanisms-and-transformers/attention-scoring-functions.html
"""

import math
from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Num

from jax_attn.functional.attend import weigh, zero_unattended_values
from jax_attn.functional.blockwise import blockwise_attention
from jax_attn.functional.checks import (
    as_array,
    require_above_zero,
    require_float,
    require_rate,
    require_same_batch,
    require_same_length,
    wide_dtype,
)
from jax_attn.functional.dropout import drop
from jax_attn.functional.dropout import keep_mask as draw_keep_mask
from jax_attn.functional.masks import attention_mask, zero_unattended
from jax_attn.functional.scores import additive_score, cosine_score, dot_score, gaussian_score, scaled_dot_score
from jax_attn.functional.softmax import EmptyRow
from jax_attn.modules.dense import Dense

__all__ = [
    "AdditiveAttention",
    "Attention",
    "BilinearAttention",
    "CosineAttention",
    "DotProductAttention",
    "GaussianAttention",
    "MLPAttention",
    "Memory",
    "MultiHeadAttention",
]


Form = Literal["auto", "plain", "blockwise"]

LARGE = 2**18
"""With so many pairs of a query and a key, `form="auto"` takes the blockwise form. Measured on a CPU at 512 × 512, it
is faster with dot products, and as fast with additive scores, whose gradient is a sixth slower."""


class Memory(NamedTuple):
    """Keys and values that are prepared once, for all queries to come."""

    keys: Float[Array, "*batch key feature"]
    """Projected as the scoring function needs them; zero where no query may attend."""
    values: Float[Array, "*batch key value"]
    """Zero where no query gives them weight."""
    mask: Bool[Array, "*batch query key"] | None
    """True = may attend; the query axis has size 1 when one length serves all queries."""


class Attention(nn.Module, kw_only=True):
    """The base class of attention modules. A subclass defines how it projects and scores, and has a field `dropout`.

    Args of every subclass:
        dropout: the dropout rate of the weights.
        empty_row: what a query that may attend to nothing gets, see `masked_softmax`.
        form: how the context is computed if the weights are not asked for. "plain" holds all weights, "blockwise" does
            not (see `blockwise_attention`), and "auto" takes the blockwise form for 2¹⁸ or more pairs of a query and a
            key. With `return_weights=True` the form is always plain.
        dtype: the dtype of the projections; by default inputs and parameters are promoted.
        param_dtype: the parameters' dtype.
    """

    empty_row: EmptyRow = "zero"
    form: Form = "auto"
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        if self.form not in get_args(Form):
            raise ValueError(f"form must be one of {get_args(Form)}; got {self.form!r}")
        require_rate(dropout=self.dropout)  # type: ignore[attr-defined]  # a field of every subclass, after its own
        super().__post_init__()

    def project_queries(self, queries: Array) -> Array:
        """Project the queries; by default they stay as they are."""
        return queries

    def project_keys(self, keys: Array, query_size: int) -> Array:
        """Project the keys, which are done once; by default they stay as they are."""
        return keys

    def project_values(self, values: Array) -> Array:
        """Project the values; by default they stay as they are."""
        return values

    def scoring(self) -> tuple[Callable[..., Array], tuple[Array, ...]]:
        """Return a function of `functional.scores`, and the parameters that it takes after queries and keys."""
        raise NotImplementedError

    @property
    def heads(self) -> tuple[int, ...]:
        """The axes that the weights have between the batch and the queries: by default none."""
        return ()

    def context_size(self, memory: Memory) -> int:
        """Return the number of features of the context that `attend` computes: by default that of the values."""
        return memory.values.shape[-1]

    def prepare(
        self,
        keys: Float[Array, "*batch key feature"],
        values: Float[Array, "*batch key value"],
        valid_lens: Num[Array, "..."] | None = None,
        mask: Bool[Array, "..."] | None = None,
        *,
        query_size: int | None = None,
    ) -> Memory:
        """Project the keys and values once, for all queries to come.

        Args:
            keys, values: `[*batch, K, D]` and `[*batch, K, V]`.
            valid_lens: `[*batch]`, or `[*batch, Q]` with one length for each query.
            mask: boolean, broadcastable to `[*batch, Q, K]`.
            query_size: the number of features of the queries, by default that of the keys; for bilinear attention.
        """
        keys, values = as_array("keys", keys), as_array("values", values)
        require_float(keys=keys, values=values)
        require_same_length(keys=keys, values=values)
        *batch, num_keys, _ = keys.shape
        num_queries = 1  # enough if lengths and mask are the same for all queries
        if valid_lens is not None and jnp.ndim(valid_lens) == len(batch) + 1:
            num_queries = jnp.shape(valid_lens)[-1]
        elif mask is not None and jnp.ndim(mask) >= 2:
            num_queries = jnp.shape(mask)[-2]
        allowed = attention_mask((*batch, num_queries, num_keys), valid_lens, mask)
        projected = self.project_keys(zero_unattended(keys, allowed), query_size or keys.shape[-1])
        values_ = self.project_values(zero_unattended_values(values, allowed, self.empty_row))
        return Memory(projected.astype(keys.dtype), values_.astype(values.dtype), allowed)

    def attend(
        self,
        queries: Float[Array, "*batch query feature"],
        memory: Memory,
        *,
        deterministic: bool = True,
        keep_mask: Bool[Array, "*weighted query key"] | None = None,
        return_weights: bool = True,
    ) -> tuple[Float[Array, "*weighted query value"], Float[Array, "*weighted query key"] | None]:
        """Compute context and weights of queries over a prepared memory; arguments and results as in `__call__`."""
        queries = as_array("queries", queries)
        require_float(queries=queries)
        weights_dtype = jnp.result_type(queries, memory.keys)
        context_dtype = jnp.promote_types(weights_dtype, memory.values.dtype)
        wide = wide_dtype(queries, memory.keys, memory.values)
        queries, (score, parameters) = self.project_queries(queries), self.scoring()
        shape = (*queries.shape[:-1], memory.keys.shape[-2])  # with MultiHeadAttention's heads among the leading axes
        rate: float = self.dropout  # type: ignore[attr-defined]  # a field of every subclass, after its own
        if keep_mask is None and rate > 0 and not deterministic:
            keep_mask = draw_keep_mask(self.make_rng("dropout"), rate, shape)
        if not return_weights and self._by_blocks(shape):
            context = blockwise_attention(
                score, queries, memory.keys, memory.values.astype(wide), mask=memory.mask, parameters=parameters,
                empty_row=self.empty_row, dropout_rate=rate, keep_mask=keep_mask,
            )  # fmt: skip
            return context.astype(context_dtype), None
        scores = score(queries.astype(wide), memory.keys.astype(wide), *parameters)
        dropped = partial(drop, rate=rate, keep_mask=keep_mask)
        context, weights, _ = weigh(scores, memory.values, memory.mask, self.empty_row, dropped)
        return context.astype(context_dtype), weights.astype(weights_dtype) if return_weights else None

    def _by_blocks(self, shape: tuple[int, ...]) -> bool:
        return self.form == "blockwise" or (self.form == "auto" and shape[-2] * shape[-1] >= LARGE)

    def __call__(
        self,
        queries: Float[Array, "*batch query query_feature"],
        keys: Float[Array, "*batch key key_feature"],
        values: Float[Array, "*batch key value"],
        valid_lens: Num[Array, "..."] | None = None,
        mask: Bool[Array, "..."] | None = None,
        *,
        deterministic: bool = True,
        keep_mask: Bool[Array, "*weighted query key"] | None = None,
        return_weights: bool = True,
    ) -> tuple[Float[Array, "*batch query context"], Float[Array, "*weighted query key"] | None]:
        r"""Compute context and weights.

        .. math:: \mathrm{context} = \mathrm{softmax}(a(\mathrm{queries}, \mathrm{keys})) \, \mathrm{values}

        Args:
            queries, keys, values: `[*batch, Q, D]`, `[*batch, K, D]`, `[*batch, K, V]`.
            valid_lens: `[*batch]`, one length for all queries, or `[*batch, Q]`, one for each.
            mask: boolean, broadcastable to `[*batch, Q, K]`; True = may attend. With both, both must allow.
            deterministic: False turns dropout on, which draws from the stream "dropout".
            keep_mask: `[*batch, Q, K]`, the entries that dropout keeps; they are then not drawn.
            return_weights: False returns None in their place, and allows the blockwise form, see `form`.

        Returns:
            The context `[*batch, Q, V]` and the weights `[*batch, Q, K]`, before dropout.

        Raises:
            ValueError, TypeError: a shape, rank or dtype does not fit; the message names both shapes.
        """
        require_float(queries=queries, keys=keys)
        require_same_batch(keys=keys, queries=queries)
        allowed = attention_mask((*queries.shape[:-1], keys.shape[-2]), valid_lens, mask)
        memory = self.prepare(keys, values, mask=allowed, query_size=queries.shape[-1])
        return self.attend(
            queries, memory, deterministic=deterministic, keep_mask=keep_mask, return_weights=return_weights
        )


class Kernel(nn.Module):
    """The kernel of a Dense layer without the layer, for a product that is computed elsewhere."""

    features: int
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, input_size: int) -> Float[Array, "{input_size} {self.features}"]:
        shape = (input_size, self.features)
        return self.param("kernel", nn.initializers.lecun_normal(), shape, self.param_dtype)


class DotProductAttention(Attention):
    r"""Attention by the inner product, which is not divided with `scaled=False`; no parameters.

    .. math:: a(q, k) = q^\top k / \sqrt{D}
    """

    dropout: float = 0.0
    scaled: bool = field(default=True, kw_only=True)

    def scoring(self) -> tuple[Callable[..., Array], tuple[Array, ...]]:
        return scaled_dot_score if self.scaled else dot_score, ()


class GaussianAttention(Attention):
    r"""Attention as kernel regression; no parameters.

    .. math:: a(q, k) = -\|q - k\|^2 / (2 \sigma^2)
    """

    dropout: float = 0.0
    sigma: float = field(default=1.0, kw_only=True)

    def scoring(self) -> tuple[Callable[..., Array], tuple[Array, ...]]:
        return partial(gaussian_score, sigma=self.sigma), ()


class CosineAttention(Attention):
    r"""Attention by the cosine, with a learnt temperature τ (Graves et al., 2014; Liu et al., 2022).

    .. math:: a(q, k) = \frac{q^\top k}{\|q\| \, \|k\| \, \tau}

    Parameters: `log_temperature`, without axes: τ = exp(log_temperature) stays positive.

    Args:
        temperature: τ before the first step. The smaller it is, the sharper are the weights.
    """

    dropout: float = 0.0
    temperature: float = field(default=0.1, kw_only=True)

    def setup(self) -> None:
        require_above_zero(temperature=self.temperature)
        start = nn.initializers.constant(math.log(self.temperature))
        self.log_temperature = self.param("log_temperature", start, (), self.param_dtype)

    def scoring(self) -> tuple[Callable[..., Array], tuple[Array, ...]]:
        return cosine_score, (jnp.exp(self.log_temperature),)


class BilinearAttention(Attention):
    r"""Attention by a matrix, for queries and keys of different length (Luong et al., 2015, "general").

    .. math:: a(q, k) = q^\top W k

    Parameters: `W`, a Dense layer without bias from the keys' features to the queries', so that W k is computed once.

    Args:
        scaled: divide by √D, with D the queries' features, as scaled dot products do. Luong's score is not scaled.
    """

    dropout: float = 0.0
    scaled: bool = field(default=False, kw_only=True)

    @nn.compact
    def project_keys(self, keys: Array, query_size: int) -> Array:
        return Dense(query_size, use_bias=False, dtype=self.dtype, param_dtype=self.param_dtype, name="W")(keys)

    def scoring(self) -> tuple[Callable[..., Array], tuple[Array, ...]]:
        return scaled_dot_score if self.scaled else dot_score, ()


class AdditiveAttention(Attention):
    r"""Additive attention (Bahdanau et al., 2015).

    .. math:: a(q, k) = w_v^\top \tanh(W_q q + W_k k)

    Parameters: `W_q`, `W_k` (Dense to `num_hiddens`) and `w_v` (Dense to 1), none with a bias: the book's names.

    Args:
        num_hiddens: H.
        use_tanh: see `additive_score`.
    """

    num_hiddens: int
    dropout: float = 0.0
    use_tanh: bool = field(default=True, kw_only=True)

    def setup(self) -> None:
        def dense(features: int) -> Dense:
            return Dense(features, use_bias=False, dtype=self.dtype, param_dtype=self.param_dtype)

        self.W_q, self.W_k = dense(self.num_hiddens), dense(self.num_hiddens)
        self.w_v = Kernel(1, param_dtype=self.param_dtype)

    def project_keys(self, keys: Array, query_size: int) -> Array:
        return self.W_k(keys)

    def project_queries(self, queries: Array) -> Array:
        return self.W_q(queries)

    def scoring(self) -> tuple[Callable[..., Array], tuple[Array, ...]]:
        score = partial(additive_score, use_tanh=self.use_tanh)
        return score, (self.w_v(self.num_hiddens)[:, 0],)


MLPAttention = AdditiveAttention
"""The name of additive attention in the book's older editions."""


class MultiHeadAttention(Attention):
    r"""Scaled dot-product attention in several heads, each in a subspace of its own (Vaswani et al., 2017).

    .. math::
        \mathrm{head}_i &= \mathrm{attention}(W_{q,i} Q, W_{k,i} K, W_{v,i} V) \\
        \mathrm{context} &= W_o [\mathrm{head}_1; …; \mathrm{head}_h]

    Lengths and mask are the same for every head. Weights and an explicit keep-mask are `[*batch, heads, Q, K]`.

    Parameters: `W_q`, `W_k`, `W_v`, `W_o`, each a Dense layer to `num_hiddens` features.

    Args:
        num_hiddens: the number of features of all heads together, and of the result.
        num_heads: must divide `num_hiddens`.
        use_bias: whether the four projections have biases.
        kernel_init: draws the four kernels.

    Source: https://d2l.ai/chapter_attention-mechanisms-and-transformers/multihead-attention.html
    """

    num_hiddens: int
    num_heads: int
    dropout: float = 0.0
    use_bias: bool = False
    kernel_init: nn.initializers.Initializer = field(default=nn.initializers.lecun_normal(), kw_only=True)

    def setup(self) -> None:
        if self.num_heads < 1 or self.num_hiddens % self.num_heads:
            raise ValueError(
                f"num_hiddens must be a multiple of num_heads; got {self.num_hiddens} for {self.num_heads} heads"
            )

        def dense() -> Dense:
            return Dense(self.num_hiddens, self.use_bias, self.dtype, self.param_dtype, kernel_init=self.kernel_init)

        self.W_q, self.W_k, self.W_v, self.W_o = dense(), dense(), dense(), dense()

    def project_queries(self, queries: Array) -> Array:
        return self._split(self.W_q(queries))

    def project_keys(self, keys: Array, query_size: int) -> Array:
        return self._split(self.W_k(keys))

    def project_values(self, values: Array) -> Array:
        return self._split(self.W_v(values))

    def scoring(self) -> tuple[Callable[..., Array], tuple[Array, ...]]:
        return scaled_dot_score, ()

    @property
    def heads(self) -> tuple[int, ...]:
        return (self.num_heads,)

    def context_size(self, memory: Memory) -> int:
        return self.num_hiddens

    def prepare(self, *args: Any, **kwargs: Any) -> Memory:
        memory = super().prepare(*args, **kwargs)
        return memory if memory.mask is None else memory._replace(mask=jnp.expand_dims(memory.mask, -3))

    def attend(self, queries: Array, memory: Memory, **kwargs: Any) -> tuple[Array, Array | None]:
        context, weights = super().attend(queries, memory, **kwargs)
        joined = jnp.swapaxes(context, -3, -2)  # [*batch, Q, heads, H / heads]
        joined = joined.reshape(*joined.shape[:-2], self.num_hiddens)
        return self.W_o(joined).astype(context.dtype), weights

    def _split(self, x: Array) -> Array:
        """Turn `[*batch, T, H]` into `[*batch, heads, T, H / heads]`."""
        return jnp.swapaxes(x.reshape(*x.shape[:-1], self.num_heads, x.shape[-1] // self.num_heads), -3, -2)


ATTENTIONS: dict[str, Callable[..., Attention]] = {
    "additive": lambda size, heads, **fields: AdditiveAttention(size, **fields),
    "dot": lambda size, heads, **fields: DotProductAttention(scaled=False, **fields),
    "scaled_dot": lambda size, heads, **fields: DotProductAttention(**fields),
    "bilinear": lambda size, heads, **fields: BilinearAttention(**fields),
    "scaled_bilinear": lambda size, heads, **fields: BilinearAttention(scaled=True, **fields),
    "cosine": lambda size, heads, **fields: CosineAttention(**fields),
    "gaussian": lambda size, heads, **fields: GaussianAttention(**fields),
    "multi_head": lambda size, heads, **fields: MultiHeadAttention(size, heads, **fields),
    "sum": lambda size, heads, **fields: AdditiveAttention(size, use_tanh=False, **fields),
}
"""Every attention by its name, as a function of `num_hiddens`, `num_heads` and the module's other fields."""


def make_attention(
    name: str, num_hiddens: int, dropout: float = 0.0, *, num_heads: int = 4, **fields: Any
) -> Attention:
    """Build the attention module of a name in `ATTENTIONS`.

    Args:
        name: see `ATTENTIONS`.
        num_hiddens: the width of additive, sum and multi-head attention. The others take theirs from the keys.
        dropout: the dropout rate of the weights.
        num_heads: the number of heads of multi-head attention.
        fields: further fields of the module, such as `empty_row` or `dtype`.

    Raises:
        ValueError: the name is unknown.
    """
    if name not in ATTENTIONS:
        raise ValueError(f"attention must be one of {(*ATTENTIONS, 'none')}; got {name!r}")
    return ATTENTIONS[name](num_hiddens, num_heads, dropout=dropout, **fields)
