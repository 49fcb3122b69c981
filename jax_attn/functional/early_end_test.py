from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn.functional.early_end import end_early

T, B, H = 6, 3, 4
LENS = jnp.array([4, 0, 2])
rng = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(rng.standard_normal(shape))


pytestmark = pytest.mark.usefixtures("x64")


def arguments():
    return normal(H, H), normal(B, H), normal(T, B, H)


def held(W, carry, inputs, valid, reverse):
    """A recurrence in which each row of the batch stands still where it is not valid."""

    def step(carry, at_time):
        h, count = carry
        x, valid = at_time
        new = jnp.where(valid[:, None], jnp.tanh(h @ W + x), h)
        return (new, count + valid), jnp.where(valid[:, None], new * x, 0)

    (h, counts), outputs = jax.lax.scan(step, (carry, jnp.zeros(B, int)), (inputs, valid), reverse=reverse)
    return h, counts, outputs


def result(ends_early, lens, reverse, W, carry, inputs):
    given = W, carry, inputs, jnp.arange(T)[:, None] < lens
    function = partial(held, reverse=reverse)
    return end_early(function, lens.max(), *given) if ends_early else function(*given)


def total(ends_early, lens, reverse, *moving):
    h, counts, outputs = result(ends_early, lens, reverse, *moving)
    return jnp.sin(h).sum() + (counts * jnp.cos(outputs).sum((0, 2))).sum()


def both(f, *arguments):
    """Of the loop that ends early and of the whole one."""
    return [jax.jit(partial(f, ends_early))(*arguments) for ends_early in (True, False)]


def close(ours, expected):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-11), ours, expected)


@pytest.mark.parametrize("reverse", [False, True])
def test_results_gradients_and_tangents_are_those_of_the_whole_loop(reverse):
    args, moves = arguments(), arguments()
    close(*both(lambda ends_early: result(ends_early, LENS, reverse, *args)))
    close(*both(lambda ends_early: jax.grad(partial(total, ends_early, LENS, reverse), (0, 1, 2))(*args)))
    close(*both(lambda ends_early: jax.jvp(partial(total, ends_early, LENS, reverse), args, moves)))


def test_it_is_differentiated_twice_in_every_order_of_modes():
    args = arguments()
    f, expected = (partial(total, ends_early, LENS, False) for ends_early in (True, False))
    expected = jax.jit(jax.hessian(expected))(*args)
    close(jax.jit(jax.hessian(f))(*args), expected)
    close(jax.jit(jax.jacrev(jax.grad(f)))(*args), expected)


def test_under_vmap_each_goes_as_far_as_one_has_to():
    W, *rest = arguments()
    lens = jnp.array([[4, 0, 2], [1, 0, 1], [6, 2, 2]])
    close(*both(lambda ends: jax.vmap(jax.grad(lambda W, lens: total(ends, lens, True, W, *rest)), (None, 0))(W, lens)))
    close(
        *both(lambda ends: jax.grad(lambda W: jax.vmap(lambda of: total(ends, of, True, W, *rest))(lens).sum())(W)),
    )


def steps_taken(transform, num_steps, reverse=False):
    seen = []

    def function(start):
        def step(carry, x):
            jax.debug.callback(lambda x: seen.append(int(x)), x)
            return carry * 2, None

        return jax.lax.scan(step, start, jnp.arange(T), reverse=reverse)[0]

    result = jax.jit(transform(lambda start, num_steps: end_early(function, num_steps, start)))(1.0, num_steps)
    jax.block_until_ready(result)
    jax.effects_barrier()
    return sorted(seen), result


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("num_steps", [0, 1, T])
def test_no_further_step_is_taken(num_steps, reverse):
    seen, result = steps_taken(lambda f: f, num_steps, reverse)
    assert seen == list(range(num_steps))
    assert result == 2**num_steps


def test_no_further_step_is_taken_backwards():
    _, gradient = steps_taken(jax.grad, 3)
    assert gradient == 2**3


def test_a_gpu_takes_all_steps():
    def f(num_steps, x):
        return end_early(lambda x: jax.lax.scan(lambda c, y: (c + y, None), 0.0, x)[0], num_steps, x)

    def condition(platform):
        text = jax.jit(f).trace(3, jnp.ones(T)).lower(lowering_platforms=(platform,)).as_text()
        return text[text.index("stablehlo.while") : text.index("} do {")]

    assert f"dense<{T}>" in condition("cuda")
    assert f"dense<{T}>" not in condition("cpu")
