import jax.numpy as jnp
import numpy as np

from jax_attn.search.penalties import MIN_COVERAGE, Penalties, missing_coverage, norm, penalized


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
