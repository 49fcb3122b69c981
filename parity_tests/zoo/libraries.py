"""Modules of two frameworks, by people who have not seen this project, compared at the first try: a table.

Each row is a layer with the arguments that its documentation suggests, or a small model, and what has to be said beside
to let the two be called alike. The page on parity has the verdicts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import numpy as np
import torch
from flax import nnx


@dataclass(frozen=True)
class Pair:
    """A module of each framework, and how the two are compared."""

    name: str
    torch: Any
    jax: Any
    inputs: Any
    options: dict[str, Any] = field(default_factory=dict)
    agrees: bool = True
    """Whether they are known to be the same; the page on parity says why the others are not."""


RNG = np.random.default_rng(0)
KEY = jax.random.key(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape)


IDS = RNG.integers(0, 11, (2, 6))
X, SEQUENCE, IMAGE = normal(4, 6), normal(2, 5, 6), normal(2, 4, 9, 7)
SIGNAL, VOLUME = normal(2, 4, 9), normal(2, 4, 5, 6, 7)
HIDDEN, CELL = normal(4, 6), normal(4, 6)


def over_batch(module: Any, *inputs: Any) -> Any:
    """Call a layer of Equinox, which takes one example, for each of a batch."""
    return jax.vmap(module)(*inputs)


EACH: dict[str, Any] = {"jax_call": over_batch}
LAST: dict[str, Any] = {"layout": {"input": "NHWC", "result": "NHWC"}}


def nnx_pairs() -> Iterator[Pair]:
    """Yield the layers of Flax NNX."""
    rngs = nnx.Rngs(0)
    t = torch.nn
    yield Pair("NNX: Linear", t.Linear(6, 3), nnx.Linear(6, 3, rngs=rngs), X)
    yield Pair("NNX: Embedding", t.Embedding(11, 6), nnx.Embed(11, 6, rngs=rngs), IDS)
    yield Pair("NNX: LayerNorm", t.LayerNorm(6), nnx.LayerNorm(6, rngs=rngs), X, agrees=False)
    yield Pair("NNX: LayerNorm, its epsilon", t.LayerNorm(6), nnx.LayerNorm(6, epsilon=1e-5, rngs=rngs), X)
    yield Pair("NNX: RMSNorm", t.RMSNorm(6, eps=1e-6), nnx.RMSNorm(6, rngs=rngs), X)
    yield Pair("NNX: GroupNorm", t.GroupNorm(2, 4), nnx.GroupNorm(4, 2, rngs=rngs), IMAGE, LAST, False)
    yield Pair(
        "NNX: GroupNorm, its epsilon", t.GroupNorm(2, 4), nnx.GroupNorm(4, 2, epsilon=1e-5, rngs=rngs), IMAGE, LAST
    )
    yield Pair("NNX: BatchNorm", t.BatchNorm2d(4), nnx.BatchNorm(4, rngs=rngs), IMAGE, LAST)
    batch = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
    yield Pair("NNX: BatchNorm, a training step", t.BatchNorm2d(4), batch, IMAGE, {**LAST, "buffers": True}, False)
    yield Pair("NNX: Conv1d", t.Conv1d(4, 8, 3), nnx.Conv(4, 8, 3, padding="VALID", rngs=rngs), SIGNAL, LAST)
    yield Pair("NNX: Conv2d", t.Conv2d(4, 8, (3, 2)), nnx.Conv(4, 8, (3, 2), padding="VALID", rngs=rngs), IMAGE, LAST)
    yield Pair("NNX: Conv2d, SAME", t.Conv2d(4, 8, 3, padding="same"), nnx.Conv(4, 8, (3, 3), rngs=rngs), IMAGE, LAST)
    strided = nnx.Conv(4, 8, (3, 3), strides=2, padding="SAME", rngs=rngs)
    yield Pair("NNX: Conv2d, stride 2, SAME", t.Conv2d(4, 8, 3, 2, 1), strided, normal(2, 4, 8, 8), LAST, False)
    grouped = nnx.Conv(4, 8, (3, 3), feature_group_count=2, kernel_dilation=2, padding="VALID", rngs=rngs)
    yield Pair("NNX: Conv2d, groups, dilation", t.Conv2d(4, 8, 3, groups=2, dilation=2), grouped, IMAGE, LAST)
    volume = nnx.Conv(4, 8, (3, 2, 2), padding="VALID", rngs=rngs)
    yield Pair("NNX: Conv3d", t.Conv3d(4, 8, (3, 2, 2)), volume, VOLUME, LAST)
    transposed = nnx.ConvTranspose(4, 8, (3, 3), strides=2, padding="VALID", transpose_kernel=True, rngs=rngs)
    yield Pair("NNX: ConvTranspose2d", t.ConvTranspose2d(4, 8, 3, 2), transposed, IMAGE, LAST)
    calls = {"torch_call": lambda module, x: module(x, x, x)[0], "jax_call": lambda module, x: module(x)}
    for inside in ("", "float32"):
        name, options = f"NNX: MultiheadAttention{inside and ', float32 inside'}", {**calls, "inside": inside}
        attention = nnx.MultiHeadAttention(2, 6, decode=False, rngs=rngs)
        torch_attention = t.MultiheadAttention(6, 2, batch_first=True)
        yield Pair(name, torch_attention, attention, SEQUENCE, options, agrees=inside == "float32")
    yield Pair("NNX: GRUCell", t.GRUCell(6, 6), nnx.GRUCell(6, 6, rngs=rngs), (X, HIDDEN), _swapped(1), False)
    lstm = {
        "torch_call": lambda module, x, h, c: module(x, (h, c)),
        "jax_call": lambda module, x, h, c: module((c, h), x)[0][::-1],
    }
    yield Pair("NNX: LSTMCell", t.LSTMCell(6, 6), nnx.LSTMCell(6, 6, rngs=rngs), (X, HIDDEN, CELL), lstm)
    yield Pair("NNX: RNNCell", t.RNNCell(6, 6), nnx.SimpleCell(6, 6, rngs=rngs), (X, HIDDEN), _swapped(1))
    yield Pair("NNX: GELU", t.GELU(), lambda x: nnx.gelu(x), X, _function(), False)
    yield Pair("NNX: GELU, exact", t.GELU(), lambda x: nnx.gelu(x, approximate=False), X, _function())
    yield Pair(
        "NNX: MaxPool2d", t.MaxPool2d(2), lambda x: nnx.max_pool(x, (2, 2), (2, 2)), IMAGE, {**LAST, **_function()}
    )
    yield Pair(
        "NNX: AvgPool2d", t.AvgPool2d(2), lambda x: nnx.avg_pool(x, (2, 2), (2, 2)), IMAGE, {**LAST, **_function()}
    )
    padded = t.AvgPool2d(3, 2, 1)
    yield Pair(
        "NNX: AvgPool2d, padded",
        *(padded, lambda x: nnx.avg_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1))), IMAGE, {**LAST, **_function()}),
    )


def _swapped(result: int) -> dict[str, Any]:
    """Flax's cells take the state first, and return it and the output."""
    return {"jax_call": lambda module, x, h: module(h, x)[result]}


def _function() -> dict[str, Any]:
    """A function of Flax has no weights."""
    return {"jax_call": lambda function, *inputs: function(*inputs)}


def eqx_pairs() -> Iterator[Pair]:
    """Yield the layers of Equinox."""
    t, e = torch.nn, eqx.nn
    yield Pair("Equinox: Linear", t.Linear(6, 3), e.Linear(6, 3, key=KEY), X, EACH)
    yield Pair("Equinox: Embedding", t.Embedding(11, 6), e.Embedding(11, 6, key=KEY), IDS.ravel(), EACH)
    yield Pair("Equinox: LayerNorm", t.LayerNorm(6), e.LayerNorm(6), X, EACH)
    yield Pair("Equinox: RMSNorm", t.RMSNorm(6, eps=1e-5), e.RMSNorm(6, use_bias=False), X, EACH)
    yield Pair("Equinox: GroupNorm", t.GroupNorm(2, 4), e.GroupNorm(2, 4), IMAGE, EACH)
    yield Pair("Equinox: Conv1d", t.Conv1d(4, 8, 3), e.Conv1d(4, 8, 3, key=KEY), SIGNAL, EACH)
    yield Pair("Equinox: Conv2d", t.Conv2d(4, 8, 3, 2, 1), e.Conv2d(4, 8, 3, 2, 1, key=KEY), IMAGE, EACH)
    yield Pair(
        "Equinox: Conv2d, groups", t.Conv2d(4, 8, 3, groups=2), e.Conv2d(4, 8, 3, groups=2, key=KEY), IMAGE, EACH
    )
    yield Pair("Equinox: Conv3d", t.Conv3d(4, 8, 2), e.Conv3d(4, 8, 2, key=KEY), VOLUME, EACH)
    yield Pair(
        "Equinox: ConvTranspose2d", t.ConvTranspose2d(4, 8, 3, 2), e.ConvTranspose2d(4, 8, 3, 2, key=KEY), IMAGE, EACH
    )
    attention = e.MultiheadAttention(2, 6, key=KEY)
    yield Pair(
        "Equinox: MultiheadAttention",
        *(t.MultiheadAttention(6, 2, bias=False, batch_first=True), attention, SEQUENCE),
        {
            "torch_call": lambda module, x: module(x, x, x)[0],
            "jax_call": lambda module, x: jax.vmap(lambda x: module(x, x, x))(x),
        },
    )
    yield Pair("Equinox: GRUCell", t.GRUCell(6, 6), e.GRUCell(6, 6, key=KEY), (X, HIDDEN), EACH)
    lstm: dict[str, Callable[..., Any]] = {
        "torch_call": lambda module, x, h, c: module(x, (h, c)),
        "jax_call": lambda module, x, h, c: jax.vmap(lambda x, h, c: module(x, (h, c)))(x, h, c),
    }
    yield Pair("Equinox: LSTMCell", t.LSTMCell(6, 6), e.LSTMCell(6, 6, key=KEY), (X, HIDDEN, CELL), lstm)
    yield Pair("Equinox: PReLU", t.PReLU(), e.PReLU(0.25), X)
    yield Pair("Equinox: MaxPool2d", t.MaxPool2d(2, 2), e.MaxPool2d(2, 2), IMAGE, EACH)
    yield Pair("Equinox: AvgPool2d", t.AvgPool2d(2, 2), e.AvgPool2d(2, 2), IMAGE, EACH)
    yield Pair(
        "Equinox: AdaptiveAvgPool2d", t.AdaptiveAvgPool2d((3, 2)), e.AdaptiveAvgPool2d((3, 2)), IMAGE, EACH, False
    )


PAIRS = (*nnx_pairs(), *eqx_pairs())
