import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import beam_search
from jax_attn.search.penalties import MIN_COVERAGE, Penalties, missing_coverage, norm, penalized

SETTINGS = {"bos": 1, "eos": 0, "max_len": 3, "batch_size": 2}


def test_norms():
    lengths = jnp.array([1.0, 7.0])
    np.testing.assert_allclose(norm(lengths, 0.5, "power"), [1, np.sqrt(7)], rtol=1e-6)
    np.testing.assert_allclose(norm(lengths, 0.5, "gnmt"), [1, np.sqrt(2)], rtol=1e-6)


def test_coverage_is_missing_where_the_attention_sums_to_less_than_1():
    coverage = jnp.array([[0.5, 1.0, 3.0, 0.25], [0.5, 0.0, 0.0, 1.0]])
    covered = jnp.array([[True, True, True, False], [True, True, False, False]])
    expected = [np.log(0.5), np.log(0.5) + np.log(MIN_COVERAGE)]
    np.testing.assert_allclose(missing_coverage(coverage, covered), expected, rtol=1e-6)


def test_a_score_is_the_sum_over_the_norm_plus_the_coverage():
    coverage, covered = jnp.array([[[0.5, 1.0], [1.0, 1.0]]]), jnp.ones((1, 2), bool)
    sums, lengths = jnp.array([[[-4.0], [-6.0]]]), jnp.array([[1, 7]])
    found = penalized(sums, lengths, coverage, Penalties(1.0, "gnmt", 2.0, covered))
    np.testing.assert_allclose(found, [[[-4 + 2 * np.log(0.5)], [-3]]], rtol=1e-6)
    np.testing.assert_array_equal(penalized(sums, lengths, None, Penalties(0.0, "power", 0.0, None)), sums)


def flat(tokens, state, memory):
    return jnp.full((tokens.shape[0], 4), -np.log(4)), state, None if memory is None else jnp.ones((len(tokens), 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length_penalty": -0.1}, "length_penalty must be finite and at least 0; got -0.1"),
        ({"length_penalty": float("nan")}, "length_penalty must be finite and at least 0; got nan"),
        ({"coverage_penalty": float("inf")}, "coverage_penalty must be finite and at least 0; got inf"),
        ({"length_norm": "mean"}, r"length_norm must be one of \('power', 'gnmt'\); got 'mean'"),
        ({"source_lens": np.array([1, 4])}, r"source_lens must be in \[0, 3\]; got 4"),
        ({"source_lens": np.array([1])}, r"source_lens must be \[2\]; got \[1\]"),
    ],
)
def test_invalid_penalties_are_refused(own_checks, options, message):
    with pytest.raises(ValueError, match=message):
        beam_search(flat, (), True, **SETTINGS, **options)


def test_coverage_needs_weights():
    with pytest.raises(ValueError, match="coverage_penalty needs a step that returns weights; got None"):
        beam_search(flat, (), None, **SETTINGS, coverage_penalty=0.1)
