import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn.search.top_k import BLOCK, top_k


@pytest.mark.parametrize(("vocab_size", "k"), [(7, 7), (4 * BLOCK, 1), (4 * BLOCK + 1, 1), (1500, 5), (8000, 3)])
@pytest.mark.parametrize("levels", [3, 50, None])
def test_top_k_is_the_start_of_a_stable_sort(vocab_size, k, levels):
    """With few levels most numbers are tied, some of them at −inf."""
    rng = np.random.default_rng(0)
    log_probs = rng.normal(size=(20, vocab_size)).astype(np.float32)
    if levels is not None:
        log_probs = rng.integers(0, levels, log_probs.shape).astype(np.float32)
        log_probs[log_probs == 0] = -np.inf
        log_probs[:3] = -np.inf
        log_probs[1, -1] = 0.0
    values, tokens = jax.jit(top_k, static_argnums=1)(log_probs, k)
    expected = np.argsort(-log_probs, axis=-1, kind="stable")[:, :k]
    np.testing.assert_array_equal(tokens, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(log_probs, expected, axis=-1))


@pytest.mark.parametrize("vocab_size", [6, 700, 8000])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_nan_is_seen_whatever_its_sign_and_place(vocab_size, sign):
    log_probs = np.zeros((300, vocab_size), np.float32)  # large enough for each way in which XLA takes a maximum
    places = np.linspace(0, vocab_size - 1, 299).astype(int)
    log_probs[np.arange(299), places] = np.copysign(np.nan, sign)
    values, _ = jax.jit(top_k, static_argnums=1)(jnp.asarray(log_probs), 2)
    assert np.isnan(values[:-1, 0]).all()
    assert not np.isnan(values[-1]).any()


@pytest.mark.parametrize("vocab_size", [200, 8001])
def test_no_row_is_sorted_on_a_cpu(full_compilation, vocab_size):
    """XLA selects fast only if it recognises a pattern. A second slice of the result hides it: 30 times slower."""
    if jax.default_backend() != "cpu":
        pytest.skip("how XLA compiles for a CPU")

    def best(log_probs):
        values, tokens = top_k(log_probs, 3)
        return values[:, 0], values.reshape(2, -1), tokens

    program = jax.jit(best).lower(jnp.zeros((8, vocab_size))).compile().as_text()
    assert "TopK" in program
    assert not [line for line in program.splitlines() if " sort(" in line and "f32" in line]
