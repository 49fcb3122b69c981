"""Recurrent networks: a GRU, an LSTM under Linen's scan, two directions with padding; and a language model's head."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from parity_tests.your_port.measure.taps import tap
from parity_tests.zoo.port import PROGRAM, Bug, Port

RNG = np.random.default_rng(0)
X, IDS = RNG.normal(size=(3, 6, 4)), RNG.integers(0, 11, (3, 6))
LENGTHS = np.array([6, 4, 2])
HIDDEN, LABELS = RNG.normal(size=(3, 6, 4)), RNG.integers(1, 7, (3, 6))
LABELS[1, 4:], LABELS[2, 3:] = 0, 0


def gru_step(h: Any, from_x: Any, from_h: Any, b_h: Any, bug: str = "") -> Any:
    """One step, from W_i x + b_i, W_h h and b_h."""
    (i_r, i_z, i_n), (h_r, h_z, _) = jnp.split(from_x, 3, -1), jnp.split(from_h + b_h, 3, -1)
    h_n, b_hn = from_h[..., 10:], b_h[10:]
    if bug == "gates z, r, n, as in Keras":
        i_r, i_z, h_r, h_z = i_z, i_r, h_z, h_r
    gate = (lambda x: jnp.clip(0.2 * x + 0.5, 0, 1)) if bug == "hard sigmoid, as in old Keras" else jax.nn.sigmoid
    r, z = gate(i_r + h_r), gate(i_z + h_z)
    n = i_n + b_hn + r * h_n if bug == "one bias for n, as in Core ML" else i_n + r * (h_n + b_hn)
    return (1 - z) * jnp.tanh(n) + z * h


class NnxGru(nnx.Module):
    def __init__(self, bug: str) -> None:
        rngs = nnx.Rngs(0)
        self.ih, self.bug = nnx.Linear(4, 15, rngs=rngs), bug
        self.hh = nnx.Linear(5, 15, use_bias=bug != "no bias_hh, as in NNX", rngs=rngs)

    def __call__(self, x: Any) -> Any:
        bias = jnp.zeros(15, x.dtype) if self.hh.bias is None else self.hh.bias[...]
        h, states = jnp.zeros((x.shape[0], 5), x.dtype), []
        for t in range(x.shape[1]):
            h = gru_step(h, self.ih(x[:, t]), h @ self.hh.kernel[...], bias, self.bug)
            states.append(h)
        return jnp.stack(states, 1)


GRU = Port(
    "GRU",
    lambda: torch.nn.GRU(4, 5, batch_first=True),
    NnxGru,
    (X,),
    (
        Bug("no bias_hh, as in NNX", None, "bias_hh|b_hn", "Flax #5594"),
        Bug("one bias for n, as in Core ML", None, "b_hn|bias_hh", "coremltools #1124"),
        Bug("gates z, r, n, as in Keras", None, "another order", "Keras #8720"),
        Bug("hard sigmoid, as in old Keras", None, "hard sigmoid", "Keras #9112"),
    ),
    {"torch_call": lambda module, x: module(x)[0]},
)


# An LSTM under Linen's scan, between an embedding and a head


class TorchTagger(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.lstm = torch.nn.Embedding(11, 4), torch.nn.LSTM(4, 5, batch_first=True)
        self.fc = torch.nn.Linear(5, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.fc(self.lstm(self.emb(ids))[0])


class LinenTagger(nn.Module):
    @nn.compact
    def __call__(self, ids: Any) -> Any:
        x = nn.RNN(nn.OptimizedLSTMCell(5), name="lstm")(nn.Embed(11, 4, name="emb")(ids))
        return nn.Dense(3, name="fc")(x)


def lstm_names(order: str = "ifgo", text: str = "bias_ih_l0[{0}/4] + bias_hh_l0[{0}/4]") -> dict[str, str]:
    names = {f"h{gate}.bias": text.format(place) for place, gate in enumerate(order)}
    for place, gate in enumerate(order):
        names |= {f"i{gate}.kernel": f"weight_ih_l0[{place}/4]", f"h{gate}.kernel": f"weight_hh_l0[{place}/4]"}
    return names


LSTM = Port(
    "LSTM tagger",
    TorchTagger,
    lambda bug: LinenTagger(),
    (IDS,),
    (
        Bug("b_ih dropped", "lstm", "bias_ih", "Flax #3746", {"names": lstm_names(text="bias_hh_l0[{0}/4]")}),
        Bug("gates i, g, f, o, as in TensorFlow", "lstm", "order", "TensorFlow #29308", {"names": lstm_names("igfo")}),
        Bug("gates i, f, o, g, as in Core ML", "lstm", "order", "coremltools #93", {"names": lstm_names("ifog")}),
    ),
    {"names": lstm_names()},
)


# Two directions with padding, as a function with taps


class TorchBiGru(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.fc = torch.nn.GRU(4, 5, batch_first=True, bidirectional=True), torch.nn.Linear(10, 5)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return torch.tanh(self.fc(torch.cat(tuple(self.gru(packed)[1]), -1)))


def bidirectional(weights: Any, x: Any, lengths: Any, bug: str) -> Any:
    def run(x: Any, end: str) -> Any:
        w_i, w_h, b_i, b_h = (weights[f"gru.{n}_l0{end}"] for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        h = jnp.zeros((x.shape[0], 5), x.dtype)
        for t in range(x.shape[1]):
            h = jnp.where((t < lengths)[:, None], gru_step(h, x[:, t] @ w_i.T + b_i, h @ w_h.T, b_h), h)
        return h

    backward = (lengths[:, None] - 1 - jnp.arange(x.shape[1])) % x.shape[1]
    turned = jnp.take_along_axis(x, backward[..., None], 1)
    turned = x[:, ::-1] if bug == "padding reversed to the front" else turned
    both = tap("input of fc", jnp.concatenate([run(x, ""), run(turned, "_reverse")], -1))
    return jnp.tanh(tap("fc", both @ weights["fc.weight"].T + weights["fc.bias"]))


BIDIRECTIONAL = Port(
    "bidirectional GRU",
    TorchBiGru,
    lambda bug: partial(bidirectional, bug=bug),
    (X, LENGTHS),
    (Bug("padding reversed to the front", "@input of fc", "padding|revers", "Flax #2170"),),
)

# The head of a language model, in Linen: a norm by hand, as the Annotated Transformer has it, and the loss


class TorchNorm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.bias = torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + self.bias


class TorchLanguageModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.lm_head = TorchNorm(), torch.nn.Linear(4, 7)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits, labels = self.lm_head(self.norm(x))[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        return torch.nn.functional.cross_entropy(logits, labels, ignore_index=0, label_smoothing=0.1)


class LinenNorm(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        scale, bias = (self.param(name, nn.initializers.ones, x.shape[-1:]) for name in ("scale", "bias"))
        return scale * (x - x.mean(-1, keepdims=True)) / (x.std(-1, ddof=1, keepdims=True) + 1e-6) + bias


class LinenLanguageModel(nn.Module):
    bug: str = ""

    @nn.compact
    def __call__(self, x: Any, labels: Any) -> Any:
        norm = nn.LayerNorm(name="norm") if self.bug == "the library's norm" else LinenNorm(name="norm")
        log_p = jax.nn.log_softmax(nn.Dense(7, name="lm_head")(norm(x))[:, :-1])
        by = {"labels not shifted": 0, "labels shifted by two": 2}.get(self.bug, 1)
        labels = jnp.roll(labels, -by, 1)[:, :-1]
        target = jax.nn.one_hot(labels, 7, dtype=x.dtype) * 0.9 + 0.1 / 7
        losses, seen = -(target * log_p).sum(-1), labels != 0
        return (losses * seen).sum() / seen.sum()


LANGUAGE_MODEL = Port(
    "language model's head",
    TorchLanguageModel,
    LinenLanguageModel,
    (HIDDEN, LABELS),
    (
        Bug("the library's norm", "norm", "epsilon|n − 1|standard deviation", "BERT-pytorch #30"),
        Bug("labels not shifted", PROGRAM, "shift", "transformers #27517"),
        Bug("labels shifted by two", PROGRAM, "shift", "transformers #37830"),
    ),
)

PORTS = (GRU, LSTM, BIDIRECTIONAL, LANGUAGE_MODEL)
