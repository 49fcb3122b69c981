"""Functions of attention in JAX: ours as parity proves them, and what a user of JAX alone would write or call."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_attn
from parity_tests.cases import find_case
from parity_tests.speed.inputs import DIFFERENTIATED, INPUTS, cotangent
from parity_tests.speed.jax_device import on
from parity_tests.speed.workload import Program


def naive_additive(queries: Any, keys: Any, w_v: Any) -> Any:
    """w_vᵀ tanh(q + k), as it is written on the blackboard."""
    return jnp.tanh(queries[..., :, None, :] + keys[..., None, :, :]) @ w_v


def naive_softmax(scores: Any, valid_lens: Any) -> Any:
    """`jax.nn.softmax` over the keys within the length."""
    return jax.nn.softmax(scores, axis=-1, where=jnp.arange(scores.shape[-1]) < valid_lens[:, None, None])


def plain_additive_attention(queries: Any, keys: Any, values: Any, w_v: Any) -> Any:
    """The context by way of all weights."""
    return jax_attn.attend(jax_attn.additive_score(queries, keys, w_v), values)[0]


def blockwise_additive_attention(queries: Any, keys: Any, values: Any, w_v: Any) -> Any:
    """The context without them."""
    return jax_attn.blockwise_attention(jax_attn.additive_score, queries, keys, values, parameters=(w_v,))


def plain_dot_attention(queries: Any, keys: Any, values: Any) -> Any:
    """The context by way of all weights."""
    return jax_attn.attend(jax_attn.scaled_dot_score(queries, keys), values)[0]


def blockwise_dot_attention(queries: Any, keys: Any, values: Any) -> Any:
    """The context without them."""
    return jax_attn.blockwise_attention(jax_attn.scaled_dot_score, queries, keys, values)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "naive additive": naive_additive,
    "naive softmax": naive_softmax,
    "plain additive attention": plain_additive_attention,
    "blockwise additive attention": blockwise_additive_attention,
    "plain dot attention": plain_dot_attention,
    "blockwise dot attention": blockwise_dot_attention,
}


def build(
    device: str, *, function: str, inputs: str, backward: bool = False, sizes: Mapping[str, int] | None = None
) -> Program:
    """A function under jit: one of those above, or `case NAME`, the JAX side of a case of the registry."""
    on(device)
    arrays = {name: None if x is None else jnp.asarray(x) for name, x in INPUTS[inputs](**(sizes or {})).items()}
    moved = {name: arrays.pop(name) for name in DIFFERENTIATED[inputs]}
    call = _call(function)

    @jax.jit
    def forward(moved: Any, fixed: Any) -> Any:
        return {"output": call({**moved, **fixed})}

    if not backward:
        return _program(lambda: forward(moved, arrays))

    along = jnp.asarray(cotangent(inputs, jax.eval_shape(forward, moved, arrays)["output"].shape))

    @jax.jit
    def both(moved: Any, fixed: Any, along: Any) -> Any:
        output, pull_back = jax.vjp(lambda moved: call({**moved, **fixed}), moved)
        return {"output": output, **pull_back(along)[0]}

    return _program(lambda: both(moved, arrays, along))


def _call(function: str) -> Callable[[Any], Any]:
    if function in FUNCTIONS:
        return lambda inputs: FUNCTIONS[function](**inputs)
    case = find_case(function.removeprefix("case "))
    options = {"causal": False, "scaled": True} if case.name.startswith("DotProduct") else {}
    return lambda inputs: case.jax.call({}, inputs, options)


def _program(compute: Callable[[], Any]) -> Program:
    return Program(
        lambda: jax.block_until_ready(compute()),
        lambda: {name: np.asarray(x) for name, x in compute().items()},
    )
