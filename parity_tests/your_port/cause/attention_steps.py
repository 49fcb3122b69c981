"""PyTorch's fused attention step by step, so that a mistake can be planted in any of its steps."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812


def scaled_dot_product_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Attend as `torch.nn.functional.scaled_dot_product_attention`."""
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    hidden = ~attn_mask if attn_mask is not None and attn_mask.dtype == torch.bool else attn_mask
    return _attend(query, key, value, [] if hidden is None else [hidden], scale, is_causal)[0]


def _attend(
    query: Any, key: Any, value: Any, masks: list[Any], scale: float | None = None, causal: bool = False
) -> tuple[Any, Any]:
    """Return the result and the weights; a mask of booleans hides where it is true, another one is added."""
    scores = (query @ key.transpose(-2, -1)) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        masks = [~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), *masks]
    for mask in masks:
        scores = scores.masked_fill(mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1)
    return weights @ value, weights


def multi_head_attention_forward(*args: Any, **options: Any) -> Any:
    """Attend as `torch.nn.functional.multi_head_attention_forward`, without its rarest options."""
    bound = inspect.signature(F.multi_head_attention_forward).bind(*args, **options)
    bound.apply_defaults()
    given = bound.arguments
    bias, heads = given["in_proj_bias"], given["num_heads"]
    apart = [given[f"{part}_proj_weight"] for part in "qkv"]
    matrices = apart if given["use_separate_proj_weight"] else given["in_proj_weight"].chunk(3)
    biases = [None] * 3 if bias is None else bias.chunk(3)
    projected = [F.linear(given[x], w, b) for x, w, b in zip(("query", "key", "value"), matrices, biases, strict=True)]
    q, k, v = (x.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3) for x in projected)  # [B, H, T, D]
    hidden, mask = given["key_padding_mask"], given["attn_mask"]
    masks = [] if hidden is None else [hidden[..., None, None, :]]
    if mask is not None:
        masks.append(mask if mask.ndim == 2 else mask.unflatten(0, (-1, heads)))
    result, weights = _attend(q, k, v, masks)
    result = F.linear(result.permute(2, 0, 1, 3).flatten(-2), given["out_proj_weight"], given["out_proj_bias"])
    weights = weights.mean(1) if given["average_attn_weights"] else weights
    return result, weights if given["need_weights"] else None


IN_STEPS: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (scaled_dot_product_attention, multi_head_attention_forward)
}
"""By the name of the fused function; the same arguments."""
