"""Losses: of a language model, of a classifier, of an autoencoder, and between two encoders."""

from functools import partial
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from flax import nnx

from parity_tests.zoo.parts import dense
from parity_tests.zoo.port import PROGRAM, Bug, Port

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(4, 6)), RNG.normal(size=(4, 5))
HIDDEN, LABELS = RNG.normal(size=(3, 6, 4)), RNG.integers(1, 7, (3, 6))
LABELS[1, 4:], LABELS[2, 3:] = 0, 0
CLASSES, PIXELS = np.array([0, 2, 1, 1]), RNG.uniform(size=(4, 6))


# A language model's: labels shifted, padding ignored, smoothed


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
        logits = nn.Dense(7, use_bias=self.bug != "no bias", name="lm_head")(x)
        if self.bug == "labels not shifted":
            labels = labels[:, :-1]
        elif self.bug == "labels shifted by two":
            labels = jnp.roll(labels, -2, 1)[:, :-1]
        else:
            labels = labels[:, 1:]
        logits, smoothing = logits[:, :-1], 0.0 if self.bug == "smoothing forgotten" else 0.1
        log_p = jax.nn.softmax(logits) if self.bug == "no logarithm" else jax.nn.log_softmax(logits)
        target = jax.nn.one_hot(labels, 7, dtype=x.dtype)
        if self.bug == "smoothing shared among the other classes":
            target = jnp.where(target == 1, 1 - smoothing, smoothing / 6)
        else:
            target = target * (1 - smoothing) + smoothing / 7
        losses, seen = -(target * log_p).sum(-1), labels != 0
        if self.bug == "padding counted":
            return losses.mean()
        if self.bug == "divided by the padded length":
            return (losses * seen).mean()
        if self.bug == "mean of the sentences' means":
            return ((losses * seen).sum(1) / seen.sum(1)).mean()
        total = (losses * seen).sum()
        return total if self.bug == "sum for the mean" else total / seen.sum()


LANGUAGE_MODEL = Port(
    "language model's loss",
    "Linen",
    TorchLanguageModel,
    LinenLanguageModel,
    (HIDDEN, LABELS),
    (
        Bug("labels not shifted", PROGRAM, "shift"),
        Bug("labels shifted by two", PROGRAM, "shift"),
        Bug("smoothing forgotten", PROGRAM, "smoothing is 0"),
        Bug("smoothing shared among the other classes", PROGRAM, "other classes"),
        Bug("padding counted", PROGRAM, "padding is counted"),
        Bug("divided by the padded length", PROGRAM, "padding is counted|number of all labels"),
        Bug("mean of the sentences' means", PROGRAM, "mean|sentence|reduced"),
        Bug("sum for the mean", PROGRAM, "sum"),
        Bug("no logarithm", PROGRAM, "log"),
        Bug("no bias", "lm_head", "bias.*missing"),
    ),
)


# A classifier's with class weights, as a function of the weights


class TorchClassifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        weight = torch.tensor([1.0, 2.0, 0.5], dtype=x.dtype)
        return torch.nn.functional.cross_entropy(self.fc(x), classes, weight=weight)


def classifier(weights: Any, x: Any, classes: Any, bug: str) -> Any:
    logits = dense(weights, "fc", x)
    logits = jax.nn.softmax(logits) if bug == "probabilities for logits" else logits
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, classes)
    scale = jnp.array([1.0, 2.0, 0.5], x.dtype)[classes]
    if bug == "class weights ignored":
        return losses.mean()
    return (losses * scale).mean() if bug == "divided by the batch" else (losses * scale).sum() / scale.sum()


CLASSIFIER = Port(
    "classifier's loss",
    "function",
    TorchClassifier,
    lambda bug: partial(classifier, bug=bug),
    (X, CLASSES),
    (
        Bug("class weights ignored", "@result", "weights of the classes"),
        Bug("divided by the batch", "@result", "batch|number of all"),
        Bug("probabilities for logits", "@result", "probabilities"),
    ),
)


# An autoencoder's, in NNX


class TorchVae(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mu, self.logvar, self.decode = torch.nn.Linear(6, 4), torch.nn.Linear(6, 4), torch.nn.Linear(4, 6)

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> Any:
        mu, logvar = self.mu(x), self.logvar(x)
        logits = self.decode(mu + torch.exp(0.5 * logvar) * noise)
        likelihood = torch.nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="sum") / len(x)
        return likelihood, -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()


class NnxVae(nnx.Module):
    def __init__(self, bug: str) -> None:
        make = partial(nnx.Linear, rngs=nnx.Rngs(0))
        self.mu, self.logvar, self.decode, self.bug = make(6, 4), make(6, 4), make(4, 6), bug

    def __call__(self, x: Any, noise: Any) -> Any:
        mu, logvar = self.mu(x), self.logvar(x)
        logits = self.decode(mu + jnp.exp(logvar if self.bug == "variance for the deviation" else 0.5 * logvar) * noise)
        likelihood = optax.sigmoid_binary_cross_entropy(logits, x)
        likelihood = likelihood.mean() if self.bug == "mean over pixels" else likelihood.sum() / len(x)
        sign = -1 if self.bug == "sign of the divergence" else 1
        divergence = -0.5 * (1 + logvar - mu**2 - jnp.exp(logvar))
        return likelihood, sign * (divergence.mean() if self.bug == "mean over the code" else divergence.sum(1).mean())


VAE = Port(
    "autoencoder's loss",
    "NNX",
    TorchVae,
    NnxVae,
    (PIXELS, RNG.normal(size=(4, 4))),
    (
        Bug("variance for the deviation", PROGRAM, "factor 0.5|scale|0.5"),
        Bug("mean over pixels", PROGRAM, "reduced by the mean|mean"),
        Bug("mean over the code", PROGRAM, "mean"),
        Bug("sign of the divergence", PROGRAM, "sign|-1|factor"),
    ),
)


# Between two encoders, in Equinox


class TorchClip(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = torch.nn.Linear(6, 4, bias=False), torch.nn.Linear(5, 4, bias=False)
        self.logit_scale = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, y = (torch.nn.functional.normalize(z, dim=-1) for z in (self.image(x), self.text(y)))
        logits, same = self.logit_scale.exp() * x @ y.T, torch.arange(len(x))
        entropy = torch.nn.functional.cross_entropy
        return (entropy(logits, same) + entropy(logits.T, same)) / 2


class EqxClip(eqx.Module):
    image: eqx.nn.Linear
    text: eqx.nn.Linear
    logit_scale: Any
    bug: str = eqx.field(static=True)

    def __call__(self, x: Any, y: Any) -> Any:
        axis = 0 if self.bug == "normalised over the batch" else -1
        x, y = jax.vmap(self.image)(x), jax.vmap(self.text)(y)
        if self.bug != "not normalised":
            x, y = (z / jnp.linalg.norm(z, axis=axis, keepdims=True) for z in (x, y))
        scale = self.logit_scale if self.bug == "no exp of the temperature" else jnp.exp(self.logit_scale)
        logits, same = scale * x @ y.T, jnp.arange(len(x))
        entropy = optax.softmax_cross_entropy_with_integer_labels
        both = (entropy(logits, same) + entropy(logits.T, same)).mean()
        return entropy(logits, same).mean() if self.bug == "one direction alone" else both / 2


def eqx_clip(bug: str) -> Any:
    make = partial(eqx.nn.Linear, use_bias=False, key=jax.random.key(0))
    return EqxClip(make(6, 4), make(5, 4), jnp.zeros(()), bug)


CLIP = Port(
    "loss between two encoders",
    "Equinox",
    TorchClip,
    eqx_clip,
    (X, Y),
    (
        Bug("normalised over the batch", PROGRAM, "normal|axis"),
        Bug("not normalised", PROGRAM, "normal"),
        Bug("no exp of the temperature", PROGRAM, "exp"),
        Bug("one direction alone", PROGRAM, "term|direction"),
    ),
)

PORTS = (LANGUAGE_MODEL, CLASSIFIER, VAE, CLIP)
