from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parity_tests.your_port.measure.op_by_op import trace


def op_by_op(function: Any) -> Any:
    def run(*arguments: Any) -> Any:
        program, shapes = trace(function, *arguments)
        return jax.tree.unflatten(jax.tree.structure(shapes), program.run(jax.tree.leaves(arguments)))

    return run


@jax.custom_vjp
def doubled(x: Any) -> Any:
    return x * 2


doubled.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 2,))


def everything(x: Any, ids: Any) -> Any:
    """Use each kind of operation that holds a program, and results that are no arrays."""
    y, steps = jax.lax.scan(lambda c, a: (jnp.tanh(c + a), c.sum()), x[0], x, reverse=True)
    z = jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (0, y))[1]
    w = jax.lax.cond(z.sum() > 0, jnp.cos, jnp.sin, z)
    w = jax.checkpoint(lambda x: jax.nn.relu(doubled(x)))(w)
    empty = jax.lax.scan(lambda c, a: (c, a * 2), 0.0, x[:0])[1]
    noise = jax.random.normal(jax.random.key(0), (3,))
    return {"a": jax.vmap(jnp.dot, (0, None))(x, w + noise), "b": (steps, None, empty), "c": x[ids]}


X = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), jnp.float32)
IDS = jnp.array([2, 0])


def test_every_kind_of_operation_gives_what_jit_gives() -> None:
    _assert_equal(op_by_op(everything)(X, IDS), jax.jit(everything)(X, IDS))


def test_gradients_too() -> None:
    def loss(x: Any) -> Any:
        y, steps = jax.lax.scan(lambda c, a: (jnp.tanh(c + a), c.sum()), x[0], x)
        return (jax.checkpoint(doubled)(y) ** 2).sum() + jax.nn.softmax(steps) @ steps

    _assert_equal(op_by_op(jax.value_and_grad(loss))(X), jax.value_and_grad(loss)(X))


def test_a_long_loop_costs_its_operations() -> None:
    calls = 0

    def loss(x: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            nonlocal calls
            calls += 1
            return jnp.tanh(c + x), None

        return jax.lax.scan(step, x, length=100)[0].sum()

    found = op_by_op(jax.grad(loss))(X)
    assert calls < 10  # with `jax.disable_jit` it would be one for each step
    _assert_equal(found, jax.grad(loss)(X))


def test_results_are_dropped_after_their_last_use() -> None:
    program, _ = trace(lambda x: jnp.sin(jnp.cos(jnp.exp(x))), X)
    (exp, cos, sin), held = program.operations, []
    program.run([X], lambda operation, x: held.append(operation.name) or x)
    assert held == ["exp", "cos", "sin"]
    assert program.last_uses == [[*exp.reads], [*exp.writes], [*cos.writes]]
    assert program.results == sin.writes


@pytest.mark.parametrize("name", ["a", "b"])
def test_the_part_that_a_value_needs(name: str) -> None:
    program, shapes = trace(lambda x: {"a": jnp.sin(x), "b": jnp.cos(x).sum()}, X)
    at = [*shapes].index(name)
    part = program.of(program.results[at : at + 1])
    assert [operation.name for operation in part.operations] == {"a": ["sin"], "b": ["cos", "reduce_sum"]}[name]


def _assert_equal(a: Any, b: Any) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a, b)
