"""Attention modules: they own the projections; the mathematics is in functional.

Source: d2l.ai, "Attention Scoring Functions", "Multi-Head Attention"; Bahdanau et al. 2015; Luong et al. 2015;
Vaswani et al. 2017. Parameter names are the book's. PyTorch needs sizes when a module is built: the modules with
parameters take query_size, key_size and value_size besides.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torch_ref.functional.attend import attend
from torch_ref.functional.checks import (
    check_choice,
    check_count,
    check_floating,
    check_min_rank,
    check_rate,
    check_shape,
    shape_text,
)
from torch_ref.functional.dropout import draw_keep_mask
from torch_ref.functional.masks import EMPTY_ROWS, attention_mask, zero_unattended
from torch_ref.functional.precision import common_dtype, widen
from torch_ref.functional.scores import additive_score, dot_score, gaussian_score, scaled_dot_score


class Memory(NamedTuple):
    """What does not change from one query to the next: the keys are projected once."""

    keys: Tensor | None  # [*batch, K, D]
    values: Tensor  # [*batch, K, V]
    mask: Tensor | None  # bool [*batch, 1 or Q, K]


class Attention(nn.Module):
    """The part that all attention modules share; a module says how it projects and how it scores.

    forward(queries [*batch, Q, Dq], keys [*batch, K, Dk], values [*batch, K, V], valid_lens [*batch] or [*batch, Q],
    mask bool broadcastable to [*batch, Q, K]) -> (context [*batch, Q, V], weights [*batch, Q, K] before dropout).
    Dropout acts on the weights: by keep_mask [*batch, Q, K] when one is given, else at random in training mode.
    Keys and values that no query of their example may attend to are zeroed before the projection, so that they reach no
    output and no gradient, the projections' included.
    Dtypes: a result has the one to which the inputs it is made of are promoted: the weights queries' and keys', the
    context those and the values'. The parameters' does not count.
    Errors: ValueError for wrong shapes, with both; TypeError for wrong dtypes.
    """

    query_size: int | None = None  # None: any number of features
    key_size: int | None = None
    value_size: int | None = None

    def __init__(self, dropout: float = 0.0, *, empty_row: str = "zero") -> None:
        super().__init__()
        check_rate("dropout", dropout)
        check_choice("empty_row", empty_row, EMPTY_ROWS)
        self.dropout = dropout
        self.empty_row = empty_row

    def context_size(self, value_size: int) -> int:
        """The number of features of a context."""
        return value_size

    def project_queries(self, queries: Tensor) -> Tensor:
        return queries

    def project_keys(self, keys: Tensor) -> Tensor:
        return keys

    def project_values(self, values: Tensor) -> Tensor:
        return values

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Projected queries and keys, widened -> scores [*batch, Q, K]."""
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
        self._check_queries(queries)
        self._check_memory(keys, values, batch=queries.shape[:-2])
        # Here the number of queries is known, which prepare has to take from the mask's own shape.
        allowed = attention_mask((*queries.shape[:-1], keys.shape[-2]), valid_lens, mask)
        memory = self.prepare(keys, values, mask=allowed)
        return self.attend(queries, memory, keep_mask, return_weights=return_weights)

    def prepare(
        self, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None, mask: Tensor | None = None
    ) -> Memory:
        """Keys [*batch, K, Dk] and values [*batch, K, V] -> Memory, the keys projected and the unattended zeroed."""
        self._check_memory(keys, values)
        allowed = _memory_mask(keys.shape[:-1], valid_lens, mask)
        keys = zero_unattended(keys, allowed)
        values = zero_unattended(values, allowed, self.empty_row)
        return Memory(self.project_keys(keys), self.project_values(values), allowed)

    def attend(
        self, queries: Tensor, memory: Memory, keep_mask: Tensor | None = None, *, return_weights: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """Queries [*batch, Q, Dq] -> (context [*batch, Q, V], weights [*batch, Q, K])."""
        self._check_queries(queries, batch=memory.values.shape[:-2])
        context, weights = self._attend(
            self.project_queries(queries), memory.keys, memory.values, memory.mask, keep_mask
        )
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

    def _check_queries(self, queries: Tensor, batch: Sequence[int] | None = None) -> None:
        check_floating("queries", queries)
        check_min_rank("queries", queries, ["Q", "D"])
        batch = queries.shape[:-2] if batch is None else batch
        check_shape("queries", queries, (*batch, "Q", self.query_size or "D"))

    def _check_memory(self, keys: Tensor, values: Tensor, batch: Sequence[int] | None = None) -> None:
        check_floating("keys", keys)
        check_floating("values", values)
        check_min_rank("keys", keys, ["K", "D"])
        batch = keys.shape[:-2] if batch is None else batch
        check_shape("keys", keys, (*batch, "K", self.key_size or "D"))
        check_shape("values", values, (*batch, keys.shape[-2], self.value_size or "V"))


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
        self.query_size = num_hiddens if query_size is None else query_size
        self.key_size = num_hiddens if key_size is None else key_size
        self.use_tanh = use_tanh
        self.W_q = nn.Linear(self.query_size, num_hiddens, bias=False)
        self.W_k = nn.Linear(self.key_size, num_hiddens, bias=False)
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
    """score = q . (W k), or that / sqrt(query_size) with scaled, for queries and keys of different length (Luong et al.
    2015, "general", which is not scaled).

    Parameters: W [query_size, key_size], applied to the keys, which are then projected once.
    """

    def __init__(
        self, query_size: int, key_size: int, dropout: float = 0.0, *, scaled: bool = False, empty_row: str = "zero"
    ) -> None:
        super().__init__(dropout, empty_row=empty_row)
        self.query_size, self.key_size = query_size, key_size
        self.scaled = scaled
        self.W = nn.Linear(key_size, query_size, bias=False)

    def project_keys(self, keys: Tensor) -> Tensor:
        return _project(self.W, keys)

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        return scaled_dot_score(queries, keys) if self.scaled else dot_score(queries, keys)


class GaussianAttention(Attention):
    """score = -|q - k|^2 / (2 sigma^2); no parameters (d2l.ai, "Attention Pooling by Similarity")."""

    def __init__(self, dropout: float = 0.0, *, sigma: float = 1.0, empty_row: str = "zero") -> None:
        super().__init__(dropout, empty_row=empty_row)
        if not sigma > 0:
            raise ValueError(f"sigma must be positive; got {sigma}")
        self.sigma = sigma

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        return gaussian_score(queries, keys, self.sigma)


class MultiHeadAttention(Attention):
    """head_i = scaled dot-product attention of the i-th slices of W_q q, W_k k, W_v v; context = W_o [heads].

    Parameters: W_q [H, query_size], W_k [H, key_size], W_v [H, value_size], W_o [H, H], with biases if use_bias.
    Shapes: context [*batch, Q, H], weights and keep_mask [*batch, heads, Q, K]; valid_lens and mask are those of
    [*batch, Q, K], the same for all heads.
    Errors: ValueError when num_heads does not divide num_hiddens.
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
        check_count("num_heads", num_heads, least=1)
        if num_hiddens % num_heads:
            raise ValueError(f"num_hiddens must be a multiple of num_heads; got {num_hiddens} and {num_heads}")
        self.num_hiddens, self.num_heads = num_hiddens, num_heads
        self.query_size = num_hiddens if query_size is None else query_size
        self.key_size = num_hiddens if key_size is None else key_size
        self.value_size = num_hiddens if value_size is None else value_size
        self.W_q = nn.Linear(self.query_size, num_hiddens, bias=use_bias)
        self.W_k = nn.Linear(self.key_size, num_hiddens, bias=use_bias)
        self.W_v = nn.Linear(self.value_size, num_hiddens, bias=use_bias)
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


def _memory_mask(shape: torch.Size, valid_lens: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """The mask [*batch, 1 or Q, K] for memory of `shape` [*batch, K]: the arguments' own shapes tell the queries."""
    *batch, num_keys = shape
    num_queries = 1
    if mask is not None and mask.ndim >= 2:
        num_queries = mask.shape[-2]
    if valid_lens is not None and valid_lens.ndim == len(batch) + 1:
        num_queries = valid_lens.shape[-1]
        if valid_lens.shape[:-1] != torch.Size(batch):
            expected = f"{shape_text(batch)} or {shape_text((*batch, 'Q'))}"
            raise ValueError(f"valid_lens must be {expected}; got {shape_text(valid_lens.shape)}")
    allowed = attention_mask((*batch, num_queries, num_keys), valid_lens, mask)
    return None if allowed is None else allowed.expand(*batch, num_queries, num_keys)


def _project(linear: nn.Linear, x: Tensor) -> Tensor:
    """linear(x) in the dtype of x, computed in that to which x and the parameters are promoted."""
    wide = common_dtype(x, linear.weight)
    bias = None if linear.bias is None else linear.bias.to(wide)
    return nn.functional.linear(x.to(wide), linear.weight.to(wide), bias).to(x.dtype)
