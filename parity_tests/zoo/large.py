"""A Llama of any size and its port, compared as large models are. The sizes are those of 1.1 billion parameters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F  # noqa: N812
from flax import nnx

EPSILON = 1e-6


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model."""

    vocab: int = 32_000
    width: int = 2_048
    hidden: int = 5_632
    """Features within the feed-forward networks."""
    layers: int = 22
    heads: int = 32
    groups: int = 4
    """Heads of keys and values, which several heads of queries share."""

    @property
    def head(self) -> int:
        """The features of a head."""
        return self.width // self.heads


# PyTorch


class TorchAttention(torch.nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes, shared = sizes, sizes.groups * sizes.head
        self.q_proj = torch.nn.Linear(sizes.width, sizes.width, bias=False)
        self.k_proj = torch.nn.Linear(sizes.width, shared, bias=False)
        self.v_proj = torch.nn.Linear(sizes.width, shared, bias=False)
        self.o_proj = torch.nn.Linear(sizes.width, sizes.width, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        projected = (each(x).unflatten(-1, (-1, self.sizes.head)) for each in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (each.transpose(1, 2) for each in projected)
        q, k = torch_rotate(q, angles), torch_rotate(k, angles)
        k, v = (each.repeat_interleave(self.sizes.heads // self.sizes.groups, 1) for each in (k, v))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def torch_rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class TorchMlp(torch.nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate_proj = torch.nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.up_proj = torch.nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.down_proj = torch.nn.Linear(sizes.hidden, sizes.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class TorchLayer(torch.nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.input_layernorm = torch.nn.RMSNorm(sizes.width, EPSILON)
        self.self_attn = TorchAttention(sizes)
        self.post_attention_layernorm = torch.nn.RMSNorm(sizes.width, EPSILON)
        self.mlp = TorchMlp(sizes)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), angles)
        return x + self.mlp(self.post_attention_layernorm(x))


class TorchLlama(torch.nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head = sizes.head
        self.embed_tokens = torch.nn.Embedding(sizes.vocab, sizes.width)
        self.layers = torch.nn.ModuleList(TorchLayer(sizes) for _ in range(sizes.layers))
        self.norm = torch.nn.RMSNorm(sizes.width, EPSILON)
        self.lm_head = torch.nn.Linear(sizes.width, sizes.vocab, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(ids)
        rates = 10_000.0 ** (-torch.arange(0, self.head, 2, dtype=x.dtype) / self.head)
        angles = torch.arange(ids.shape[1], dtype=x.dtype)[:, None] * rates
        for layer in self.layers:
            x = layer(x, angles)
        return self.lm_head(self.norm(x))


def torch_llama(sizes: Sizes, dtype: str) -> torch.nn.Module:
    """Draw a model whose weights never take more memory than in `dtype`."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        return TorchLlama(sizes)
    finally:
        torch.set_default_dtype(before)


# Flax NNX


class NnxAttention(nnx.Module):
    def __init__(self, sizes: Sizes, linear: Callable[..., nnx.Linear], wrong: bool) -> None:
        self.sizes, self.wrong, shared = sizes, wrong, sizes.groups * sizes.head
        self.q_proj, self.k_proj = linear(sizes.width, sizes.width), linear(sizes.width, shared)
        self.v_proj, self.o_proj = linear(sizes.width, shared), linear(sizes.width, sizes.width)

    def __call__(self, x: jax.Array, angles: jax.Array) -> jax.Array:
        times, repeat = x.shape[1], self.sizes.heads // self.sizes.groups
        projected = (each(x) for each in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (each.reshape(*x.shape[:2], -1, self.sizes.head).swapaxes(1, 2) for each in projected)
        q, k = rotate(q, angles), rotate(k, angles)
        if self.wrong:  # the heads of a group do not stand side by side
            k, v = (jnp.tile(each, (1, repeat, 1, 1)) for each in (k, v))
        else:
            k, v = (jnp.repeat(each, repeat, 1) for each in (k, v))
        scores = jnp.where(jnp.tri(times, dtype=bool), q @ k.mT * self.sizes.head**-0.5, -jnp.inf)
        return self.o_proj((nnx.softmax(scores) @ v).swapaxes(1, 2).reshape(x.shape))


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    first, second = jnp.split(x, 2, -1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate((first * cos - second * sin, second * cos + first * sin), -1)


class NnxMlp(nnx.Module):
    def __init__(self, sizes: Sizes, linear: Callable[..., nnx.Linear]) -> None:
        self.gate_proj, self.up_proj = linear(sizes.width, sizes.hidden), linear(sizes.width, sizes.hidden)
        self.down_proj = linear(sizes.hidden, sizes.width)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down_proj(nnx.silu(self.gate_proj(x)) * self.up_proj(x))


class NnxLayer(nnx.Module):
    def __init__(self, sizes: Sizes, norm: Callable[..., nnx.RMSNorm], linear: Any, wrong: bool) -> None:
        self.input_layernorm, self.post_attention_layernorm = norm(sizes.width), norm(sizes.width)
        self.self_attn, self.mlp = NnxAttention(sizes, linear, wrong), NnxMlp(sizes, linear)

    def __call__(self, x: jax.Array, angles: jax.Array) -> jax.Array:
        x = x + self.self_attn(self.input_layernorm(x), angles)
        return x + self.mlp(self.post_attention_layernorm(x))


class NnxLlama(nnx.Module):
    def __init__(self, sizes: Sizes, dtype: str, wrong: int | None) -> None:
        given: dict[str, Any] = {"dtype": jnp.dtype(dtype), "param_dtype": jnp.dtype(dtype), "rngs": nnx.Rngs(0)}

        def linear(*features: int) -> nnx.Linear:
            return nnx.Linear(*features, use_bias=False, **given)

        def norm(features: int) -> nnx.RMSNorm:
            return nnx.RMSNorm(features, epsilon=EPSILON, **given)

        self.head = sizes.head
        self.embed_tokens = nnx.Embed(sizes.vocab, sizes.width, **given)
        self.layers = nnx.List([NnxLayer(sizes, norm, linear, number == wrong) for number in range(sizes.layers)])
        self.norm, self.lm_head = norm(sizes.width), linear(sizes.width, sizes.vocab)

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = self.embed_tokens(ids)
        rates = 10_000.0 ** (-jnp.arange(0, self.head, 2, dtype=x.dtype) / self.head)
        angles = jnp.arange(ids.shape[1], dtype=x.dtype)[:, None] * rates
        for layer in self.layers:
            x = layer(x, angles)
        return self.lm_head(self.norm(x))


def nnx_llama(sizes: Sizes, dtype: str, wrong: int | None = None) -> NnxLlama:
    """Describe the port, which gets its weights when it is compared; layer `wrong` has a mistake."""
    return nnx.eval_shape(lambda: NnxLlama(sizes, dtype, wrong))
