import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import greedy_search
from jax_attn.search.constraints import Constraints, constrain, forbid_end, forbid_repeats, force_prefix

EOS, N = 0, 4


def allowed(log_probs):
    return [np.flatnonzero(row > -np.inf).tolist() for row in np.asarray(log_probs)]


def test_eos_is_forbidden_before_the_minimum_length():
    log_probs = jnp.zeros((1, N))
    assert allowed(forbid_end(log_probs, jnp.array(1), EOS, min_len=3)) == [[1, 2, 3]]
    assert allowed(forbid_end(log_probs, jnp.array(2), EOS, min_len=3)) == [[0, 1, 2, 3]]


@pytest.mark.parametrize("n", [1, 3, 6])
def test_forbidden_n_grams_equal_those_of_a_list(n):
    length = 5
    every = np.array(list(itertools.product(range(3), repeat=length)))
    for time in range(length):
        found = allowed(forbid_repeats(jnp.zeros((len(every), 3)), jnp.asarray(every), jnp.array(time), n))
        for ids, tokens in zip(every[:, :time].tolist(), found, strict=True):
            grams = {tuple(ids[i : i + n]) for i in range(time - n + 1)}
            assert tokens == [t for t in range(3) if time < n - 1 or (*ids[time - n + 1 :], t)[-n:] not in grams]


def test_a_prefix_is_forced_and_counts_for_later_tokens():
    prefix = jnp.array([[1, 1, 0], [2, 3, 1]])
    assert allowed(force_prefix(jnp.zeros((4, N)), jnp.array(1), prefix)) == [[1], [1], [3], [3]]
    constraints = Constraints(EOS, 4, 1, prefix, jnp.array([3, 1]))
    ids = jnp.array([[1, 9, 9]] * 2 + [[2, 9, 9]] * 2)
    found = constrain(jnp.zeros((4, N)), ids, jnp.array(1), constraints)
    assert allowed(found) == [[1], [1], [1, 3], [1, 3]]
    ids = jnp.array([[1, 1, 9]] * 2 + [[2, 3, 9]] * 2)
    assert allowed(constrain(jnp.zeros((4, N)), ids, jnp.array(2), constraints)) == [[0], [0], [1], [1]]


def test_allowed_tokens_keep_their_log_probability_and_forbidden_ones_may_be_nan():
    log_probs = jnp.array([[jnp.nan, -1.0, -2.0, jnp.nan]])
    constraints = Constraints(EOS, 3, 1, None, None)
    found = constrain(log_probs, jnp.array([[3, 0]]), jnp.array(1), constraints)
    np.testing.assert_array_equal(found, [[-np.inf, -1, -2, -np.inf]])


def flat(tokens, state, memory):
    return jnp.full((tokens.shape[0], N), -np.log(N)), state, None


def test_an_empty_prefix_is_no_prefix():
    prefix = jnp.zeros((2, 0), int)
    found = greedy_search(flat, (), None, bos=1, eos=EOS, max_len=3, batch_size=2, prefix=prefix)
    np.testing.assert_array_equal(found.lengths, 1)
