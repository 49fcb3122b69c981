import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import beam_search, ensemble

HALF, SKEWED = np.log([[0.5, 0.25, 0.25]]), np.log([[0.1, 0.1, 0.8]])
SETTINGS = {"bos": 1, "eos": 0, "max_len": 4, "batch_size": 1}


def model(log_probs, weights=None):
    """Return a step with constant `log_probs`, whose state counts the calls."""

    def step(tokens, state, memory):
        rows = tokens.shape[0]
        attended = None if weights is None else jnp.tile(jnp.asarray(weights), (rows, 1)) * memory[0]
        return jnp.tile(jnp.asarray(log_probs), (rows, 1)), state + 1, attended

    return step


def call(*steps):
    states, memories = (tuple(f(1) * m for m in range(1, len(steps) + 1)) for f in (jnp.zeros, jnp.ones))
    return ensemble(steps)(jnp.array([0]), states, memories)


def test_probabilities_are_averaged():
    log_probs, states, weights = call(model(HALF), model(SKEWED))
    np.testing.assert_allclose(np.exp(log_probs), [[0.3, 0.175, 0.525]], rtol=1e-6)
    assert [state.tolist() for state in states] == [[1], [1]]
    assert weights is None


def test_a_row_of_minus_inf_stays_and_a_nan_stays_nan():
    nothing, unknown = np.full((1, 3), -np.inf), np.array([[np.nan, 0.0, 0.0]])
    assert (call(model(nothing), model(nothing))[0] == -jnp.inf).all()
    assert jnp.isnan(call(model(unknown), model(HALF))[0]).any()


def test_weights_are_averaged_over_the_models_that_return_any():
    _, _, weights = call(model(HALF, [[1.0, 0.0]]), model(HALF), model(HALF, [[0.0, 1.0]]))
    np.testing.assert_allclose(weights, [[0.5, 1.5]])  # the memories are 1, 2, 3


def test_a_model_with_itself_searches_like_the_model():
    log_probs, memory = np.log([[0.2, 0.5, 0.3]]), jnp.ones(1)
    step = model(log_probs, [[0.25, 0.75]])
    alone = beam_search(step, jnp.zeros(1), memory, **SETTINGS)
    twice = beam_search(ensemble([step, step]), (jnp.zeros(1),) * 2, (memory,) * 2, **SETTINGS)
    np.testing.assert_array_equal(twice.ids, alone.ids)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), twice, alone)
    of_lists = beam_search(ensemble([step, step]), [jnp.zeros(1)] * 2, [memory] * 2, **SETTINGS)
    jax.tree.map(np.testing.assert_array_equal, of_lists, twice)


def test_invalid_steps_states_and_outputs_are_refused(own_checks):
    step, token, one = ensemble([model(HALF)] * 2), jnp.array([0]), jnp.zeros(1)
    with pytest.raises(ValueError, match="state must be a tuple of 2, one for each step; got 3 of them"):
        step(token, (one,) * 3, (one,) * 2)
    with pytest.raises(ValueError, match="memory must be a tuple of 2, one for each step; got ArrayImpl"):
        step(token, (one,) * 2, one)
    with pytest.raises(ValueError, match=r"log_probs of one shape; got \[1, 3\], \[1, 2\]"):
        ensemble([model(HALF), model(HALF[:, :2])])(token, (one,) * 2, (one,) * 2)
    with pytest.raises(ValueError, match=r"weights of one shape; got \[1, 2\], \[1, 3\]"):
        ensemble([model(HALF, [[1.0, 0]]), model(HALF, [[1.0, 0, 0]])])(token, (one,) * 2, (one,) * 2)
