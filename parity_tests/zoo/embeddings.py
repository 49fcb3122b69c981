"""Embeddings, positions, pooling under padding, and norms by hand."""

import math
from functools import partial
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from parity_tests.your_port.place.taps import tap
from parity_tests.zoo.parts import dense
from parity_tests.zoo.port import PROGRAM, Bug, Port

RNG = np.random.default_rng(4)
D, VOCABULARY = 8, 9
IDS = np.array([[3, 1, 4, 1, 5], [2, 7, 1, 0, 0], [8, 2, 0, 0, 0]])
X, KEEP = RNG.normal(size=(3, 5, D)), IDS != 0


# A bag of words with a padding row, in Linen


class TorchBag(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.fc = torch.nn.Embedding(VOCABULARY, D, padding_idx=0), torch.nn.Linear(D, 3)

    def forward(self, ids: torch.Tensor) -> Any:
        x, mask = self.emb(ids), (ids != 0).unsqueeze(-1).to(self.emb.weight.dtype)
        return self.fc((x * mask).sum(1) / mask.sum(1)), x.sum()


class LinenBag(nn.Module):
    bug: str = ""

    @nn.compact
    def __call__(self, ids: Any) -> Any:
        table = self.param("emb", nn.initializers.normal(), (VOCABULARY, D))
        if self.bug != "the padding row learns":
            table = table.at[0].set(jax.lax.stop_gradient(table[0]))
        x, mask = table[ids], (ids != 0)[..., None]
        mask = jnp.ones_like(mask) if self.bug == "padding counted in the mean" else mask
        count = ids.shape[1] if self.bug == "divided by the padded length" else mask.sum(1)
        pooled = (x * mask).max(1) if self.bug == "maximum for the mean" else (x * mask).sum(1) / count
        return nn.Dense(3, name="fc")(pooled), x.sum()


BAG = Port(
    "bag of words",
    "Linen",
    TorchBag,
    LinenBag,
    (IDS,),
    (
        Bug("the padding row learns", "@gradient of emb*", "row of the padding"),
        Bug("padding counted in the mean", PROGRAM, "padding is counted"),
        Bug("divided by the padded length", PROGRAM, "padding is counted|length"),
        Bug("maximum for the mean", PROGRAM, "mean|max"),
    ),
)


# Sines as positions, tied output, as a function with taps


class TorchSines(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.proj = torch.nn.Embedding(VOCABULARY, D), torch.nn.Linear(D, D)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) * math.sqrt(D)
        position = torch.arange(ids.shape[1], dtype=x.dtype)[:, None]
        angles = position * torch.exp(torch.arange(0, D, 2, dtype=x.dtype) * (-math.log(10000.0) / D))
        table = torch.zeros(ids.shape[1], D, dtype=x.dtype)
        table[:, 0::2], table[:, 1::2] = torch.sin(angles), torch.cos(angles)
        return self.proj(x + table) @ self.embed.weight.T


def sines(weights: Any, ids: Any, bug: str) -> Any:
    embed = weights["embed.weight"]
    scale = {"embedding not scaled": 1, "scaled by d": D}.get(bug, math.sqrt(D))
    x = tap("embed", embed[ids - 1 if bug == "ids off by one" else ids]) * scale
    position = jnp.arange(ids.shape[1], dtype=x.dtype)[:, None] + (bug == "positions from 1")
    angles = position * jnp.exp(jnp.arange(0, D, 2, dtype=x.dtype) * (-math.log(10000.0) / D))
    pair = (jnp.cos(angles), jnp.sin(angles)) if bug == "cosine before sine" else (jnp.sin(angles), jnp.cos(angles))
    halves = bug == "sines before cosines, as tensor2tensor has them"
    x = x + (jnp.concatenate(pair, -1) if halves else jnp.stack(pair, -1).reshape(-1, D))
    return dense(weights, "proj", x, turned=bug == "square matrix not transposed") @ embed.T


SINES = Port(
    "sines as positions",
    "function",
    TorchSines,
    lambda bug: partial(sines, bug=bug),
    (IDS,),
    (
        Bug("embedding not scaled", "@input of proj", "scale|factor"),
        Bug("scaled by d", "@input of proj", "scale|factor|multiplied"),
        Bug("ids off by one", "@embed", "off by one|shifted"),
        Bug("positions from 1", "@input of proj", "positions begin at 1"),
        Bug("cosine before sine", "@input of proj", "sine and cosine"),
        Bug("sines before cosines, as tensor2tensor has them", "@input of proj", "sines stand before"),
        Bug("square matrix not transposed", "@proj", "transposed"),
    ),
)


# Attention pooling with padding, in Equinox


class TorchPooling(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score, self.out = torch.nn.Linear(D, 1), torch.nn.Linear(D, 3)
        self.proj = torch.nn.Linear(D, D)

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        scores = self.score(torch.tanh(self.proj(x))).squeeze(-1).masked_fill(~keep, -1e9)
        return self.out(torch.bmm(scores.softmax(1).unsqueeze(1), x).squeeze(1))


class EqxPooling(eqx.Module):
    score: eqx.nn.Linear
    out: eqx.nn.Linear
    proj: eqx.nn.Linear
    bug: str = eqx.field(static=True)

    def __call__(self, x: Any, keep: Any) -> Any:
        act = jax.nn.relu if self.bug == "relu for tanh" else jnp.tanh
        scores = jax.vmap(self.score)(act(jax.vmap(self.proj)(x)))[:, 0]
        if self.bug == "mask added too weakly":
            scores = scores + jnp.where(keep, 0.0, -1.0)
        elif self.bug not in ("padding counted", "mask after the softmax"):
            scores = jnp.where(keep, scores, -1e9)
        weights = jax.nn.sigmoid(scores) if self.bug == "sigmoid for softmax" else jax.nn.softmax(scores)
        weights = weights * keep if self.bug == "mask after the softmax" else weights
        values = jax.vmap(self.proj)(x) if self.bug == "projected values" else x
        return self.out(weights @ values)


def eqx_pooling(bug: str) -> Any:
    make = partial(eqx.nn.Linear, key=jax.random.key(0))
    return EqxPooling(make(D, 1), make(D, 3), make(D, D), bug)


POOLING = Port(
    "attention pooling",
    "Equinox",
    TorchPooling,
    eqx_pooling,
    (X, KEEP),
    (
        Bug("padding counted", PROGRAM, "mask is ignored|padding|ignored"),
        Bug("mask added too weakly", PROGRAM, "too weak"),
        Bug("mask after the softmax", PROGRAM, "after the softmax"),
        Bug("sigmoid for softmax", PROGRAM, "sigmoid"),
        Bug("relu for tanh", PROGRAM, "tanh is ReLU"),
        Bug("projected values", PROGRAM, "values|project"),
    ),
    {"jax_call": lambda module, x, keep: jax.vmap(module)(x, keep)},
)


# An MLP-Mixer, in NNX: norms, transposes, square matrices


class TorchMixer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(D), torch.nn.LayerNorm(D)
        self.tokens, self.channels = torch.nn.Linear(5, 5), torch.nn.Linear(D, D)
        self.bn = torch.nn.BatchNorm1d(D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + torch.nn.functional.gelu(self.tokens(self.norm1(x).transpose(1, 2))).transpose(1, 2)
        x = x + torch.nn.functional.gelu(self.channels(self.norm2(x)))
        return self.bn(x.mean(1))


class NnxMixer(nnx.Module):
    def __init__(self, bug: str) -> None:
        rngs = nnx.Rngs(0)
        norm = partial(nnx.LayerNorm, D, epsilon=1e-6 if bug == "Flax's epsilon" else 1e-5, rngs=rngs)
        self.norm1 = norm(reduction_axes=1 if bug == "norm over the tokens" else -1)
        self.norm2 = norm(use_scale=bug != "no scale in the second norm")
        self.tokens, self.channels = nnx.Linear(5, 5, rngs=rngs), nnx.Linear(D, D, rngs=rngs)
        self.bn, self.bug = nnx.BatchNorm(D, epsilon=1e-5, momentum=0.9, rngs=rngs), bug

    def __call__(self, x: Any) -> Any:
        act = partial(nnx.gelu, approximate=self.bug == "JAX's default GELU, by tanh")
        first, second = (self.norm2, self.norm1) if self.bug == "norms exchanged" else (self.norm1, self.norm2)
        x = x + act(self.tokens(first(x).mT)).mT
        x = x + act(self.channels(second(x)))
        if self.bug == "batch norm left in training":
            return self.bn(x.mean(1), use_running_average=False)
        return self.bn(x[:, 0] if self.bug == "the first token for the mean" else x.mean(1))


MIXER = Port(
    "MLP-Mixer",
    "NNX",
    TorchMixer,
    NnxMixer,
    (X,),
    (
        Bug("Flax's epsilon", "norm?", "epsilon is 1e-06"),
        Bug("JAX's default GELU, by tanh", PROGRAM, "tanh", "TransformerLens #596"),
        Bug("norms exchanged", PROGRAM, "exchanged"),
        Bug("norm over the tokens", "norm1", "axis|axes"),
        Bug("no scale in the second norm", "norm2", "scale|weight"),
        Bug("batch norm left in training", "bn", "batch's statistics"),
        Bug("the first token for the mean", PROGRAM, "mean|first"),
        Bug("square weight not transposed", "channels", "transposed", "", {"layout": {"channels*": "as it is"}}),
        Bug("token weight not transposed", "tokens", "transposed", "", {"layout": {"tokens*": "as it is"}}),
    ),
)


# A norm by hand, as the Annotated Transformer has it, as a function with taps


class TorchAnnotatedNorm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Parameter(torch.ones(D)), torch.nn.Parameter(torch.zeros(D))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + self.b


class TorchNormed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.norm, self.fc2 = torch.nn.Linear(D, 6), TorchAnnotatedNorm(), torch.nn.Linear(6, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc2(torch.relu(self.fc1(self.norm(x))))


def normed(weights: Any, x: Any, bug: str) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    std = x.std(-1, ddof=0 if bug == "NumPy's standard deviation" else 1, keepdims=True)
    y = centred / (std + (1e-5 if bug == "another epsilon" else 1e-6))
    if bug == "the library's norm":
        y = centred / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)
    y = tap("norm", weights["norm.a"] * y + weights["norm.b"])
    act = jax.nn.silu if bug == "silu for relu" else jax.nn.relu
    y = dense(weights, "fc2", act(dense(weights, "fc1", y, bias=bug != "a bias missing")))
    return y if bug == "residual forgotten" else x + y


NORMED = Port(
    "norm by hand",
    "function",
    TorchNormed,
    lambda bug: partial(normed, bug=bug),
    (X,),
    (
        Bug("NumPy's standard deviation", "@norm", "n − 1|divided by n"),
        Bug("another epsilon", "@norm", "epsilon is 1e-05"),
        Bug("the library's norm", "@norm", "epsilon|n − 1|standard deviation", "BERT-pytorch #30"),
        Bug("a bias missing", "@fc1", "fc1.bias.*missing"),
        Bug("silu for relu", "@input of fc2", "relu is SiLU"),
        Bug("residual forgotten", "@result", "residual"),
    ),
)

PORTS = (BAG, SINES, POOLING, MIXER, NORMED)
