"""The JAX side of a case of this library: a Linen module whose parameters have PyTorch's names."""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jax_attn.weights import from_torch
from parity_tests.your_port.measure.case import JaxSide
from parity_tests.your_port.measure.jax_side import Applied


def linen_module(
    build: Callable[[Any, Any], nn.Module],
    call: Callable[[Any, Any], Any] | None = None,
    init: Callable[[Any, Any], Any] | None = None,
) -> JaxSide:
    """Make the side of a Flax Linen module whose parameters have PyTorch's names (see `jax_attn.weights.from_torch`).

    Args:
        build: (options, dtype of the parameters) -> module.
        call: (module, inputs) -> outputs, with the module's parameters in place; by default by keyword.
        init: (module, inputs) -> parameters, where `call` cannot initialise the module.
    """

    def run(module: Any, inputs: Any) -> Any:
        return module(**inputs) if call is None else call(module, inputs)

    def apply(weights: Mapping[str, Any], inputs: Any, options: Any) -> Any:
        dtype = next((weight.dtype for weight in weights.values()), jnp.float32)
        module = build(options, dtype)

        def create() -> Any:
            return module.init(jax.random.key(0), inputs, method=run) if init is None else init(module, inputs)

        shapes = jax.eval_shape(create)
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), shapes)
        return run(Applied(module, from_torch(weights, like)), inputs)

    return JaxSide(apply)
