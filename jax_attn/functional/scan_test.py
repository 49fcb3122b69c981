from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from jax_attn.functional.scan import scan

T, B, H = 5, 3, 4
rng = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(rng.standard_normal(shape))


pytestmark = pytest.mark.usefixtures("x64")


def affine(weights, carry, x):
    """A product with two b, in the order in which a cell adds them."""
    h = jnp.tanh(x["real"] + (carry @ weights["W"] + weights["b"]) + weights["c"])
    return h, h * x["number"]


def both_ways(weights, carry, x):
    """W in two products and beside them, from the left and from the right, and some of it changed before."""
    left = weights["W"] @ carry.T
    h = jnp.tanh(carry @ jnp.sin(weights["W"].T) + left.T + weights["W"][:B] * x["real"])
    return h, (h.sum(), left)


def attentive(weights, carry, x):
    """A product with an axis of batch, whose other factor is the state; and a sum that two read."""
    scores = jnp.einsum("bh,bkh->bk", carry, weights["keys"])
    y = carry @ weights["W"]
    y = jnp.where(x["number"] > 2, y + weights["b"], y)
    return jnp.einsum("bk,bkh->bh", jax.nn.softmax(scores), weights["keys"]) + y, scores


STEPS = {"affine": affine, "both ways": both_ways, "attentive": attentive}


def arguments():
    weights = {"W": normal(H, H), "b": normal(H), "c": normal(H), "keys": normal(B, 6, H)}
    return weights, normal(B, H), normal(T, B, H)


def total(loop, step, reverse, weights, carry, real):
    inputs = {"real": real, "number": jnp.arange(T)}
    result = loop(partial(step, weights), carry, inputs, reverse=reverse)
    return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(result))


def close(ours, expected):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-11), ours, expected)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_it_is_lax_scan_in_value_gradient_and_tangent(step, reverse):
    args, tangents = arguments(), arguments()
    ours, expected = (partial(total, loop, step, reverse) for loop in (scan, jax.lax.scan))
    close(*(jax.jit(jax.value_and_grad(f, argnums=(0, 1, 2)))(*args) for f in (ours, expected)))
    close(*(jax.jit(lambda a, b, f=f: jax.jvp(f, a, b))(args, tangents) for f in (ours, expected)))


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_it_is_differentiated_twice_in_every_order_of_modes(step):
    args = arguments()
    expected = jax.jit(jax.hessian(partial(total, jax.lax.scan, step, False)))(*args)
    ours = partial(total, scan, step, False)
    close(jax.jit(jax.hessian(ours))(*args), expected)
    close(jax.jit(jax.jacrev(jax.grad(ours)))(*args), expected)


def test_under_vmap_each_has_weights_of_its_own():
    weights, carry, real = arguments()
    many = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), weights)
    gradient = jax.grad(partial(total, scan, affine, False))
    together = jax.vmap(gradient, (0, None, None))(many, carry, real)
    for i in range(2):
        close(
            jax.tree.map(lambda x, i=i: x[i], together), gradient(jax.tree.map(lambda x, i=i: x[i], many), carry, real)
        )


def loops(jaxpr):
    """All scans of a program, however deep."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from loops(inner)


@pytest.mark.parametrize(("loop", "inside"), [(scan, False), (jax.lax.scan, True)])
def test_the_weights_gradients_are_taken_after_the_loop(loop, inside):
    W, tall = normal(H, 7), normal(7, H)

    def objective(W, tall, b):
        def step(h, x):
            h = jnp.tanh(jnp.tanh(h @ W) @ tall + b + x)
            return h, h

        return loop(step, jnp.zeros((B, H)), jnp.ones((T, B, H)))[1].sum()

    program = jax.make_jaxpr(jax.grad(objective, argnums=(0, 1, 2)))(W, tall, normal(H)).jaxpr
    computed = {v.aval.shape for equation in loops(program) for v in equation.outvars}
    assert bool(computed & {(H, 7), (7, H), (H,)}) == inside


def test_what_does_not_change_is_computed_before_the_loop():
    def run(W):
        return scan(lambda h, x: (h @ jnp.exp(W), None), jnp.ones((B, H)), jnp.zeros(T))[0]

    (loop,) = loops(jax.make_jaxpr(run)(normal(H, H)).jaxpr)
    assert "exp" not in str(loop.params["jaxpr"])
    assert "dot_general" in str(loop.params["jaxpr"])


def test_with_jit_disabled_the_steps_are_run_one_by_one():
    seen = []
    with jax.disable_jit():
        scan(lambda h, x: (seen.append(x) or h + x, None), jnp.zeros(()), jnp.arange(3.0))
    assert [float(x) for x in seen] == [0, 1, 2]
