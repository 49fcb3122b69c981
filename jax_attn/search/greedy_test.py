import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import beam_search, greedy_search

EOS, BOS = 0, 3
# The most probable token after each: 3 -> 1 -> 2 -> eos, and for the second sentence 3 -> 2 -> 1 -> 2 -> 1 …
NEXT = jnp.array([[0, 2, 0, 1], [0, 2, 1, 2]])
SETTINGS = {"bos": BOS, "eos": EOS, "batch_size": 2}


def step(tokens, state, memory):
    """Give the next token the probability 7/10, and weights that mark the number of the step."""
    log_probs = jnp.log(0.1 + 0.6 * jax.nn.one_hot(memory[jnp.arange(2), tokens], 4))
    return log_probs, state + 1, jax.nn.one_hot(state, 6)


def test_the_most_probable_token_is_taken_until_eos_or_max_len():
    result = jax.jit(lambda memory: greedy_search(step, jnp.zeros(2, int), memory, max_len=5, **SETTINGS))(NEXT)
    np.testing.assert_array_equal(result.ids, [[[1, 2, EOS, EOS, EOS]], [[2, 1, 2, 1, 2]]])
    np.testing.assert_array_equal(result.lengths, [[3], [5]])
    np.testing.assert_allclose(result.token_scores, np.log(0.7) * np.array([[[1, 1, 1, 0, 0]], [[1] * 5]]), rtol=1e-6)
    np.testing.assert_allclose(result.scores, np.log(0.7) * np.array([[3], [5]]), rtol=1e-6)
    np.testing.assert_array_equal(result.weights[0, 0], np.eye(6)[:5] * [[1], [1], [1], [0], [0]])
    np.testing.assert_array_equal(result.weights[1, 0], np.eye(6)[:5])


@pytest.mark.parametrize(
    ("search", "options"), [(greedy_search, {}), (beam_search, {"beam_size": 1}), (beam_search, {"stop": "first"})]
)
def test_ids_of_numpy_s_int64_are_ids_under_x64(x64, own_checks, search, options):
    def of_sentence(tokens, state, memory):
        return jnp.log(0.1 + 0.6 * jax.nn.one_hot(NEXT[0, tokens], 4)), state, None

    ids = {"bos": np.int64(BOS), "eos": np.int64(EOS)}
    result = search(of_sentence, jnp.zeros(1), None, max_len=4, batch_size=1, **ids, **options)
    assert result.ids[0, 0].tolist() == [1, 2, EOS, EOS]
    assert result.ids.dtype == jnp.int32


def test_search_stops_when_every_sentence_has_ended():
    taken = []

    def counted(tokens, state, memory):
        jax.debug.callback(lambda _: taken.append(1), state)
        return step(tokens, state, memory)

    jax.block_until_ready(greedy_search(counted, jnp.zeros(2, int), jnp.stack([NEXT[0]] * 2), max_len=50, **SETTINGS))
    jax.effects_barrier()
    assert len(taken) == 3


def test_a_step_without_weights_gives_none():
    def plain(tokens, state, memory):
        return (*step(tokens, state, memory)[:2], None)

    assert greedy_search(plain, jnp.zeros(2, int), NEXT, max_len=2, **SETTINGS).weights is None


@pytest.mark.parametrize(("value", "score"), [(np.nan, np.nan), (-np.inf, -np.inf)])
def test_a_sentence_without_a_possible_token_ends_alone(value, score):
    """The second sentence ends at its third step; the first is not affected."""

    def broken(tokens, state, memory):
        log_probs, state, weights = step(tokens, state, memory)
        return log_probs + jnp.where((jnp.arange(2) == 1) & (state == 3), value, 0)[:, None], state, weights

    taken = []

    def counted(*arguments):
        jax.debug.callback(lambda _: taken.append(1), arguments[0])
        return broken(*arguments)

    result = greedy_search(counted, jnp.zeros(2, int), NEXT, max_len=5, **SETTINGS)
    sound = greedy_search(step, jnp.zeros(2, int), NEXT, max_len=5, **SETTINGS)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[0], b[0]), result, sound)
    np.testing.assert_array_equal(result.scores[1], [score])
    np.testing.assert_array_equal(result.lengths[1], [0])
    np.testing.assert_array_equal(result.ids[1], EOS)
    for filled in (result.token_scores[1], result.weights[1]):
        np.testing.assert_array_equal(filled, 0)
    jax.effects_barrier()
    assert len(taken) == 3  # the search does not go on for it
