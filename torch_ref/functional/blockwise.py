"""Attention by blocks must equal attention itself, so here it is attention itself.

Source: Rabe and Staats 2021, "Self-attention Does Not Need O(n²) Memory": the memory differs and the result does not.
"""

from collections.abc import Callable

from torch import Tensor

from torch_ref.functional.attend import attend
from torch_ref.functional.masks import attention_mask, zero_unattended
from torch_ref.functional.precision import common_dtype, widen


def blockwise_attention(
    score: Callable[..., Tensor],
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    valid_lens: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    parameters: tuple[Tensor, ...] = (),
    empty_row: str = "zero",
    dropout_rate: float = 0.0,
    keep_mask: Tensor | None = None,
    block_size: int = 1024,
) -> Tensor:
    """context = attend(score(queries, keys, *parameters), values, ...); the block size has no effect here.

    Shapes: queries [*batch, Q, Dq], keys [*batch, K, Dk], values [*batch, K, V], keep_mask [*batch, Q, K] ->
    [*batch, Q, V].
    A key or value that no query of its example may attend to reaches neither the context nor a gradient, NaN included.
    """
    dtype = common_dtype(queries, keys, values, *parameters)
    queries, keys, values, *wide_parameters = widen(queries, keys, values, *parameters)
    allowed = attention_mask((*queries.shape[:-1], keys.shape[-2]), valid_lens, mask)
    scores = score(queries, zero_unattended(keys, allowed), *wide_parameters)
    context, _ = attend(
        scores, values, mask=allowed, empty_row=empty_row, dropout_rate=dropout_rate, keep_mask=keep_mask
    )
    return context.to(dtype)
