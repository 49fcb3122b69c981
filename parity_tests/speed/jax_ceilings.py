"""How fast this machine is in JAX, for the ceilings of `parity_tests.speed.limits`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parity_tests.speed.jax_device import on
from parity_tests.speed.workload import Program


def build(device: str, *, what: str, repeats: int, shape: tuple[int, ...]) -> Program:
    """`repeats` times the operation, in one program."""
    on(device)
    operation = {"gemm": _gemm, "tanh": _tanh, "copy": _copy}[what]
    run, arguments = operation(repeats, shape)
    compiled = jax.jit(run)
    return Program(lambda: jax.block_until_ready(compiled(*arguments)), lambda: {"nothing": np.zeros(0)})


def _gemm(repeats: int, shape: tuple[int, ...]) -> Any:
    n, k, m = shape
    a, b = jnp.ones((n, k)) / k, jnp.ones((k, m))

    def run(a: Any, b: Any) -> Any:
        def once(carry: Any, _: None) -> Any:
            return carry + (carry @ b).max(axis=1, keepdims=True) * 1e-9, None  # each needs the one before it

        return jax.lax.scan(once, a, None, length=repeats)[0]

    return run, (a, b)


def _tanh(repeats: int, shape: tuple[int, ...]) -> Any:
    def run(x: Any) -> Any:
        def once(total: Any, i: Any) -> Any:
            return total + jnp.tanh(x + i).sum(), None

        return jax.lax.scan(once, jnp.zeros(()), jnp.arange(repeats) * 1e-3)[0]

    return run, (jnp.linspace(-2, 2, shape[0]),)


def _copy(repeats: int, shape: tuple[int, ...]) -> Any:
    def run(x: Any) -> Any:
        return jax.lax.fori_loop(0, repeats, lambda i, x: x + 1, x)

    return run, (jnp.zeros(shape),)
