"""Transformers: GPT, BERT, Llama."""

import math
from collections import OrderedDict
from functools import partial
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from parity_tests.zoo.port import PROGRAM, Bug, Port

RNG = np.random.default_rng(1)
D, HEADS, VOCABULARY = 8, 2, 11
IDS = RNG.integers(0, VOCABULARY, (3, 5))
PADDING = np.array([[0, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 1, 1, 1]], bool)
POLARITY, SCALE = "other way round|inverted|polarity", "scale|factor|multiplied by|divi"
TURNED, UNSCALED, BY_WIDTH = "mask read the other way round", "no scale", "scale by the model's width"


def split(x: Any, heads: int) -> Any:
    """[batch, length, d] -> [batch, heads, length, d / heads]."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def merge(x: Any) -> Any:
    """[batch, heads, length, size] -> [batch, length, heads * size]."""
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def attend(q: Any, k: Any, v: Any, hidden: Any, bug: str = "") -> Any:
    """Scaled dot-product attention; `hidden` is True where a key must not be seen."""
    size = q.shape[-1]
    divisors = {"no scale": 1, "scale by the model's width": math.sqrt(size * q.shape[1])}
    scores = q @ k.mT / divisors.get(bug, math.sqrt(size))
    hidden = ~hidden if bug == "mask read the other way round" else hidden
    return jax.nn.softmax(jnp.where(hidden, -jnp.inf, scores), -1) @ v


def causal(length: int) -> Any:
    """True above the diagonal."""
    return jnp.triu(jnp.ones((length, length), bool), 1)


# nanoGPT, in Linen


class TorchCausal(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = torch.nn.Linear(D, 3 * D), torch.nn.Linear(D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, n, d = x.shape
        q, k, v = (part.view(batch, n, HEADS, d // HEADS).transpose(1, 2) for part in self.c_attn(x).split(d, dim=2))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
        return self.c_proj((scores.softmax(-1) @ v).transpose(1, 2).contiguous().view(batch, n, d))


class TorchGptBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = torch.nn.LayerNorm(D), TorchCausal(), torch.nn.LayerNorm(D)
        layers = {"c_fc": torch.nn.Linear(D, 2 * D), "gelu": torch.nn.GELU("tanh"), "c_proj": torch.nn.Linear(2 * D, D)}
        self.mlp = torch.nn.Sequential(OrderedDict(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class TorchGpt(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(VOCABULARY, D), torch.nn.Embedding(7, D)
        self.h = torch.nn.ModuleList([TorchGptBlock() for _ in range(2)])
        self.ln_f = torch.nn.LayerNorm(D)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.size(1)))
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T


class LinenCausal(nn.Module):
    bug: str = ""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        qkv = nn.Dense(3 * D, name="c_attn")(x)
        if self.bug == "q, k, v of each head side by side":
            qkv = qkv.reshape(*x.shape[:2], HEADS, 3, -1).swapaxes(2, 3).reshape(*x.shape[:2], -1)
        q, k, v = (split(part, HEADS) for part in jnp.split(qkv, 3, -1))
        return nn.Dense(D, name="c_proj")(merge(attend(q, k, v, causal(x.shape[1]), self.bug)))


class LinenMlp(nn.Module):
    bug: str = ""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(D, name="c_proj")(nn.gelu(nn.Dense(2 * D, name="c_fc")(x), self.bug != "exact GELU"))


class LinenGptBlock(nn.Module):
    bug: str = ""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        eps = 1e-6 if self.bug == "Flax's epsilon" else 1e-5
        ln_1, ln_2 = (nn.LayerNorm(epsilon=eps, name=name) for name in ("ln_1", "ln_2"))
        attn, mlp = LinenCausal(self.bug, name="attn"), LinenMlp(self.bug, name="mlp")
        if self.bug == "residual from the normed input":
            x = ln_1(x)
            x = ln_2(x + attn(x))
            return x + mlp(x)
        x = x + attn(ln_1(x))
        return x + mlp(ln_2(x))


class LinenGpt(nn.Module):
    bug: str = ""

    @nn.compact
    def __call__(self, ids: Any) -> Any:
        wte, wpe = nn.Embed(VOCABULARY, D, name="wte"), nn.Embed(7, D, name="wpe")
        x = wte(ids) + wpe(jnp.arange(ids.shape[1]) + (self.bug == "positions from 1, as in RoBERTa"))
        for layer in range(2):
            x = LinenGptBlock(self.bug, name=f"h_{layer}")(x)
        return wte.attend(nn.LayerNorm(epsilon=1e-5, name="ln_f")(x))


GPT = Port(
    "GPT",
    TorchGpt,
    LinenGpt,
    (IDS,),
    (
        Bug(BY_WIDTH, "h.?.attn", SCALE, "vit-pytorch #65"),
        Bug("q, k, v of each head side by side", "h.?.attn", "order|heads|split|rows of .* are read as", "slapo #46"),
        Bug("Flax's epsilon", "h.?.ln_1", "epsilon is 1e-06", "CTranslate2 #951"),
        Bug("exact GELU", "h.?.mlp", "exact GELU", "gemma_pytorch #33"),
        Bug("residual from the normed input", "h.?", "residual", "PyTorch #61165"),
        Bug("positions from 1, as in RoBERTa", PROGRAM, "positions begin at 1|off by one", "ANEForge #257"),
    ),
    {"names": {"h_{i}": "h.{i}"}},
)


# BERT of PyTorch's own layers, in NNX


class TorchBert(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word, self.position = torch.nn.Embedding(VOCABULARY, D), torch.nn.Embedding(6, D)
        options: Any = {"activation": "gelu", "layer_norm_eps": 1e-12, "batch_first": True}
        self.layer = torch.nn.ModuleList([torch.nn.TransformerEncoderLayer(D, HEADS, 2 * D, **options) for _ in "123"])
        self.pooler = torch.nn.Linear(D, D)

    def forward(self, ids: torch.Tensor, padding: torch.Tensor) -> Any:
        x = self.word(ids) + self.position(torch.arange(ids.shape[1]))
        for layer in self.layer:
            x = layer(x, src_key_padding_mask=padding)
        return x, torch.tanh(self.pooler(x[:, 0]))


class NnxAttention(nnx.Module):
    def __init__(self, bug: str, rngs: nnx.Rngs) -> None:
        self.query, self.key, self.value, self.out_proj = (nnx.Linear(D, D, rngs=rngs) for _ in range(4))
        self.bug = bug

    def __call__(self, x: Any, padding: Any) -> Any:
        q, k, v = (split(part(x), HEADS) for part in (self.query, self.key, self.value))
        return self.out_proj(merge(attend(q, k, v, padding[:, None, None], self.bug)))


class NnxBertLayer(nnx.Module):
    def __init__(self, bug: str, rngs: nnx.Rngs) -> None:
        norm = partial(nnx.LayerNorm, D, epsilon=1e-5 if bug == "PyTorch's epsilon, not BERT's" else 1e-12, rngs=rngs)
        self.self_attn, self.norm1, self.norm2, self.bug = NnxAttention(bug, rngs), norm(), norm(), bug
        self.linear1, self.linear2 = nnx.Linear(D, 2 * D, rngs=rngs), nnx.Linear(2 * D, D, rngs=rngs)

    def __call__(self, x: Any, padding: Any) -> Any:
        if self.bug == "pre-norm":
            x = x + self.self_attn(self.norm1(x), padding)
            return x + self.linear2(nnx.gelu(self.linear1(self.norm2(x)), approximate=False))
        x = self.norm1(x + self.self_attn(x, padding))
        gelu = partial(nnx.gelu, approximate=self.bug == "GELU by tanh")
        act: Any = nnx.elu if self.bug == "elu for gelu" else gelu
        return self.norm2(x + self.linear2(act(self.linear1(x))))


class NnxBert(nnx.Module):
    def __init__(self, bug: str) -> None:
        rngs = nnx.Rngs(0)
        self.word, self.position = nnx.Embed(VOCABULARY, D, rngs=rngs), nnx.Embed(6, D, rngs=rngs)
        self.layer, self.pooler = nnx.List([NnxBertLayer(bug, rngs) for _ in range(3)]), nnx.Linear(D, D, rngs=rngs)

    def __call__(self, ids: Any, padding: Any) -> Any:
        x = self.word(ids) + self.position(jnp.arange(ids.shape[1]))
        for layer in self.layer:
            x = layer(x, padding)
        return x, jnp.tanh(self.pooler(x[:, 0]))


KINDS = (("kernel", "weight"), ("bias", "bias"))
ORDER = {f"{name}.{a}": f"in_proj_{b}[{i}/3]" for i, name in enumerate(("query", "value", "key")) for a, b in KINDS}
BERT = Port(
    "BERT",
    TorchBert,
    NnxBert,
    (IDS, PADDING),
    (
        Bug(TURNED, "layer.?.self_attn", POLARITY, "Equinox #463"),
        Bug(UNSCALED, "layer.?.self_attn", SCALE, "mlc-llm #3426"),
        Bug("q, v, k in the packed projection", "layer.?.self_attn", "order", "tt-mlir #8958", {"names": ORDER}),
        Bug("PyTorch's epsilon, not BERT's", "layer.?.norm1", "epsilon is 1e-05", "x-transformers #37"),
        Bug("GELU by tanh", "layer.?", "tanh", "tinygrad #16162"),
        Bug("elu for gelu", "layer.?", "ELU", "transformers #9054"),
        Bug("pre-norm", "layer.?", "pre-norm", "tracel-ai/models #30"),
    ),
)


# A block of Llama and its head, in Equinox

W, QUERIES, KEYS = 16, 4, 2


class TorchRmsNorm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def torch_rotate(x: torch.Tensor) -> torch.Tensor:
    """Rotate x[i] and x[i + d/2], as Hugging Face does."""
    n, size = x.shape[-2:]
    frequencies = 10000.0 ** (-torch.arange(0, size, 2, dtype=x.dtype) / size)
    angles = torch.outer(torch.arange(n, dtype=x.dtype), frequencies)
    angles = torch.cat((angles, angles), -1)
    x1, x2 = x[..., : size // 2], x[..., size // 2 :]
    return x * angles.cos() + torch.cat((-x2, x1), -1) * angles.sin()


class TorchLlamaAttention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.o_proj = (torch.nn.Linear(W, W, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (torch.nn.Linear(W, W // 2, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, n, d = x.shape
        parts = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        q, k, v = (part.view(batch, n, -1, d // QUERIES).transpose(1, 2) for part in parts)
        q, k = torch_rotate(q), torch_rotate(k)
        context = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(context.transpose(1, 2).reshape(batch, n, d))


class TorchLlama(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = TorchRmsNorm(), TorchLlamaAttention()
        self.post_attention_layernorm, self.norm = TorchRmsNorm(), TorchRmsNorm()
        self.gate_proj, self.up_proj = (torch.nn.Linear(W, 12, bias=False) for _ in range(2))
        self.down_proj, self.lm_head = torch.nn.Linear(12, W, bias=False), torch.nn.Linear(W, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        y = self.post_attention_layernorm(x)
        x = x + self.down_proj(torch.nn.functional.silu(self.gate_proj(y)) * self.up_proj(y))
        return self.lm_head(self.norm(x))


def rotate(x: Any, bug: str = "") -> Any:
    n, size = x.shape[-2:]
    frequencies = 10000.0 ** (-jnp.arange(0, size, 2, dtype=x.dtype) / size)
    angles = jnp.outer(jnp.arange(n, dtype=x.dtype), frequencies)
    if bug == "neighbours rotated":
        x1, x2, (cos, sin) = x[..., ::2], x[..., 1::2], (jnp.cos(angles), jnp.sin(angles))
        return jnp.stack([x1 * cos - x2 * sin, x1 * sin + x2 * cos], -1).reshape(x.shape)
    angles = jnp.concatenate([angles, angles], -1)
    x1, x2 = jnp.split(x, 2, -1)
    return x * jnp.cos(angles) + jnp.concatenate([-x2, x1], -1) * jnp.sin(angles)


class EqxRmsNorm(eqx.Module):
    weight: Any
    bug: str = eqx.field(static=True)

    def __call__(self, x: Any) -> Any:
        eps = 1e-5 if self.bug == "epsilon of Llama 2" else 1e-6
        scale = 1 + self.weight if self.bug == "1 + weight, as Gemma has it" else self.weight
        return scale * x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + eps)


class EqxLlamaAttention(eqx.Module):
    q_proj: eqx.nn.Linear
    k_proj: eqx.nn.Linear
    v_proj: eqx.nn.Linear
    o_proj: eqx.nn.Linear
    bug: str = eqx.field(static=True)

    def __init__(self, bug: str) -> None:
        make = partial(eqx.nn.Linear, use_bias=False, key=jax.random.key(0))
        self.q_proj, self.o_proj, self.bug = make(W, W), make(W, W), bug
        self.k_proj, self.v_proj = make(W, W // 2), make(W, W // 2)

    def __call__(self, x: Any) -> Any:
        q, k, v = (jax.vmap(part)(x)[None] for part in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(split(q, QUERIES), self.bug), rotate(split(k, KEYS), self.bug)
        k, v = jnp.repeat(k, 2, 1), jnp.repeat(split(v, KEYS), 2, 1)
        return jax.vmap(self.o_proj)(merge(attend(q, k, v, causal(x.shape[0])))[0])


class EqxLlama(eqx.Module):
    input_layernorm: EqxRmsNorm
    self_attn: EqxLlamaAttention
    post_attention_layernorm: EqxRmsNorm
    gate_proj: eqx.nn.Linear
    up_proj: eqx.nn.Linear
    down_proj: eqx.nn.Linear
    norm: EqxRmsNorm
    lm_head: eqx.nn.Linear
    bug: str = eqx.field(static=True)

    def __init__(self, bug: str) -> None:
        make = partial(eqx.nn.Linear, use_bias=False, key=jax.random.key(0))
        self.input_layernorm, self.self_attn, self.bug = EqxRmsNorm(jnp.ones(W), bug), EqxLlamaAttention(bug), bug
        self.post_attention_layernorm, self.norm = (EqxRmsNorm(jnp.ones(W), bug) for _ in range(2))
        self.gate_proj, self.up_proj = make(W, 12), make(W, 12)
        self.down_proj, self.lm_head = make(12, W), make(W, VOCABULARY)

    def __call__(self, x: Any) -> Any:
        x = x + self.self_attn(self.input_layernorm(x))
        y = self.post_attention_layernorm(x)
        act = jax.nn.gelu if self.bug == "GELU for SiLU" else jax.nn.silu
        x = x + jax.vmap(self.down_proj)(act(jax.vmap(self.gate_proj)(y)) * jax.vmap(self.up_proj)(y))
        return jax.vmap(self.lm_head)(self.norm(x))


LLAMA = Port(
    "Llama",
    TorchLlama,
    EqxLlama,
    (RNG.normal(size=(2, 5, W)),),
    (
        Bug("neighbours rotated", "self_attn", "pairs", "transformers #25199"),
        Bug("epsilon of Llama 2", "*norm", "epsilon is 1e-05", "candle #271"),
        Bug("1 + weight, as Gemma has it", "*norm", r"1 \+ weight", "TransformerLens #511"),
        Bug("GELU for SiLU", PROGRAM, "gelu", "TransformerLens #596"),
    ),
    {"jax_call": lambda module, x: jax.vmap(module)(x)},
)

PORTS = (GPT, BERT, LLAMA)
