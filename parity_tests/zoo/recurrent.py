"""Recurrent networks: GRU and LSTM, cells and sequences, one and two directions."""

from functools import partial
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from parity_tests.zoo.parts import dense
from parity_tests.zoo.port import PROGRAM, Bug, Port

RNG = np.random.default_rng(0)
X, H, IDS = RNG.normal(size=(3, 6, 4)), RNG.normal(size=(3, 5)), RNG.integers(0, 11, (3, 6))
LENGTHS = np.array([6, 4, 2])


def gru_step(h: Any, from_x: Any, from_h: Any, b_hn: Any, bug: str) -> Any:
    """One step, from W_i x + b_i and W_h h without the bias `b_hn` of the new gate."""
    (i_r, i_z, i_n), (h_r, h_z, h_n) = jnp.split(from_x, 3, -1), jnp.split(from_h, 3, -1)
    if bug == "gates z, r, n":
        i_r, i_z, h_r, h_z = i_z, i_r, h_z, h_r
    r, z = jax.nn.sigmoid(i_r + h_r), jax.nn.sigmoid(i_z + h_z)
    if bug == "b_hn outside of the reset gate":
        new = jnp.tanh(i_n + b_hn + r * h_n)
    elif bug == "b_hn missing":
        new = jnp.tanh(i_n + r * h_n)
    elif bug == "reset gate outside of the tanh":
        new = r * jnp.tanh(i_n + h_n + b_hn)
    else:
        new = jnp.tanh(i_n + r * (h_n + b_hn))
    return (1 - z) * h + z * new if bug == "update gate inverted" else (1 - z) * new + z * h


# A cell alone, in Linen: the library's


class LinenGru(nn.Module):
    bug: str = ""

    @nn.compact
    def __call__(self, x: Any, h: Any) -> Any:
        gate = nn.hard_sigmoid if self.bug == "hard sigmoid, as in old Keras" else nn.sigmoid
        act = nn.relu if self.bug == "relu in the place of tanh" else nn.tanh
        return nn.GRUCell(5, gate_fn=gate, activation_fn=act, name="cell")(h, x)[1]


def linen_gru_names(r: int = 0, z: int = 1, summed: bool = True) -> dict[str, str]:
    names = {}
    for gate, place in (("ir", r), ("iz", z)):
        names[f"{gate}.bias"] = f"bias_ih[{place}/3]" + f" + bias_hh[{place}/3]" * summed
        if r:
            names |= {f"{gate}.kernel": f"weight_ih[{place}/3]", f"h{gate[1]}.kernel": f"weight_hh[{place}/3]"}
    return names


GRU_CELL_LINEN = Port(
    "GRU cell",
    "Linen",
    lambda: torch.nn.GRUCell(4, 5),
    LinenGru,
    (X[:, 0], H),
    (
        Bug("hard sigmoid, as in old Keras", None, "hard sigmoid"),
        Bug("relu in the place of tanh", None, "tanh is ReLU"),
        Bug("b_hr and b_hz dropped", None, "bias_hh", "Flax #3746", {"names": linen_gru_names(summed=False)}),
        Bug("r and z exchanged in the weights", None, "order|exchanged", "", {"names": linen_gru_names(1, 0)}),
    ),
    {"names": linen_gru_names()},
)


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
        self.ih, self.hh = nnx.Linear(4, 15, rngs=rngs), nnx.Linear(5, 15, rngs=rngs)
        self.bug = bug

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
        self.fc, self.bug = nnx.Linear(5, 2, use_bias=bug != "the head has no bias", rngs=nnx.Rngs(0)), bug

    def __call__(self, x: Any) -> Any:
        x = x[:, ::-1] if self.bug == "sequence reversed" else x
        return self.fc(self.gru(x)[:, 0 if self.bug == "the first state, not the last" else -1])


LIBRARY_HAS_BIAS = any("bias" in "/".join(map(str, p)) and "dense_h" in p for p, _ in nnx.to_flat_state(
    nnx.state(nnx.eval_shape(lambda: nnx.GRUCell(4, 5, rngs=nnx.Rngs(0))))))  # fmt: skip
"""Flax 0.12 has no bias_hh in NNX's cell; a later version may."""

GRU_NNX = Port(
    "GRU regressor",
    "NNX",
    TorchGruRegressor,
    NnxGruRegressor,
    (X,),
    (
        *(() if LIBRARY_HAS_BIAS else (Bug("the library's cell", "gru", "bias_hh|b_hn", "Flax #5594"),)),
        Bug("b_hn outside of the reset gate", "gru", "b_hn|bias_hh"),
        Bug("b_hn missing", "gru", "b_hn|bias_hh"),
        Bug("update gate inverted", "gru", "update gate"),
        Bug("gates z, r, n", "gru", "another order"),
        Bug("sequence reversed", PROGRAM, "reverse|flip"),
        Bug("the first state, not the last", PROGRAM, "first|last|position|state"),
        Bug("the head has no bias", "fc", "fc.bias.*missing"),
    ),
)


# A cell, in Equinox


class EqxGru(eqx.Module):
    weight_ih: Any
    weight_hh: Any
    bias_ih: Any
    bias_hh: Any
    bug: str = eqx.field(static=True)

    def __call__(self, x: Any, h: Any) -> Any:
        keep = jnp.arange(15) < 10
        from_h = self.weight_hh @ h + jnp.where(keep, self.bias_hh, 0)
        return gru_step(h, self.weight_ih @ x + self.bias_ih, from_h, self.bias_hh[10:], self.bug)


def eqx_gru(bug: str) -> Any:
    if bug == "the library's cell, its bias taken for bias_ih":
        return eqx.nn.GRUCell(4, 5, key=jax.random.key(0))
    return EqxGru(jnp.zeros((15, 4)), jnp.zeros((15, 5)), jnp.zeros(15), jnp.zeros(15), bug)


GRU_CELL_EQUINOX = Port(
    "GRU cell",
    "Equinox",
    lambda: torch.nn.GRUCell(4, 5),
    eqx_gru,
    (X[:, 0], H),
    (
        Bug(
            "the library's cell, its bias taken for bias_ih",
            None,
            "bias_hh",
            "Equinox #1003",
            {"names": {"bias": "bias_ih", "bias_n": "bias_hh[2/3]"}},
        ),
        Bug("update gate inverted", None, "update gate"),
        Bug("b_hn outside of the reset gate", None, "b_hn|bias_hh"),
        Bug("reset gate outside of the tanh", None, "reset"),
    ),
    {"jax_call": lambda module, x, h: jax.vmap(module)(x, h)},
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
    bug: str = ""

    @nn.compact
    def __call__(self, ids: Any) -> Any:
        y = nn.Embed(11, 4, name="emb")(ids)
        backward, time_first = self.bug == "sequence reversed", self.bug == "time before batch"
        cell = nn.OptimizedLSTMCell(5)
        x: Any = nn.RNN(cell, name="lstm", reverse=backward, keep_order=True, time_major=time_first)(y)
        return nn.Dense(3, name="fc")(nn.relu(x) if self.bug == "a relu too much" else x)


def lstm_names(order: str = "ifgo", text: str = "bias_ih_l0[{0}/4] + bias_hh_l0[{0}/4]") -> dict[str, str]:
    names = {f"h{gate}.bias": text.format(place) for place, gate in enumerate(order)}
    if order != "ifgo":
        for place, gate in enumerate(order):
            names |= {f"i{gate}.kernel": f"weight_ih_l0[{place}/4]", f"h{gate}.kernel": f"weight_hh_l0[{place}/4]"}
    return names


LSTM_LINEN = Port(
    "LSTM tagger",
    "Linen",
    TorchTagger,
    LinenTagger,
    (IDS,),
    (
        Bug("b_ih dropped", "lstm", "bias_ih", "Flax #3746", {"names": lstm_names(text="bias_hh_l0[{0}/4]")}),
        Bug("gates i, g, f, o, as in Haiku", "lstm", "order", "", {"names": lstm_names("igfo")}),
        Bug("gates i, f, o, g", "lstm", "order", "", {"names": lstm_names("ifog")}),
        Bug("sequence reversed", "lstm", "reverse|flip"),
        Bug("time before batch", "lstm", "batch|time|axis|axes"),
        Bug("a relu too much", PROGRAM, "relu"),
    ),
    {"names": lstm_names()},
)


# An LSTM as a function of PyTorch's weights


def lstm(weights: Any, x: Any, bug: str) -> Any:
    def step(state: Any, x: Any) -> Any:
        h, c = state
        gates = x @ weights["weight_ih_l0"].T + weights["bias_ih_l0"] + h @ weights["weight_hh_l0"].T
        gates = gates if bug == "b_hh missing" else gates + weights["bias_hh_l0"]
        i, f, g, o = jnp.split(gates, 4, -1)
        f = f + 1 if bug == "forget bias of 1" else f
        g = jax.nn.sigmoid(g) if bug == "sigmoid for the candidate" else jnp.tanh(g)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * g
        h = jax.nn.sigmoid(o) * (c if bug == "no tanh at the output" else jnp.tanh(c))
        return (h, c), h

    zero = jnp.zeros((x.shape[0], 5), x.dtype)
    (h, c), states = jax.lax.scan(step, (zero, zero), x.swapaxes(0, 1))
    return states.swapaxes(0, 1), ((c, h) if bug == "c returned for h" else (h, c))


LSTM_FUNCTION = Port(
    "LSTM",
    "function",
    lambda: torch.nn.LSTM(4, 5, batch_first=True),
    lambda bug: partial(lstm, bug=bug),
    (X,),
    (
        Bug("b_hh missing", None, "bias_hh.*missing"),
        Bug("forget bias of 1", None, "forget"),
        Bug("sigmoid for the candidate", None, "tanh is the sigmoid|candidate"),
        Bug("no tanh at the output", None, "tanh"),
        Bug("c returned for h", None, "exchanged|order"),
    ),
    {"torch_call": lambda module, x: (lambda y, s: (y, (s[0][0], s[1][0])))(*module(x))},
)


# Two directions with padding


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
            new = gru_step(h, x[:, t] @ w_i.T + b_i, from_h, b_h[10:], "")
            h = new if bug == "padding runs through the state" else jnp.where((t < lengths)[:, None], new, h)
        return h

    backward = (lengths[:, None] - 1 - jnp.arange(x.shape[1])) % x.shape[1]
    turned = jnp.take_along_axis(x, backward[..., None], 1)
    turned = x[:, ::-1] if bug == "padding reversed to the front" else turned
    ends = [run(x, ""), run(turned, "" if bug == "one direction's weights for both" else "_reverse")]
    hidden = jnp.concatenate(ends[::-1] if bug == "directions in the other order" else ends, -1)
    return jnp.tanh(dense(weights, "fc", hidden))


BIDIRECTIONAL = Port(
    "bidirectional GRU",
    "function",
    TorchBiGru,
    lambda bug: partial(bidirectional, bug=bug),
    (X, LENGTHS),
    (
        Bug("padding runs through the state", "@input of fc", "padding|length|mask"),
        Bug("padding reversed to the front", "@input of fc", "padding|revers", "Flax #2170"),
        Bug("one direction's weights for both", "@input of fc", "reverse|same weights|exchanged"),
        Bug("directions in the other order", "@input of fc", "order"),
    ),
)

PORTS = (GRU_CELL_LINEN, GRU_NNX, GRU_CELL_EQUINOX, LSTM_LINEN, LSTM_FUNCTION, BIDIRECTIONAL)
