from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jax_attn import gru_step, lstm_step, unroll

few = settings(max_examples=25, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
random = np.random.default_rng(0)
H, BATCH = 2, 3


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normal(*shape):
    return random.normal(size=shape)


def test_an_lstm_step_is_its_equations_with_gates_in_the_order_i_f_g_o(x64):
    h, c, projected, kernel, bias = (
        normal(BATCH, H),
        normal(BATCH, H),
        normal(BATCH, 4 * H),
        normal(H, 4 * H),
        normal(4 * H),
    )
    (new_h, new_c), output = jax.jit(lstm_step)(*jax.tree.map(jnp.asarray, ((h, c), projected, kernel, bias)))
    i, f, g, o = np.split(projected + h @ kernel + bias, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    np.testing.assert_allclose(new_c, c, rtol=1e-12)
    np.testing.assert_allclose(new_h, sigmoid(o) * np.tanh(c), rtol=1e-12)
    np.testing.assert_array_equal(output, new_h)


def test_a_gru_step_is_its_equations_with_the_reset_after_the_product_and_its_bias(x64):
    h, projected, kernel, bias = normal(BATCH, H), normal(BATCH, 3 * H), normal(H, 3 * H), normal(3 * H)
    new_h, output = jax.jit(gru_step)(*map(jnp.asarray, (h, projected, kernel, bias)))
    (xr, xz, xn), (hr, hz, hn) = (np.split(x, 3, axis=-1) for x in (projected, h @ kernel + bias))
    r, z = sigmoid(xr + hr), sigmoid(xz + hz)
    np.testing.assert_allclose(new_h, (1 - z) * np.tanh(xn + r * hn) + z * h, rtol=1e-12)
    np.testing.assert_array_equal(output, new_h)


@pytest.mark.parametrize(
    ("step", "carry", "gates"), [(lstm_step, (jnp.ones(2), jnp.ones(2)), 8), (gru_step, jnp.ones(2), 6)]
)
def test_a_step_without_a_bias_is_one_with_zeros(step, carry, gates):
    projected, kernel = jnp.arange(gates) / 10, jnp.ones((2, gates))
    step = jax.jit(step)
    results = step(carry, projected, kernel), step(carry, projected, kernel, jnp.zeros(gates))
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_inputs_are_projected_before_the_loop_once_padding_is_zero():
    inputs = jnp.array([[1.0, 2.0], [3.0, np.nan]])[..., None]
    seen = []

    def project(x):
        seen.append(x.shape)
        return 2 * x + 1

    run = jax.jit(partial(unroll, running_sum, project=project))
    carry, outputs = run(jnp.zeros((2, 1)), inputs, jnp.array([2, 1]))
    assert seen == [(2, 2, 1)]  # time first
    np.testing.assert_array_equal(outputs[..., 0], [[3, 8], [7, 0]])
    np.testing.assert_array_equal(carry[:, 0], [8, 7])


def running_sum(carry, x):
    return carry + x, carry + x


@pytest.mark.parametrize(
    ("reverse", "outputs", "final"),
    [
        (False, [[1, 3, 6], [1, 3, 0], [0, 0, 0]], [6, 3, 0]),
        (True, [[6, 5, 3], [3, 2, 0], [0, 0, 0]], [6, 3, 0]),
    ],
)
def test_past_its_length_a_sequence_puts_out_zero_and_its_carry_stands_still(reverse, outputs, final):
    inputs = jnp.array([[1.0, 2, 3], [1, 2, jnp.nan], [jnp.nan, jnp.nan, jnp.nan]])[..., None]
    run = jax.jit(partial(unroll, running_sum, reverse=reverse))
    carry, result = run(jnp.zeros((3, 1)), inputs, jnp.array([3, 2, 0]))
    np.testing.assert_array_equal(result[..., 0], outputs)
    np.testing.assert_array_equal(carry[..., 0], final)


def test_without_lengths_every_position_is_run_and_a_carry_may_be_any_tree():
    def step(carry, x):
        return {"sum": carry["sum"] + x, "steps": carry["steps"] + 1}, x

    start = {"sum": jnp.zeros((2, 1)), "steps": jnp.zeros(2, int)}
    for lens, steps in ((None, [4, 4]), (jnp.array([1, 3]), [1, 3])):
        carry, _ = jax.jit(partial(unroll, step))(start, jnp.ones((2, 4, 1)), lens)
        np.testing.assert_array_equal(carry["steps"], steps)
        np.testing.assert_array_equal(carry["sum"][:, 0], steps)


def test_padding_reaches_no_gradient():
    def total(scale, inputs):
        _, outputs = unroll(lambda carry, x: (carry * x * scale,) * 2, jnp.ones((2, 1)), inputs, jnp.array([1, 2]))
        return outputs.sum()

    inputs = jnp.array([[2.0, jnp.nan, jnp.inf], [2.0, 3.0, jnp.nan]])[..., None]
    by_scale, by_inputs = jax.jit(jax.grad(total, argnums=(0, 1)))(1.0, inputs)
    assert by_scale == 2 + 2 + 2 * 6
    np.testing.assert_array_equal(by_inputs[..., 0], [[1, 0, 0], [4, 2, 0]])


def test_any_number_of_leading_axes_gives_the_same():
    run, inputs, lens = jax.jit(partial(unroll, running_sum)), jnp.asarray(normal(4, 5, 1)), jnp.array([0, 2, 5, 3])
    carry, outputs = run(jnp.zeros((2, 2, 1)), inputs.reshape(2, 2, 5, 1), lens.reshape(2, 2))
    expected_carry, expected = run(jnp.zeros((4, 1)), inputs, lens)
    np.testing.assert_allclose(outputs.reshape(4, 5, 1), expected, rtol=1e-6)
    np.testing.assert_allclose(carry.reshape(4, 1), expected_carry, rtol=1e-6)


forward = jax.jit(lambda inputs, lens: unroll(running_sum, jnp.zeros((2, 1)), inputs, lens))
backward = jax.jit(lambda inputs, lens: unroll(running_sum, jnp.zeros((2, 1)), inputs, lens, reverse=True))
lengths = st.lists(st.integers(0, 5), min_size=2, max_size=2)
numbers = st.lists(st.integers(-9, 9), min_size=10, max_size=10)


def backwards(inputs, lens):
    """Reverse each sequence up to its length; the padding stays in its place."""
    rows = zip(np.asarray(inputs), np.asarray(lens), strict=True)
    return np.stack([np.concatenate([row[:length][::-1], row[length:]]) for row, length in rows])


@few
@given(numbers, lengths)
def test_running_in_reverse_is_reversing_running_and_reversing_back(values, lens):
    inputs, lens = np.array(values, np.float32).reshape(2, 5, 1), np.array(lens, np.int32)
    carry, outputs = backward(inputs, lens)
    expected_carry, expected = forward(backwards(inputs, lens), lens)
    np.testing.assert_array_equal(outputs, backwards(expected, lens))
    np.testing.assert_array_equal(carry, expected_carry)
