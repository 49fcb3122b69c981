"""PyTorch's fused functions step by step, so that a mistake can be planted in any of their steps."""

import inspect
from collections.abc import Callable
from functools import partial
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
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Attend as `torch.nn.functional.scaled_dot_product_attention`."""
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    masks = [] if attn_mask is None else [~attn_mask if attn_mask.dtype == torch.bool else attn_mask]
    return _attend(query, key, value, masks, scale, is_causal)[0]


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
    result, weights = _attend(q, k, v, masks, None)
    result = F.linear(result.permute(2, 0, 1, 3).flatten(-2), given["out_proj_weight"], given["out_proj_bias"])
    weights = weights.mean(1) if given["average_attn_weights"] else weights
    return result, weights if given["need_weights"] else None


def step_cell(
    name: str, x: Any, state: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None,
    *, change: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Take a step of an LSTM or a GRU; `change` gets the parts from x and from h by gate, and returns others."""
    gates = "ifgo" if name.startswith("lstm") else "rzn"
    from_x, from_h = F.linear(x, w_ih, b_ih), F.linear(state[0], w_hh, b_hh)
    parts = {
        g: list(pair)
        for g, *pair in zip(gates, from_x.chunk(len(gates), -1), from_h.chunk(len(gates), -1), strict=True)
    }
    bias = torch.zeros_like(from_h[0]) if b_hh is None else b_hh
    parts = parts if change is None else change(parts, dict(zip(gates, bias.chunk(len(gates)), strict=True)))
    if "f" in parts:
        i, f, g, o = (a + b for a, b in parts.values())
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * c[None].tanh()[0], c  # of another shape, so that a mistake may be in this tanh alone
    r, z = (torch.sigmoid(a + b) for a, b in (parts["r"], parts["z"]))
    a, b = parts["n"]
    return ((1 - z) * torch.tanh(a + r * b) + z * state[0],)


def run_cell(name: str, x: Any, state: Any, w_ih: Any, w_hh: Any, *biases: Any, change: Any = None) -> Any:
    """Compute as `torch.lstm_cell` and `torch.gru_cell`."""
    new = step_cell(name, x, state if isinstance(state, tuple | list) else (state,), w_ih, w_hh, *biases, change=change)
    return new if name.startswith("lstm") else new[0]


def run_layers(
    name: str, x: Any, state: Any, weights: Any, has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool, change: Any = None,
) -> Any:  # fmt: skip
    """Compute as `torch.lstm` and `torch.gru`, layer by layer, both directions."""
    states = state if isinstance(state, tuple | list) else (state,)
    x, per, last = x.transpose(0, 1) if batch_first else x, 4 if has_biases else 2, []
    for layer in range(num_layers):
        outputs = []
        for direction in range(1 + bidirectional):
            place = layer * (1 + bidirectional) + direction
            now, steps = tuple(s[place] for s in states), []
            for step in x.flip(0) if direction else x:
                now = step_cell(name, step, now, *weights[place * per : (place + 1) * per], change=change)
                steps.append(now[0])
            outputs.append(torch.stack(steps[::-1] if direction else steps))
            last.append(now)
        x = torch.cat(outputs, -1)
    return x.transpose(0, 1) if batch_first else x, *(torch.stack(states) for states in zip(*last, strict=True))


def is_plain(name: str, args: Any) -> bool:
    """Whether a call is computed step by step here: not for packed sequences, nor for attention without a batch."""
    packed = name in ("lstm", "gru") and isinstance(args[3], tuple | list)
    return name in PLAIN and not packed and not (name.startswith("multi") and args[0].ndim == 2)


PLAIN: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": scaled_dot_product_attention,
    "multi_head_attention_forward": multi_head_attention_forward,
    **{name: partial(run_layers, name) for name in ("lstm", "gru")},
    **{name: partial(run_cell, name) for name in ("lstm_cell", "gru_cell")},
}
"""By the name of the fused function; the same arguments."""
