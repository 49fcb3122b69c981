"""Attention modules: they own the projections; the mathematics is in functional.

Source: d2l.ai, "Attention Scoring Functions", "Multi-Head Attention"; Bahdanau et al. 2015; Luong et al. 2015;
Vaswani et al. 2017. Parameter names are the book's. PyTorch needs sizes when a module is built, so the modules with
parameters also take query_size, key_size and value_size.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torch_ref.functional.attend import attend
from torch_ref.functional.dropout import draw_keep_mask
from torch_ref.functional.masks import attention_mask, zero_unattended
from torch_ref.functional.precision import common_dtype, widen
from torch_ref.functional.scores import additive_score, cosine_score, dot_score, gaussian_score, scaled_dot_score

__all__ = [
    "AdditiveAttention",
    "BilinearAttention",
    "CosineAttention",
    "DotProductAttention",
    "GaussianAttention",
    "MLPAttention",
    "Memory",
    "MultiHeadAttention",
]


class Memory(NamedTuple):
    """The part that is the same for all queries: the keys are projected once."""

    keys: Tensor | None  # [*batch, K, D]
    values: Tensor  # [*batch, K, V]
    mask: Tensor | None  # bool [*batch, 1 or Q, K]


class Attention(nn.Module):
    """The part that all attention modules share; a subclass projects and scores.

    forward(queries [*batch, Q, Dq], keys [*batch, K, Dk], values [*batch, K, V], valid_lens [*batch] or [*batch, Q],
    mask bool broadcastable to [*batch, Q, K]) -> (context [*batch, Q, V], weights [*batch, Q, K] before dropout).
    Dropout acts on the weights: by keep_mask [*batch, Q, K] when one is given, else at random in training mode.
    Keys and values that no query of their example may attend to are zeroed before the projection, so that they reach no
    output and no gradient, the projections' included.
    The weights have the dtype to which queries and keys are promoted, the context that of these and the values. The
    parameters' dtype does not count.
    """

    def __init__(self, dropout: float = 0.0, *, empty_row: str = "zero") -> None:
        super().__init__()
        self.dropout = dropout
        self.empty_row = empty_row

    def context_size(self, value_size: int) -> int:
        """Return the number of features of a context."""
        return value_size

    def project_queries(self, queries: Tensor) -> Tensor:
        return queries

    def project_keys(self, keys: Tensor) -> Tensor:
        return keys

    def project_values(self, values: Tensor) -> Tensor:
        return values

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Score projected and widened queries and keys: [*batch, Q, K]."""
        raise NotImplementedError

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        valid_lens: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        keep_mask: Tensor | None = None,
        return_weights: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        # Here the number of queries is known; prepare has to take it from the mask's own shape.
        allowed = attention_mask((*queries.shape[:-1], keys.shape[-2]), valid_lens, mask)
        memory = self.prepare(keys, values, mask=allowed)
        return self.attend(queries, memory, keep_mask, return_weights=return_weights)

    def prepare(
        self, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None, mask: Tensor | None = None
    ) -> Memory:
        """Project keys [*batch, K, Dk] and values [*batch, K, V]; zero what no query may attend to."""
        allowed = _memory_mask(keys.shape[:-1], valid_lens, mask)
        keys = zero_unattended(keys, allowed)
        values = zero_unattended(values, allowed, self.empty_row)
        return Memory(self.project_keys(keys), self.project_values(values), allowed)

    def attend(
        self, queries: Tensor, memory: Memory, keep_mask: Tensor | None = None, *, return_weights: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """Return the context [*batch, Q, V] and the weights [*batch, Q, K] of queries [*batch, Q, Dq]."""
        projected = self.project_queries(queries)
        context, weights = self._attend(projected, memory.keys, memory.values, memory.mask, keep_mask)
        dtype = common_dtype(queries, memory.keys, memory.values)
        return context.to(dtype), weights.to(common_dtype(queries, memory.keys)) if return_weights else None

    def _attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, keep_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        # Widened here, so that half-precision scores are not rounded on their way to the softmax.
        scores = self.score(*widen(queries, keys))
        if keep_mask is None and self.training and self.dropout > 0:
            keep_mask = draw_keep_mask(scores.shape, self.dropout, scores.device)
        return attend(
            scores, values, mask=mask, empty_row=self.empty_row, dropout_rate=self.dropout, keep_mask=keep_mask
        )


class AdditiveAttention(Attention):
    """score = w_v . tanh(W_q q + W_k k); no biases (Bahdanau et al. 2015; d2l.ai).

    Parameters: W_q [H, query_size], W_k [H, key_size], w_v [1, H]; the sizes default to num_hiddens.
    """

    def __init__(
        self,
        num_hiddens: int,
        dropout: float = 0.0,
        *,
        use_tanh: bool = True,
        empty_row: str = "zero",
        query_size: int | None = None,
        key_size: int | None = None,
    ) -> None:
        super().__init__(dropout, empty_row=empty_row)
        self.use_tanh = use_tanh
        self.W_q = nn.Linear(query_size or num_hiddens, num_hiddens, bias=False)
        self.W_k = nn.Linear(key_size or num_hiddens, num_hiddens, bias=False)
        self.w_v = nn.Linear(num_hiddens, 1, bias=False)

    def project_queries(self, queries: Tensor) -> Tensor:
        return _project(self.W_q, queries)

    def project_keys(self, keys: Tensor) -> Tensor:
        return _project(self.W_k, keys)

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        return additive_score(queries, keys, self.w_v.weight.squeeze(0), use_tanh=self.use_tanh)


MLPAttention = AdditiveAttention
"""The name of an older edition of the book."""


class DotProductAttention(Attention):
    """score = q . k / sqrt(D), or q . k with scaled=False; no parameters (Vaswani et al. 2017; Luong et al. 2015)."""

    def __init__(self, dropout: float = 0.0, *, scaled: bool = True, empty_row: str = "zero") -> None:
        super().__init__(dropout, empty_row=empty_row)
        self.scaled = scaled

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        return scaled_dot_score(queries, keys) if self.scaled else dot_score(queries, keys)


class BilinearAttention(Attention):
    """score = q . (W k), or that / sqrt(query_size) with scaled=True, for queries and keys of different length.

    Parameters: W [query_size, key_size], applied to the keys, which are then projected once. Luong et al. 2015 call
    the unscaled form "general".
    """

    def __init__(
        self, query_size: int, key_size: int, dropout: float = 0.0, *, scaled: bool = False, empty_row: str = "zero"
    ) -> None:
        super().__init__(dropout, empty_row=empty_row)
        self.scaled = scaled
        self.W = nn.Linear(key_size, query_size, bias=False)

    def project_keys(self, keys: Tensor) -> Tensor:
        return _project(self.W, keys)

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        return scaled_dot_score(queries, keys) if self.scaled else dot_score(queries, keys)


class CosineAttention(Attention):
    """score = cos(q, k) / temperature, where the temperature is learnt as its logarithm (Graves et al. 2014)."""

    def __init__(self, dropout: float = 0.0, *, temperature: float = 0.1, empty_row: str = "zero") -> None:
        super().__init__(dropout, empty_row=empty_row)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        return cosine_score(queries, keys, self.log_temperature.exp())


class GaussianAttention(Attention):
    """score = -|q - k|^2 / (2 sigma^2); no parameters (d2l.ai, "Attention Pooling by Similarity")."""

    def __init__(self, dropout: float = 0.0, *, sigma: float = 1.0, empty_row: str = "zero") -> None:
        super().__init__(dropout, empty_row=empty_row)
        self.sigma = sigma

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        return gaussian_score(queries, keys, self.sigma)


class MultiHeadAttention(Attention):
    """head_i = scaled dot-product attention of the i-th slices of W_q q, W_k k, W_v v; context = W_o [heads].

    Parameters: W_q [H, query_size], W_k [H, key_size], W_v [H, value_size], W_o [H, H], with biases if use_bias. The
    number of heads divides num_hiddens.
    Shapes: context [*batch, Q, H], weights and keep_mask [*batch, heads, Q, K]; valid_lens and mask are those of
    [*batch, Q, K], the same for all heads.
    """

    def __init__(
        self,
        num_hiddens: int,
        num_heads: int,
        dropout: float = 0.0,
        *,
        use_bias: bool = False,
        empty_row: str = "zero",
        query_size: int | None = None,
        key_size: int | None = None,
        value_size: int | None = None,
    ) -> None:
        super().__init__(dropout, empty_row=empty_row)
        if num_heads < 1 or num_hiddens % num_heads:
            raise ValueError(f"num_hiddens must be a multiple of num_heads; got {num_hiddens} for {num_heads} heads")
        self.num_hiddens, self.num_heads = num_hiddens, num_heads
        self.W_q = nn.Linear(query_size or num_hiddens, num_hiddens, bias=use_bias)
        self.W_k = nn.Linear(key_size or num_hiddens, num_hiddens, bias=use_bias)
        self.W_v = nn.Linear(value_size or num_hiddens, num_hiddens, bias=use_bias)
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=use_bias)

    def context_size(self, value_size: int) -> int:
        return self.num_hiddens

    def project_queries(self, queries: Tensor) -> Tensor:
        return _project(self.W_q, queries)

    def project_keys(self, keys: Tensor) -> Tensor:
        return _project(self.W_k, keys)

    def project_values(self, values: Tensor) -> Tensor:
        return _project(self.W_v, values)

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        return scaled_dot_score(queries, keys)

    def _attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, keep_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        dtype = common_dtype(queries, keys, values)
        queries, keys, values = map(self._split_heads, (queries, keys, values))  # [*batch, heads, Q or K, H / heads]
        mask = None if mask is None else mask.unsqueeze(-3)
        context, weights = super()._attend(queries, keys, values, mask, keep_mask)
        context = context.to(dtype).transpose(-3, -2).flatten(-2)  # [*batch, Q, H]
        return _project(self.W_o, context), weights

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)


ATTENTIONS: dict[str, Callable[..., Attention]] = {
    "additive": lambda size, keys, heads, **options: AdditiveAttention(size, key_size=keys, **options),
    "dot": lambda size, keys, heads, **options: DotProductAttention(scaled=False, **options),
    "scaled_dot": lambda size, keys, heads, **options: DotProductAttention(**options),
    "bilinear": lambda size, keys, heads, **options: BilinearAttention(size, keys, **options),
    "scaled_bilinear": lambda size, keys, heads, **options: BilinearAttention(size, keys, scaled=True, **options),
    "cosine": lambda size, keys, heads, **options: CosineAttention(**options),
    "gaussian": lambda size, keys, heads, **options: GaussianAttention(**options),
    "multi_head": lambda size, keys, heads, **options: MultiHeadAttention(
        size, heads, key_size=keys, value_size=keys, **options
    ),
    "sum": lambda size, keys, heads, **options: AdditiveAttention(size, key_size=keys, use_tanh=False, **options),
}
"""Every attention by its name, as a function of the size of hidden layer and queries, the size of keys and values, the
number of heads, and the module's further options."""


def make_attention(
    name: str,
    num_hiddens: int,
    dropout: float = 0.0,
    *,
    key_size: int | None = None,
    num_heads: int = 4,
    **options: Any,
) -> Attention:
    """Build the module of a name in ATTENTIONS, for queries of num_hiddens and keys and values of key_size features.

    key_size defaults to num_hiddens. Dot product and Gaussian attention need it to be num_hiddens.
    """
    if name not in ATTENTIONS:
        raise ValueError(f"attention must be one of {', '.join(ATTENTIONS)}; got {name!r}")
    return ATTENTIONS[name](num_hiddens, key_size or num_hiddens, num_heads, dropout=dropout, **options)


def _memory_mask(shape: torch.Size, valid_lens: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """Make the mask [*batch, 1 or Q, K] for keys of `shape` [*batch, K]; the arguments' own shapes give Q."""
    *batch, num_keys = shape
    num_queries = 1
    if mask is not None and mask.ndim >= 2:
        num_queries = mask.shape[-2]
    if valid_lens is not None and valid_lens.ndim == len(batch) + 1:
        num_queries = valid_lens.shape[-1]
    allowed = attention_mask((*batch, num_queries, num_keys), valid_lens, mask)
    return None if allowed is None else allowed.expand(*batch, num_queries, num_keys)


def _project(linear: nn.Linear, x: Tensor) -> Tensor:
    """Compute linear(x) in the dtype to which x and the parameters are promoted; return it in the dtype of x."""
    wide = common_dtype(x, linear.weight)
    bias = None if linear.bias is None else linear.bias.to(wide)
    return nn.functional.linear(x.to(wide), linear.weight.to(wide), bias).to(x.dtype)
