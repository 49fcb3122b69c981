"""A norm by hand, and the loss of a language model."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch

from parity_tests.your_port.place.taps import tap
from parity_tests.zoo.parts import dense
from parity_tests.zoo.port import PROGRAM, Bug, Port

RNG = np.random.default_rng(3)
D = 8
X, HIDDEN, LABELS = RNG.normal(size=(3, 5, D)), RNG.normal(size=(3, 6, 4)), RNG.integers(1, 7, (3, 6))
LABELS[1, 4:], LABELS[2, 3:] = 0, 0


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
    y = centred / (x.std(-1, ddof=1, keepdims=True) + 1e-6)
    if bug == "the library's norm":
        y = centred / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)
    y = tap("norm", weights["norm.a"] * y + weights["norm.b"])
    return x + dense(weights, "fc2", jax.nn.relu(dense(weights, "fc1", y)))


NORMED = Port(
    "norm by hand",
    "function",
    TorchNormed,
    lambda bug: partial(normed, bug=bug),
    (X,),
    (Bug("the library's norm", "@norm", "epsilon|n − 1|standard deviation", "BERT-pytorch #30"),),
)


# The loss of a language model: labels shifted, padding ignored, smoothed; in Linen


class TorchLanguageModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lm_head = torch.nn.Linear(4, 7)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits, labels = self.lm_head(x)[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        return torch.nn.functional.cross_entropy(logits, labels, ignore_index=0, label_smoothing=0.1)


class LinenLanguageModel(nn.Module):
    bug: str = ""

    @nn.compact
    def __call__(self, x: Any, labels: Any) -> Any:
        log_p = jax.nn.log_softmax(nn.Dense(7, name="lm_head")(x)[:, :-1])
        by = {"labels not shifted": 0, "labels shifted by two": 2}.get(self.bug, 1)
        labels = jnp.roll(labels, -by, 1)[:, :-1]
        target = jax.nn.one_hot(labels, 7, dtype=x.dtype) * 0.9 + 0.1 / 7
        losses, seen = -(target * log_p).sum(-1), labels != 0
        return (losses * seen).sum() / seen.sum()


LANGUAGE_MODEL = Port(
    "language model's loss",
    "Linen",
    TorchLanguageModel,
    LinenLanguageModel,
    (HIDDEN, LABELS),
    (
        Bug("labels not shifted", PROGRAM, "shift", "transformers #27517"),
        Bug("labels shifted by two", PROGRAM, "shift", "transformers #37830"),
    ),
)

PORTS = (NORMED, LANGUAGE_MODEL)
