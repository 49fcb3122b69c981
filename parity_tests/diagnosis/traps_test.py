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

RNG = np.random.default_rng(0)
X, H, C = (RNG.normal(size=(3, 4)) for _ in range(3))


def explanations(torch_side: Any, port: Callable[..., Any], inputs: dict[str, Any]) -> tuple[str, ...]:
    case = Case("port", (Variant("random", inputs),), torch_side, JaxSide(port))
    found = find_divergence(case)
    assert found is not None
    return found.traps


def linear(*sizes: int) -> Any:
    return torch_module(lambda options, inputs: torch.nn.Linear(*sizes))


def gru(weights: Any, inputs: Any, options: Any) -> Any:
    projected = inputs["input"] @ weights["weight_ih"].T + weights["bias_ih"]
    return jax_attn.gru_step(inputs["hx"], projected, weights["weight_hh"].T, weights["bias_hh"])[1]


GRU_CELL = torch_module(lambda options, inputs: torch.nn.GRUCell(4, 4))
GRU_INPUTS = {"input": X, "hx": H}


def test_a_missing_bias() -> None:
    found = explanations(linear(4, 3), lambda weights, inputs, _: inputs["input"] @ weights["weight"].T, {"input": X})
    assert found == ("bias is missing in JAX",)


def test_two_biases_merged() -> None:
    def merged(weights: Any, inputs: Any, options: Any) -> Any:
        both = weights["bias_ih"] + weights["bias_hh"]
        return gru({**weights, "bias_ih": both, "bias_hh": 0 * both}, inputs, options)

    assert explanations(GRU_CELL, merged, GRU_INPUTS) == ("bias_hh is merged into bias_ih",)


def test_gates_in_keras_order() -> None:
    def z_first(weights: Any, inputs: Any, options: Any) -> Any:
        def reorder(x: Any) -> Any:
            r, z, n = jnp.split(x, 3)
            return jnp.concatenate([z, r, n])

        return gru({name: reorder(weight) for name, weight in weights.items()}, inputs, options)

    found = explanations(GRU_CELL, z_first, GRU_INPUTS)
    assert found == ("gates in another order: JAX takes PyTorch's r, z, n as z, r, n",)


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
    assert found == ("gates in another order: JAX takes PyTorch's i, f, g, o as f, o, i, g",)


def test_a_square_matrix_not_transposed() -> None:
    def port(weights: Any, inputs: Any, options: Any) -> Any:
        return inputs["input"] @ weights["weight"] + weights["bias"]

    assert explanations(linear(4, 4), port, {"input": X}) == ("weight is not transposed, or twice",)


def test_two_weights_exchanged() -> None:
    def port(weights: Any, inputs: Any, options: Any) -> Any:
        return jnp.tanh(inputs["input"] @ weights["1.weight"].T) @ weights["0.weight"].T

    def build(options: Any, inputs: Any) -> Any:
        layers = (torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
        return torch.nn.Sequential(layers[0], layers[1])

    side = torch_module(build, lambda module, inputs: module[1](torch.tanh(module[0](inputs["input"]))))
    assert explanations(side, port, {"input": X}) == ("0.weight and 1.weight are exchanged",)


def test_a_mask_of_the_other_polarity() -> None:
    hidden = np.array([[True, False, False, True], [False, True, False, False], [True, True, True, False]])
    found = explanations(
        torch_function(lambda inputs, _: torch.where(inputs["hidden"], -1e9, inputs["scores"]).softmax(-1)),
        lambda weights, inputs, _: jax.nn.softmax(jnp.where(inputs["hidden"], inputs["scores"], -1e9)),
        {"scores": X, "hidden": hidden},
    )
    assert found == ("hidden is read the other way round",)


def test_a_length_off_by_one() -> None:
    def port(weights: Any, inputs: Any, options: Any) -> Any:
        return jnp.where(jnp.arange(4) <= inputs["lengths"][:, None], inputs["x"], 0)

    found = explanations(
        torch_function(lambda inputs, _: torch.where(torch.arange(4) < inputs["lengths"][:, None], inputs["x"], 0)),
        port,
        {"x": X, "lengths": np.array([1, 3, 2])},
    )
    assert found == ("lengths is taken as +1 in JAX: off by one",)


def test_labels_shifted() -> None:
    labels = np.array([[0, 1, 3], [2, 2, 1]])
    scores = RNG.normal(size=(2, 3, 4))
    found = explanations(
        torch_function(lambda inputs, _: inputs["scores"].gather(-1, inputs["labels"][..., None])),
        lambda weights, inputs, _: jnp.take_along_axis(
            inputs["scores"], jnp.roll(inputs["labels"], 1, -1)[..., None], -1
        ),
        {"scores": scores, "labels": labels},
    )
    assert found == ("labels is shifted by +1 along its last axis",)


def test_a_scale_forgotten() -> None:
    queries, keys = RNG.normal(size=(2, 6)), RNG.normal(size=(5, 6))
    found = explanations(
        torch_function(lambda inputs, _: (inputs["q"] @ inputs["k"].T / 6**0.5).softmax(-1)),
        lambda weights, inputs, _: jax.nn.softmax(inputs["q"] @ inputs["k"].T),
        {"q": queries, "k": keys},
    )
    assert found == tuple(f"{name}, or what it is multiplied with, is multiplied by √6 in JAX" for name in "kq")


def test_another_epsilon() -> None:
    def port(weights: Any, inputs: Any, options: Any) -> Any:
        x = inputs["input"]
        normal = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)
        return normal * weights["weight"] + weights["bias"]

    side = torch_module(lambda options, inputs: torch.nn.LayerNorm(4))
    assert explanations(side, port, {"input": X}) == ("epsilon is 1e-06 in JAX",)


def test_the_other_gelu() -> None:
    found = explanations(
        torch_module(lambda options, inputs: torch.nn.GELU()),
        lambda weights, inputs, _: jax.nn.gelu(inputs["input"]),
        {"input": X},
    )
    assert found == ("GELU is that of approximate='tanh' in JAX",)


def test_what_no_trap_explains_is_not_explained() -> None:
    found = explanations(linear(4, 3), lambda weights, inputs, _: jnp.sin(inputs["input"][:, :3]), {"input": X})
    assert found == ()


@pytest.mark.parametrize("axis", [0, 1])
def test_an_axis_in_reverse(axis: int) -> None:
    found = explanations(
        torch_function(lambda inputs, _: inputs["x"].cumsum(axis) ** 2),
        lambda weights, inputs, _: jnp.cumsum(jnp.flip(inputs["x"], axis), axis) ** 2,
        {"x": X},
    )
    assert found == (f"x is read in reverse along axis {axis}",)
