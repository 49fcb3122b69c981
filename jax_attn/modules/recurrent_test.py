from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import InvalidRngError

from jax_attn import GRU, LSTM, gru_step, lstm_step
from jax_attn.conftest import random_params
from jax_attn.modules.recurrent import make_recurrent

B, T, D, H = 3, 5, 2, 4
INPUTS = jnp.asarray(np.random.default_rng(0).normal(size=(B, T, D)), jnp.float32)
LENS = jnp.array([5, 0, 3])
CELLS = {"lstm": LSTM, "gru": GRU}
both_cells = pytest.mark.parametrize("cell", CELLS)


@cache
def build(cell, num_layers=1, **settings):
    """A module, its parameters and its compiled call."""
    module = CELLS[cell](H, num_layers, **settings)
    return module, random_params(module, INPUTS), jax.jit(module.apply)


def close(a, b):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), a, b)


@both_cells
def test_one_layer_is_its_step_repeated_with_the_parameters_of_pytorch(cell):
    _, params, apply = build(cell)
    p = params["params"]
    gates = {"lstm": 4, "gru": 3}[cell]
    assert {name: leaf.shape for name, leaf in p.items()} == {
        "kernel_ih_l0": (D, gates * H),
        "kernel_hh_l0": (H, gates * H),
        "bias_ih_l0": (gates * H,),
        "bias_hh_l0": (gates * H,),
    }
    step, zeros = {"lstm": lstm_step, "gru": gru_step}[cell], jnp.zeros((B, H))
    carry, outputs = (zeros, zeros) if cell == "lstm" else zeros, []
    for t in range(T):
        projected = INPUTS[:, t] @ p["kernel_ih_l0"] + p["bias_ih_l0"]
        carry, output = step(carry, projected, p["kernel_hh_l0"], p["bias_hh_l0"])
        outputs.append(output)
    close(apply(params, INPUTS), (jnp.stack(outputs, 1), jax.tree.map(lambda part: part[None], carry)))


@both_cells
def test_without_biases_there_are_only_kernels(cell):
    module = CELLS[cell](H, use_bias=False)
    assert set(random_params(module, INPUTS)["params"]) == {"kernel_ih_l0", "kernel_hh_l0"}


@both_cells
def test_each_layer_reads_the_one_below_and_the_states_stand_layer_by_layer(cell):
    _, params, apply = build(cell, 2)
    first, second = ({k.replace(f"l{i}", "l0"): v for k, v in params["params"].items() if f"l{i}" in k} for i in (0, 1))
    one_layer = jax.jit(CELLS[cell](H).apply)
    below, state_below = one_layer({"params": first}, INPUTS, LENS)
    above, state_above = one_layer({"params": second}, below, LENS)
    state = jax.tree.map(lambda *parts: jnp.concatenate(parts), state_below, state_above)
    close(apply(params, INPUTS, LENS), (above, state))


def turned_around(inputs, lens):
    """Reverse each sequence up to its length; the padding stays in its place."""
    return jnp.stack([jnp.concatenate([x[:n][::-1], x[n:]]) for x, n in zip(inputs, lens, strict=True)])


@both_cells
def test_the_second_direction_is_the_first_on_each_sequence_turned_around(cell):
    _, params, apply = build(cell, bidirectional=True)
    outputs, state = apply(params, INPUTS, LENS)
    one_way = jax.jit(CELLS[cell](H).apply)
    forward = {k: v for k, v in params["params"].items() if "reverse" not in k}
    backward = {k.removesuffix("_reverse"): v for k, v in params["params"].items() if "reverse" in k}
    ahead, state_ahead = one_way({"params": forward}, INPUTS, LENS)
    back, state_back = one_way({"params": backward}, turned_around(INPUTS, LENS), LENS)
    close(outputs, jnp.concatenate([ahead, turned_around(back, LENS)], axis=-1))
    close(state, jax.tree.map(lambda *parts: jnp.concatenate(parts), state_ahead, state_back))


deep = {"num_layers": 2, "bidirectional": True}


@both_cells
def test_padding_reaches_no_result_and_no_gradient(cell):
    module, params, _ = build(cell, **deep)
    read = (jnp.arange(T) < LENS[:, None])[..., None]

    def total(params, inputs):
        outputs, state = module.apply(params, inputs, LENS)
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves((outputs, state))), (outputs, state)

    run = jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True))
    gradients, results = run(params, INPUTS)
    assert all((np.isfinite(g) & (np.asarray(g) != 0)).all() for g in jax.tree.leaves(gradients[0]))
    for poison in (jnp.nan, jnp.inf):
        poisoned = run(params, jnp.where(read, INPUTS, poison))
        jax.tree.map(np.testing.assert_array_equal, poisoned, (gradients, results))


@both_cells
def test_a_batch_is_its_rows_and_a_row_s_length_is_where_it_ends(cell):
    module, params, apply = build(cell, **deep)
    outputs, state = apply(params, INPUTS, LENS)
    for row, length in enumerate(LENS.tolist()):
        assert (outputs[row, length:] == 0).all()
        alone = jax.tree.map(lambda part, row=row: part[:, row], state)
        if length == 0:
            assert all((part == 0).all() for part in jax.tree.leaves(alone))
        else:
            close((outputs[row, :length], alone), jax.jit(module.apply)(params, INPUTS[row, :length]))
    mapped = jax.jit(jax.vmap(module.apply, in_axes=(None, 0, 0), out_axes=(0, 1)))
    close(mapped(params, INPUTS, LENS), (outputs, state))


@both_cells
def test_running_on_from_a_state_is_running_through_and_a_row_of_length_zero_keeps_it(cell):
    _, params, apply = build(cell, 2)
    outputs, state = apply(params, INPUTS)
    first, between = apply(params, INPUTS[:, :2])
    second, final = apply(params, INPUTS[:, 2:], None, between)
    close((jnp.concatenate([first, second], 1), final), (outputs, state))
    jax.tree.map(np.testing.assert_array_equal, apply(params, INPUTS, jnp.zeros(B, int), between)[1], between)


@both_cells
def test_dropout_falls_between_the_layers_only_drawn_or_given(cell):
    module, params, apply = build(cell, 2, dropout=0.5)
    plain = apply(params, INPUTS)
    close(plain, build(cell, 2)[2](params, INPUTS))
    keep = jnp.zeros((B, 1, T, H), bool)
    outputs, state = apply(params, INPUTS, keep_masks=keep)
    close(apply(params, INPUTS, keep_masks=~keep)[1], build(cell, 2)[2](_doubled(params), INPUTS)[1])
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[0], b[0]), state, plain[1])
    np.testing.assert_array_equal(outputs, jnp.broadcast_to(outputs[:1], outputs.shape))  # nothing came through
    drop = jax.jit(lambda key: module.apply(params, INPUTS, deterministic=False, rngs={"dropout": key})[0])
    np.testing.assert_array_equal(drop(jax.random.key(1)), drop(jax.random.key(1)))
    assert np.abs(drop(jax.random.key(1)) - drop(jax.random.key(2))).max() > 0.01
    with pytest.raises(InvalidRngError):
        module.apply(params, INPUTS, deterministic=False)


def _doubled(params):
    """What keeping everything at rate 1/2 does: the second layer reads twice its input."""
    return {"params": params["params"] | {"kernel_ih_l1": 2 * params["params"]["kernel_ih_l1"]}}


@both_cells
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float64])
def test_dtypes_go_in_and_out(x64, cell, dtype):
    module = CELLS[cell](H, 2, param_dtype=dtype)
    params = random_params(module, INPUTS.astype(dtype))
    results = jax.jit(module.apply)(params, INPUTS.astype(dtype), LENS)
    assert {leaf.dtype for leaf in jax.tree.leaves((params, results))} == {jnp.dtype(dtype)}


@both_cells
def test_parameters_may_be_wider_than_the_computation(cell):
    module = CELLS[cell](H, dtype=jnp.bfloat16)
    params = random_params(module, INPUTS.astype(jnp.bfloat16))
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    results = jax.eval_shape(module.apply, params, INPUTS, LENS)
    assert {leaf.dtype for leaf in jax.tree.leaves(results)} == {jnp.dtype(jnp.bfloat16)}


def test_an_unknown_cell_is_refused():
    with pytest.raises(ValueError, match=r"cell must be one of \('gru', 'lstm'\); got 'rnn'"):
        make_recurrent("rnn", 4)
