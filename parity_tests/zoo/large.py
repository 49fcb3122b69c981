"""A Llama of any size and its port, compared as large models are: `python -m parity_tests.zoo.large --help`.

PyTorch's side runs in a process of its own and writes a folder; JAX's side reads it in another. Each prints the memory
that it took beyond its imports. The sizes are those of a model of 1.1 billion parameters.
"""

import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
import tyro
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


# The comparison


@dataclass(frozen=True)
class Options:
    """What to compare."""

    sizes: tyro.conf.OmitArgPrefixes[Sizes] = field(default_factory=Sizes)
    dtype: Literal["float32", "bfloat16"] = "float32"
    """That of the weights, and that in which both sides run."""
    wrong: int | None = None
    """The layer of the port that has a mistake: heads that share keys do not stand side by side."""
    tokens: int = 32
    """The length of the input."""
    folder: Path | None = None
    """Where PyTorch's side is written; by default a folder that is removed at the end."""


def run_torch(options: Options, out: Path) -> str:
    """Write PyTorch's side."""
    from parity_tests.your_port.dump import dump_large

    before = peak()
    torch.manual_seed(0)
    ids = np.random.default_rng(0).integers(0, options.sizes.vocab, (1, options.tokens))
    module = torch_llama(options.sizes, options.dtype)
    count = sum(x.numel() for x in module.parameters())
    dump_large(module, ids, out, {"versions": {"torch": torch.__version__}})
    return f"{count / 1e6:,.0f} million parameters in {options.dtype}; PyTorch took {peak() - before:.1f} GB"


def run_jax(options: Options, out: Path) -> str:
    """Compare JAX's side with it."""
    from parity_tests.your_port.compare import compare

    before = peak()
    report = compare(out, nnx_llama(options.sizes, options.dtype, options.wrong))
    return f"{report}\nJAX took {peak() - before:.1f} GB"


def peak() -> float:
    """Return the most memory that this process has had, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> None:
    """Run each side in a process of its own."""
    options = tyro.cli(Options, prog="python -m parity_tests.zoo.large", description=__doc__)
    folder = Path(tempfile.mkdtemp()) if options.folder is None else options.folder
    try:
        for side in (run_torch, run_jax):
            started = time.perf_counter()
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                print(pool.submit(side, options, folder / "torch").result(), end=" ")
            print(f"and {(time.perf_counter() - started) / 60:.1f} minutes", flush=True)
    finally:
        if options.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
