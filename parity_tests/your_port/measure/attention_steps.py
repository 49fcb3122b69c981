"""PyTorch's fused attention step by step: its scores, and a place for a mistake in any of its steps."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812


def scaled_dot_product_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Attend as `torch.nn.functional.scaled_dot_product_attention`."""
    if enable_gqa:
        key, value = _repeated(key, query), _repeated(value, query)
    hidden = ~attn_mask if attn_mask is not None and attn_mask.dtype == torch.bool else attn_mask
    return _attend(query, key, value, [] if hidden is None else [hidden], scale, is_causal)[0]


def _attend(
    query: Any, key: Any, value: Any, masks: list[Any], scale: float | None = None, causal: bool = False
) -> tuple[Any, Any]:
    """Return the result and the weights; a mask of booleans hides where it is true, another one is added."""
    scores = scores_of_products(query, key, scale=scale)
    if causal:
        masks = [~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), *masks]
    for mask in masks:
        scores = scores.masked_fill(mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1)
    return weights @ value, weights


def multi_head_attention_forward(*args: Any, **options: Any) -> Any:
    """Attend as `torch.nn.functional.multi_head_attention_forward`, without its rarest options."""
    given = _named(args, options)
    q, k, v = (_projected(given, i) for i in range(3))
    more = [[x.unflatten(-1, (given["num_heads"], -1)).movedim(0, -2).expand(*k.shape[:-2], 1, -1) for x in pair]
            for pair in [(given["bias_k"], given["bias_v"])] if pair[0] is not None]  # fmt: skip
    more += [[torch.zeros_like(x[..., :1, :]) for x in (k, v)]] * given["add_zero_attn"]
    for one in more:  # a key and a value that any query may attend to
        k, v = (torch.cat([x, y], -2) for x, y in zip((k, v), one, strict=True))
        given |= {name: x if x is None else F.pad(x, (0, 1)) for name, x in given.items() if name.endswith("_mask")}
    hidden, mask = given["key_padding_mask"], given["attn_mask"]
    masks = [] if hidden is None else [hidden[..., None, None, :]]
    if mask is not None:
        masks.append(mask if mask.ndim == 2 else mask.unflatten(0, (-1, given["num_heads"])))
    result, weights = _attend(q, k, v, masks)
    result = F.linear(result.permute(2, 0, 1, 3).flatten(-2), given["out_proj_weight"], given["out_proj_bias"])
    if not given["need_weights"]:
        return result, None
    return result, weights.mean(1) if given["average_attn_weights"] else weights


def _named(args: Any, options: Any) -> dict[str, Any]:
    bound = inspect.signature(F.multi_head_attention_forward).bind(*args, **options)
    bound.apply_defaults()
    return bound.arguments


def _projected(given: dict[str, Any], i: int) -> Any:
    """Project the queries, keys or values, and split them into heads: [..., heads, time, size]."""
    separate, bias = given["use_separate_proj_weight"], given["in_proj_bias"]
    matrix = given[f"{'qkv'[i]}_proj_weight"] if separate else given["in_proj_weight"].chunk(3)[i]
    x = F.linear(given[("query", "key", "value")[i]], matrix, None if bias is None else bias.chunk(3)[i])
    return x.unflatten(-1, (given["num_heads"], -1)).movedim(0, -2)


def _repeated(x: Any, query: Any) -> Any:
    """Repeat keys or values that several heads of queries share."""
    return x.repeat_interleave(query.shape[-3] // x.shape[-3], -3)


def scores_of_products(
    query: Any, key: Any, *_: Any, scale: float | None = None, enable_gqa: bool = False, **__: Any
) -> Any:
    """Compute the scores inside of `scaled_dot_product_attention`, without its masks."""
    key = _repeated(key, query) if enable_gqa else key
    return query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)


def scores_of_heads(*args: Any, **options: Any) -> Any:
    """Compute those inside of `multi_head_attention_forward`."""
    given = _named(args, options)
    return scores_of_products(_projected(given, 0), _projected(given, 1))


IN_STEPS: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (scaled_dot_product_attention, multi_head_attention_forward)
}
"""By the name of the fused function; the same arguments."""


def is_taken_apart(name: str, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether a call is one of fused attention with a batch; without a batch it stays whole."""
    return name in IN_STEPS and (args[0] if args else options["query"]).ndim > 2
