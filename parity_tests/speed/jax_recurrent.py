"""The encoder's recurrent network in JAX: ours, and Flax Linen's `nn.RNN` of its LSTM cell, a layer on a layer."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import jax_attn
from jax_attn.weights import from_torch
from parity_tests.cases.jax_twins import lstm_params
from parity_tests.speed.jax_device import on
from parity_tests.speed.recurrent import HIDDEN, LAYERS, draw
from parity_tests.speed.workload import Program


def build(device: str, *, module: str) -> Program:
    """Outputs and the gradients of the inputs and of all weights; `module` is "ours" or "Flax"."""
    on(device)
    inputs, along, drawn = draw()
    call, weights = {"ours": ours, "Flax": linen}[module](inputs, drawn)

    @jax.jit
    def both(weights: Any, inputs: Any, along: Any) -> Any:
        outputs, pull_back = jax.vjp(call, weights, inputs)
        return outputs, pull_back(along)

    arguments = jax.device_put((weights, inputs, along))

    def outputs() -> dict[str, np.ndarray]:
        result, (_, gradient) = both(*arguments)
        return {"output": np.asarray(result), "gradient of inputs": np.asarray(gradient)}

    return Program(lambda: jax.block_until_ready(both(*arguments)), outputs)


def ours(inputs: np.ndarray, drawn: dict[str, np.ndarray]) -> tuple[Callable[..., Any], Any]:
    module = jax_attn.LSTM(num_hiddens=HIDDEN, num_layers=LAYERS)
    params = from_torch(drawn, jax.eval_shape(module.init, jax.random.key(0), inputs))
    return lambda params, x: module.apply(params, x)[0], params


def linen(inputs: np.ndarray, drawn: dict[str, np.ndarray]) -> tuple[Callable[..., Any], Any]:
    rnn = nn.RNN(nn.OptimizedLSTMCell(HIDDEN))
    weights = {name: jnp.asarray(x) for name, x in drawn.items()}
    params = [{"params": {"cell": lstm_params(weights, f"l{layer}")}} for layer in range(LAYERS)]

    def call(params: Any, x: Any) -> Any:
        for of_layer in params:
            x = rnn.apply(of_layer, x)
        return x

    return call, params
