"""Each known mistake, made on purpose in a small port: it has to be named, and nothing else beside it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jax_attn
from parity_tests import Case, JaxSide, Variant, find_divergence, torch_function, torch_module
from parity_tests.your_port.cause.steps import Values, entries_of

RNG = np.random.default_rng(0)
X, H, C = (RNG.normal(size=(3, 4)) for _ in range(3))


def explanations(torch_side: Any, port: Callable[..., Any], inputs: dict[str, Any]) -> tuple[str, ...]:
    case = Case("port", (Variant("random", inputs),), torch_side, JaxSide(port))
    found = find_divergence(case)
    assert found is not None
    return tuple(cause.words for cause in found.causes)


def linear(*sizes: int) -> Any:
    return torch_module(lambda options, inputs: torch.nn.Linear(*sizes))


def gru(weights: Any, inputs: Any, options: Any) -> Any:
    projected = inputs["input"] @ weights["weight_ih"].T + weights["bias_ih"]
    return jax_attn.gru_step(inputs["hx"], projected, weights["weight_hh"].T, weights["bias_hh"])[1]


GRU_CELL = torch_module(lambda options, inputs: torch.nn.GRUCell(4, 4))
GRU_INPUTS = {"input": X, "hx": H}


def test_two_biases_merged() -> None:
    def merged(weights: Any, inputs: Any, options: Any) -> Any:
        both = weights["bias_ih"] + weights["bias_hh"]
        return gru({**weights, "bias_ih": both, "bias_hh": 0 * both}, inputs, options)

    assert explanations(GRU_CELL, merged, GRU_INPUTS) == (
        "b_hn stands outside of the reset gate in JAX: bias_hh is merged into bias_ih",
    )


def test_the_gates_of_an_lstm() -> None:
    def port(weights: Any, inputs: Any, options: Any) -> Any:
        def reorder(x: Any) -> Any:  # what the port expects as i, f, g, o are PyTorch's f, o, i, g
            i, f, g, o = jnp.split(x, 4)
            return jnp.concatenate([f, o, i, g])

        weights = {name: reorder(weight) for name, weight in weights.items()}
        projected = inputs["input"] @ weights["weight_ih"].T + weights["bias_ih"]
        carry = (inputs["h"], inputs["c"])
        return jax_attn.lstm_step(carry, projected, weights["weight_hh"].T, weights["bias_hh"])[0]

    cell = torch_module(
        lambda options, inputs: torch.nn.LSTMCell(4, 4),
        lambda module, inputs: module(inputs["input"], (inputs["h"], inputs["c"])),
    )
    found = explanations(cell, port, {"input": X, "h": H, "c": C})
    assert found == ("gates in another order: for i, f, g, o JAX takes PyTorch's f, o, i, g",)


def test_two_weights_exchanged() -> None:
    def port(weights: Any, inputs: Any, options: Any) -> Any:
        return jnp.tanh(inputs["input"] @ weights["1.weight"].T) @ weights["0.weight"].T

    def build(options: Any, inputs: Any) -> Any:
        layers = (torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
        return torch.nn.Sequential(layers[0], layers[1])

    side = torch_module(build, lambda module, inputs: module[1](torch.tanh(module[0](inputs["input"]))))
    assert explanations(side, port, {"input": X}) == ("0.weight and 1.weight are exchanged in JAX",)


def test_a_mask_of_the_other_polarity() -> None:
    hidden = np.array([[True, False, False, True], [False, True, False, False], [True, True, True, False]])
    found = explanations(
        torch_function(lambda inputs, _: torch.where(inputs["hidden"], -1e9, inputs["scores"]).softmax(-1)),
        lambda weights, inputs, _: jax.nn.softmax(jnp.where(inputs["hidden"], inputs["scores"], -1e9)),
        {"scores": X, "hidden": hidden},
    )
    assert found == ("hidden is read the other way round in JAX",)


def test_a_length_off_by_one() -> None:
    def port(weights: Any, inputs: Any, options: Any) -> Any:
        return jnp.where(jnp.arange(4) <= inputs["lengths"][:, None], inputs["x"], 0)

    found = explanations(
        torch_function(lambda inputs, _: torch.where(torch.arange(4) < inputs["lengths"][:, None], inputs["x"], 0)),
        port,
        {"x": X, "lengths": np.array([1, 3, 2])},
    )
    assert found == ("lengths is taken as +1 in JAX: off by one",)


def test_what_no_mistake_explains_is_not_explained() -> None:
    found = explanations(linear(4, 3), lambda weights, inputs, _: jnp.sin(inputs["input"][:, :3]), {"input": X})
    assert found == ()


def test_two_axes_exchanged() -> None:
    conv = torch.nn.functional.conv2d
    image, kernel = RNG.normal(size=(1, 2, 5, 5)), RNG.normal(size=(3, 2, 3, 3))
    found = explanations(
        torch_function(lambda inputs, _: conv(inputs["x"], inputs["kernel"])),
        lambda weights, inputs, _: jax.lax.conv(inputs["x"].swapaxes(2, 3), inputs["kernel"], (1, 1), "VALID"),
        {"x": image, "kernel": kernel},
    )
    assert found == ("x is read with axes 2 and 3 exchanged in JAX",)


@pytest.mark.parametrize("axis", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_an_axis_in_reverse(axis: int) -> None:
    found = explanations(
        torch_function(lambda inputs, _: inputs["x"].cumsum(axis) ** 2),
        lambda weights, inputs, _: jnp.cumsum(jnp.flip(inputs["x"], axis), axis) ** 2,
        {"x": X},
    )
    assert found == (f"x is read in reverse along axis {axis} in JAX",)


T = torch.nn.functional
LABELS = np.array([[0, 1, 3, 0], [2, 2, 0, 0]])
LOGITS = RNG.normal(size=(2, 4, 5))
TOKENS = RNG.normal(size=(2, 4, 6))
HIDDEN = np.array([[False, False, False, True], [False, False, True, True]])


def torch_attention(inputs: Any, _: Any) -> Any:
    q, k, v = (x.unflatten(-1, (2, 3)).transpose(1, 2) for x in (inputs["x"], inputs["x"] + 1, inputs["x"] ** 2))
    hidden = inputs["hidden"][:, None, None]
    return T.scaled_dot_product_attention(q, k, v, attn_mask=~hidden).transpose(1, 2).flatten(-2)


def attention(scale: float = 3**-0.5, weak: float = -np.inf, by_turns: bool = False) -> Callable[..., Any]:
    def port(weights: Any, inputs: Any, options: Any) -> Any:
        def split(x: Any) -> Any:
            x = x.reshape(2, 4, 3, 2).swapaxes(-1, -2) if by_turns else x.reshape(2, 4, 2, 3)
            return x.swapaxes(1, 2)

        q, k, v = map(split, (inputs["x"], inputs["x"] + 1, inputs["x"] ** 2))
        hidden, scores = inputs["hidden"][:, None, None], q @ k.swapaxes(-1, -2) * scale
        return (jax.nn.softmax(jnp.where(hidden, weak, scores)) @ v).swapaxes(1, 2).reshape(2, 4, 6)

    return port


def loss(**wrong: Any) -> Callable[..., Any]:
    """Labels of 0 are padding."""

    def port(weights: Any, inputs: Any, options: Any) -> Any:
        labels = jnp.roll(inputs["labels"], wrong.get("shift", 0))
        taken = jnp.take_along_axis(jax.nn.log_softmax(inputs["x"]), labels[:, None], 1)[:, 0]
        total = -(taken * (labels != 0)).sum()
        return total if wrong.get("sum") else total / (len(labels) if wrong.get("all") else (labels != 0).sum())

    return port


def torch_loss(inputs: Any, _: Any) -> Any:
    return T.cross_entropy(inputs["x"], inputs["labels"], ignore_index=0)


@pytest.mark.parametrize(
    ("call", "port", "inputs", "mistake"),
    [
        (torch_attention, attention(scale=1.0), "attention", "the factor 0.57735 is missing"),
        (torch_attention, attention(scale=6**-0.5), "attention", "the factor is 0.408248, by √6, and not 0.57735"),
        (torch_attention, attention(weak=-10.0), "attention", "the mask is too weak: hidden scores are -10"),
        (torch_attention, attention(by_turns=True), "attention",
         "axes of 2 and 3 (heads and features, or height and width) change places where they are split"),
        (torch_loss, loss(sum=True), "loss", "the loss is reduced by the sum"),
        (torch_loss, loss(shift=2), "loss", "labels is shifted by +2 along its last axis"),
    ],
)  # fmt: skip
def test_mistakes_of_attention_and_of_the_loss(call: Any, port: Any, inputs: str, mistake: str) -> None:
    given = {
        "attention": {"x": TOKENS, "hidden": HIDDEN},
        "loss": {"x": LOGITS.reshape(8, 5), "labels": LABELS.ravel()},
    }
    assert explanations(torch_function(call), port, given[inputs]) == (f"{mistake} in JAX",)


def test_two_mistakes_that_are_the_same_here_are_both_named() -> None:
    inputs = {"x": LOGITS.reshape(8, 5), "labels": LABELS.ravel()}
    assert explanations(torch_function(torch_loss), loss(all=True), inputs) == (
        "padding is counted: the loss is divided by the number of all labels in JAX",
        "the loss is the sum divided by the size of the batch in JAX",
    )


@pytest.mark.parametrize(
    ("mistake", "words"),
    [("b_hn", "the last third of bias_hh is missing"), ("inverted", "the update gate is inverted")],
)
def test_mistakes_of_a_gru(mistake: str, words: str) -> None:
    def port(weights: Any, inputs: Any, options: Any) -> Any:
        x, h = (
            inputs[name] @ weights[f"weight_{part}"].T + weights[f"bias_{part}"]
            for name, part in (("input", "ih"), ("hx", "hh"))
        )
        (xr, xz, xn), (hr, hz, hn) = jnp.split(x, 3, -1), jnp.split(h, 3, -1)
        hn = hn - weights["bias_hh"][8:] if mistake == "b_hn" else hn
        z, n = jax.nn.sigmoid(xz + hz), jnp.tanh(xn + jax.nn.sigmoid(xr + hr) * hn)
        z = 1 - z if mistake == "inverted" else z
        return (1 - z) * n + z * inputs["hx"]

    (found,) = explanations(GRU_CELL, port, GRU_INPUTS)
    assert found.startswith(words)


@pytest.mark.parametrize("size", [8, pytest.param(10, marks=pytest.mark.slow)])
def test_features_rotated_in_other_pairs(size: int) -> None:
    angles = np.arange(4)[:, None] * np.array([1.0, 0.5, 0.2, 0.1, 0.05])[: size // 2]  # [position, pair]

    def build(options: Any, inputs: Any) -> Any:
        return torch.nn.ModuleDict({name: torch.nn.Linear(6, size, bias=False) for name in ("query", "key")})

    def call(module: Any, inputs: Any) -> Any:
        def rotated(x: Any) -> Any:
            (a, b), sin, cos = x.chunk(2, -1), *(torch.tensor(f(angles)) for f in (np.sin, np.cos))
            return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

        return rotated(module["query"](inputs["x"])) @ rotated(module["key"](inputs["x"])).mT

    def port(weights: Any, inputs: Any, options: Any) -> Any:
        def rotated(x: Any) -> Any:
            a, b, sin, cos = x[..., ::2], x[..., 1::2], np.sin(angles), np.cos(angles)
            return jnp.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)

        q, k = (rotated(inputs["x"] @ weights[f"{name}.weight"].T) for name in ("query", "key"))
        return q @ k.swapaxes(-1, -2)

    assert explanations(torch_module(build, call), port, {"x": TOKENS}) == (
        "features are rotated in pairs of x[2i] and x[2i + 1], not in pairs of x[i] and x[i + d/2], in JAX",
    )


def test_padding_of_a_convolution_with_stride_2() -> None:
    side = torch_module(lambda options, inputs: torch.nn.Conv1d(2, 3, 3, stride=2, padding=1))

    def port(weights: Any, inputs: Any, options: Any) -> Any:
        convolved = jax.lax.conv_general_dilated(inputs["input"], weights["weight"], (2,), "SAME")
        return convolved + weights["bias"][:, None]

    (found,) = explanations(side, port, {"input": RNG.normal(size=(2, 2, 8))})
    assert found.startswith("the padding is SAME")


@pytest.mark.parametrize("pads", ["SAME", "zeros"])
def test_padding_of_a_maximum(pads: str) -> None:
    side = torch_module(lambda options, inputs: torch.nn.MaxPool1d(3, stride=2, padding=1))

    def port(weights: Any, inputs: Any, options: Any) -> Any:
        x, how = inputs["input"], "SAME"
        if pads == "zeros":
            x, how = jnp.pad(x, ((0, 0), (0, 0), (1, 1))), "VALID"
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 3), (1, 1, 2), how)

    (found,) = explanations(side, port, {"input": RNG.normal(size=(2, 2, 8))})
    assert pads in found


def test_a_search_that_runs_out_of_time_says_so() -> None:
    case = Case("slow", (Variant("random", {"input": X}),), linear(4, 3), JaxSide(lambda w, i, o: i["input"][:, :3]))
    found = find_divergence(case, seconds=0.0)
    assert found is not None
    assert found.causes == ()
    assert found.found.stopped_after is not None
    assert "no mistake was tried, when 0 s of computing were over" in str(found)


def test_numbers_beside_infinities_are_the_same() -> None:
    values = Values([entries_of(np.array([-np.inf, -1.0, 2.0]))], "float64")
    assert values.places(entries_of(np.array([2.0, -np.inf, -1.0])))
    assert values.places(entries_of(np.array([[2.0, 2.0, -1.0], [-np.inf, -1.0, -np.inf]])))
    assert not values.places(entries_of(np.array([2.0, 2.0, -1.0, -np.inf])))
    assert not values.places(entries_of(np.array([-np.inf, -1.0, 3.0])))
    assert not values.places(entries_of(np.array([-np.inf, -1.0, np.inf])))
    assert not values.places(entries_of(np.array([np.nan, -1.0, 2.0])))
