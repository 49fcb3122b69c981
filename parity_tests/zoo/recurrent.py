"""Recurrent networks: a GRU, an LSTM under Linen's scan, two directions with padding."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from parity_tests.zoo.parts import dense
from parity_tests.zoo.port import Bug, Port

RNG = np.random.default_rng(0)
X, IDS = RNG.normal(size=(3, 6, 4)), RNG.integers(0, 11, (3, 6))
LENGTHS = np.array([6, 4, 2])


def gru_step(h: Any, from_x: Any, from_h: Any, b_hn: Any, bug: str = "") -> Any:
    """One step, from W_i x + b_i and W_h h without the bias `b_hn` of the new gate."""
    (i_r, i_z, i_n), (h_r, h_z, h_n) = jnp.split(from_x, 3, -1), jnp.split(from_h, 3, -1)
    if bug == "gates z, r, n, as in Keras":
        i_r, i_z, h_r, h_z = i_z, i_r, h_z, h_r
    gate = (lambda x: jnp.clip(0.2 * x + 0.5, 0, 1)) if bug == "hard sigmoid, as in old Keras" else jax.nn.sigmoid
    r, z = gate(i_r + h_r), gate(i_z + h_z)
    n = i_n + b_hn + r * h_n if bug == "one bias for n, as in Core ML" else i_n + r * (h_n + b_hn)
    return (1 - z) * jnp.tanh(n) + z * h


# A sequence, in NNX; and a head


class TorchGruRegressor(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.fc = torch.nn.GRU(4, 5, batch_first=True), torch.nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.gru(x)[0][:, -1])


class NnxGru(nnx.Module):
    def __init__(self, bug: str) -> None:
        rngs = nnx.Rngs(0)
        self.ih, self.hh, self.bug = nnx.Linear(4, 15, rngs=rngs), nnx.Linear(5, 15, rngs=rngs), bug

    def __call__(self, x: Any) -> Any:
        h, states = jnp.zeros((x.shape[0], 5), x.dtype), []
        bias: Any = self.hh.bias
        b_r, b_n = jnp.split(bias[...], [10])
        for t in range(x.shape[1]):
            from_h = jnp.concatenate([b_r, 0 * b_n]) + h @ self.hh.kernel[...]
            h = gru_step(h, self.ih(x[:, t]), from_h, b_n, self.bug)
            states.append(h)
        return jnp.stack(states, 1)


class NnxLibraryGru(nnx.Module):
    def __init__(self) -> None:
        self.cell = nnx.GRUCell(4, 5, rngs=nnx.Rngs(0))

    def __call__(self, x: Any) -> Any:
        h, states = jnp.zeros((x.shape[0], 5), x.dtype), []
        for t in range(x.shape[1]):
            h = self.cell(h, x[:, t])[1]
            states.append(h)
        return jnp.stack(states, 1)


class NnxGruRegressor(nnx.Module):
    def __init__(self, bug: str) -> None:
        self.gru = NnxLibraryGru() if bug == "the library's cell" else NnxGru(bug)
        self.fc = nnx.Linear(5, 2, rngs=nnx.Rngs(0))

    def __call__(self, x: Any) -> Any:
        return self.fc(self.gru(x)[:, -1])


LIBRARY_HAS_BIAS = any("bias" in "/".join(map(str, p)) and "dense_h" in p for p, _ in nnx.to_flat_state(
    nnx.state(nnx.eval_shape(lambda: nnx.GRUCell(4, 5, rngs=nnx.Rngs(0))))))  # fmt: skip
"""Flax 0.12 has no bias_hh in NNX's cell; a later version may."""

GRU = Port(
    "GRU regressor",
    "NNX",
    TorchGruRegressor,
    NnxGruRegressor,
    (X,),
    (
        *(() if LIBRARY_HAS_BIAS else (Bug("the library's cell", "gru", "bias_hh|b_hn", "Flax #5594"),)),
        Bug("one bias for n, as in Core ML", "gru", "b_hn|bias_hh", "coremltools #1124"),
        Bug("gates z, r, n, as in Keras", "gru", "another order", "Keras #8720"),
        Bug("hard sigmoid, as in old Keras", "gru", "hard sigmoid", "Keras #9112"),
    ),
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
    if order != "ifgo":
        for place, gate in enumerate(order):
            names |= {f"i{gate}.kernel": f"weight_ih_l0[{place}/4]", f"h{gate}.kernel": f"weight_hh_l0[{place}/4]"}
    return names


LSTM = Port(
    "LSTM tagger",
    "Linen",
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
        h, zero = jnp.zeros((x.shape[0], 5), x.dtype), jnp.zeros(5, x.dtype)
        for t in range(x.shape[1]):
            from_h = h @ w_h.T + jnp.concatenate([b_h[:10], zero])
            h = jnp.where((t < lengths)[:, None], gru_step(h, x[:, t] @ w_i.T + b_i, from_h, b_h[10:]), h)
        return h

    backward = (lengths[:, None] - 1 - jnp.arange(x.shape[1])) % x.shape[1]
    turned = jnp.take_along_axis(x, backward[..., None], 1)
    turned = x[:, ::-1] if bug == "padding reversed to the front" else turned
    return jnp.tanh(dense(weights, "fc", jnp.concatenate([run(x, ""), run(turned, "_reverse")], -1)))


BIDIRECTIONAL = Port(
    "bidirectional GRU",
    "function",
    TorchBiGru,
    lambda bug: partial(bidirectional, bug=bug),
    (X, LENGTHS),
    (Bug("padding reversed to the front", "@input of fc", "padding|revers", "Flax #2170"),),
)

PORTS = (GRU, LSTM, BIDIRECTIONAL)
