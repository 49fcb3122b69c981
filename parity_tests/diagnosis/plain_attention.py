"""PyTorch's fused attention step by step, so that a mistake can be planted in any of its steps."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

INF = float("-inf")


def _attend(
    query: Any, key: Any, value: Any, masks: list[Any], scale: float | None, causal: bool = False
) -> tuple[Any, Any]:
    """Return the result and the weights; a mask of booleans hides where it is true, another one is added."""
    scores = (query @ key.transpose(-2, -1)) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        masks = [~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), *masks]
    for mask in masks:
        scores = scores.masked_fill(mask, INF) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1)
    return weights @ value, weights


def scaled_dot_product_attention(
    _: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Attend as `torch.nn.functional.scaled_dot_product_attention`."""
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    masks = [] if attn_mask is None else [~attn_mask if attn_mask.dtype == torch.bool else attn_mask]
    return _attend(query, key, value, masks, scale, is_causal)[0]


def multi_head_attention_forward(
    function: Any, query: Any, key: Any, value: Any, embed_dim_to_check: int, num_heads: int, in_proj_weight: Any,
    in_proj_bias: Any, bias_k: Any, bias_v: Any, add_zero_attn: bool, dropout_p: float, out_proj_weight: Any,
    out_proj_bias: Any, training: bool = True, key_padding_mask: Any = None, need_weights: bool = True,
    attn_mask: Any = None, use_separate_proj_weight: bool = False, q_proj_weight: Any = None, k_proj_weight: Any = None,
    v_proj_weight: Any = None, static_k: Any = None, static_v: Any = None, average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:  # fmt: skip
    """Attend as `torch.nn.functional.multi_head_attention_forward`, without its rarest options."""
    if query.ndim == 2:
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        result = multi_head_attention_forward(
            *(function, query, key, value, embed_dim_to_check, num_heads, in_proj_weight, in_proj_bias, bias_k, bias_v),
            *(add_zero_attn, dropout_p, out_proj_weight, out_proj_bias, training, key_padding_mask, need_weights),
            *(attn_mask, use_separate_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight, static_k, static_v),
            average_attn_weights,
        )
        return tuple(x if x is None else x.squeeze(1 - i) for i, x in enumerate(result))
    matrices = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else in_proj_weight.chunk(3)
    biases = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
    projected = [F.linear(*each) for each in zip((query, key, value), matrices, biases, strict=True)]
    q, k, v = (x.unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3) for x in projected)  # [B, H, T, D]
    masks = [] if key_padding_mask is None else [key_padding_mask[..., None, None, :]]
    if attn_mask is not None:
        masks.append(attn_mask if attn_mask.ndim == 2 else attn_mask.unflatten(0, (-1, num_heads)))
    result, weights = _attend(q, k, v, masks, None)
    result = F.linear(result.permute(2, 0, 1, 3).flatten(-2), out_proj_weight, out_proj_bias)
    return result, (weights.mean(1) if average_attn_weights else weights) if need_weights else None


PLAIN: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": scaled_dot_product_attention,
    "multi_head_attention_forward": multi_head_attention_forward,
}
