import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import masked_log_softmax, masked_softmax
from jax_attn.functional.softmax import row_maximum

softmax = jax.jit(masked_softmax, static_argnames="empty_row")
log_softmax = jax.jit(masked_log_softmax, static_argnames="empty_row")
SCORES = jax.random.normal(jax.random.key(0), (2, 3, 5))


@pytest.mark.parametrize(
    ("lens", "allowed"), [([2, 3], [[2, 2], [3, 3]]), ([[1, 3], [2, 4]], [[1, 3], [2, 4]])]
)  # fmt: skip
def test_the_book_s_example_is_zero_past_the_length_and_its_rows_sum_to_one(lens, allowed):
    scores = jax.random.uniform(jax.random.key(1), (2, 2, 4))
    weights = np.asarray(softmax(scores, jnp.array(lens)))
    for row, score, length in zip(weights.reshape(4, 4), scores.reshape(4, 4), np.ravel(allowed), strict=True):
        np.testing.assert_allclose(row[:length], np.exp(score[:length]) / np.exp(score[:length]).sum(), rtol=1e-5)
        assert (row[length:] == 0).all()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)


def test_without_a_mask_it_is_softmax():
    np.testing.assert_allclose(softmax(SCORES), jax.nn.softmax(SCORES), rtol=1e-6)
    np.testing.assert_allclose(log_softmax(SCORES), jax.nn.log_softmax(SCORES), rtol=1e-5)


def test_the_logarithm_is_that_of_the_weights_and_minus_infinity_where_masked():
    lens = jnp.array([[1, 2, 5], [3, 0, 4]])
    with np.errstate(divide="ignore"):
        expected = np.log(softmax(SCORES, lens))
    np.testing.assert_allclose(log_softmax(SCORES, lens), expected, rtol=1e-5, atol=1e-6)
    assert (log_softmax(SCORES, lens)[1, 1] == -jnp.inf).all()


def test_a_mask_of_zeros_weighs_four_keys_by_a_quarter_when_uniform_and_by_nothing_otherwise():
    scores, mask = jax.random.normal(jax.random.key(0), (1, 3, 4)), jnp.zeros((1, 1, 4), bool)
    np.testing.assert_array_equal(softmax(scores, mask=mask, empty_row="uniform"), np.full((1, 3, 4), 0.25))
    np.testing.assert_array_equal(softmax(scores, mask=mask), np.zeros((1, 3, 4)))
    np.testing.assert_allclose(log_softmax(scores, mask=mask, empty_row="uniform"), np.full((1, 3, 4), -np.log(4)))


@pytest.mark.parametrize("function", [softmax, log_softmax])
@pytest.mark.parametrize("empty_row", ["zero", "uniform"])
def test_what_is_masked_reaches_neither_value_nor_gradient(function, empty_row):
    lens = jnp.array([[2, 0, 5], [1, 4, 3]])
    allowed = np.arange(5) < lens[..., None]

    def total(scores):
        values = function(scores, lens, empty_row=empty_row)
        return jnp.sum(jnp.where(allowed, values, 0) * jnp.arange(5.0)), values

    run = jax.jit(jax.value_and_grad(total, has_aux=True))
    (_, expected), clean = run(SCORES)
    assert (np.asarray(clean)[~allowed] == 0).all()
    assert np.abs(np.asarray(clean)[allowed]).max() > 0.01
    for poison in (jnp.nan, jnp.inf, -jnp.inf):
        (_, values), gradient = run(jnp.where(allowed, SCORES, poison))
        np.testing.assert_array_equal(values, expected)
        np.testing.assert_array_equal(gradient, clean)


@pytest.mark.parametrize("function", [masked_softmax, masked_log_softmax])
def test_a_row_of_minus_infinity_has_no_gradient(function):
    scores = jnp.array([[[1.0, 2.0], [-jnp.inf, -jnp.inf]]])
    gradient = jax.jit(jax.grad(lambda s: function(s)[0, 0, 0] + jnp.exp(function(s)[0, 1]).sum()))(scores)
    np.testing.assert_array_equal(gradient[0, 1], 0)
    assert (gradient[0, 0] != 0).all()


@pytest.mark.parametrize("empty_row", ["zero", "uniform"])
def test_no_gradient_flows_to_an_empty_row(empty_row):
    scores, mask = SCORES, jnp.zeros((3, 5), bool).at[0].set(True)
    gradient = jax.jit(jax.grad(lambda s: jnp.sum(masked_softmax(s, mask=mask, empty_row=empty_row)[..., 0])))(scores)
    assert (gradient[:, 1:] == 0).all()
    assert (gradient[:, 0] != 0).all()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64])
@pytest.mark.parametrize("function", [softmax, log_softmax])
def test_the_dtype_is_kept_and_large_scores_do_not_overflow(x64, function, dtype):
    scores = jnp.array([[6e4, 6e4, -6e4, 6e4]], dtype)
    result = function(scores, mask=jnp.array([True, True, True, False]))
    assert result.dtype == dtype
    weights = np.asarray(result if function is softmax else jnp.exp(result), float)
    np.testing.assert_allclose(weights, [[0.5, 0.5, 0, 0]], atol=2e-3)


def test_half_precision_is_computed_in_float32():
    scores = jax.random.normal(jax.random.key(3), (4, 300)).astype(jnp.bfloat16)
    expected = jax.nn.softmax(scores.astype(jnp.float32)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(softmax(scores), expected)


@pytest.mark.parametrize(
    ("size", "singly"),
    [*((size, True) for size in (0, 1, 2, 3, 6, 7, 30, 511, 512)), *((size, False) for size in (0, 7, 512))],
)
def test_the_maximum_of_a_row_is_exact_in_either_form(monkeypatch, size, singly):
    monkeypatch.setattr("jax_attn.functional.softmax.reduces_singly", lambda: singly)
    x = np.random.default_rng(size).normal(size=(3, max(size, 1), size)).astype(np.float32)
    for place in range(size):  # the largest number stands at each place once, and infinity with it
        x[:2, place, place] = [9, np.inf]
    x[2] = -np.inf
    highest = jax.jit(lambda x: row_maximum(x))(x)  # a function of its own, since jit keeps what it traced
    np.testing.assert_array_equal(highest, x.max(axis=-1, keepdims=True, initial=-np.inf))


@pytest.mark.parametrize("singly", [True, False])
@pytest.mark.parametrize(  # in 0.12 it is the number of rows that decides how XLA sums
    ("size", "batch"), [(1, 64), (7, 64), (64, 512), (512, 1), pytest.param(512, 64, marks=pytest.mark.slow)]
)
def test_nan_in_a_row_is_never_lost(monkeypatch, size, batch, singly):
    monkeypatch.setattr("jax_attn.functional.softmax.reduces_singly", lambda: singly)
    scores = np.random.default_rng(size).normal(size=(size + 1, size)).astype(np.float32)
    np.fill_diagonal(scores, np.nan)  # at each place once, and in all rows but the last
    scores[0] = np.nan
    scores, has_nan = np.stack([scores] * batch), (np.arange(size + 1) < size)[:, None].repeat(size, axis=1)
    run = jax.jit(lambda scores: (masked_softmax(scores), masked_log_softmax(scores)))  # its own: jit keeps its trace
    for found in run(scores):
        np.testing.assert_array_equal(np.isnan(found), np.stack([has_nan] * batch))


def test_lengths_of_examples_are_repeated_for_each_query_not_for_each_example():
    # 2 examples and 3 queries: repeating by 2 cannot give 3 rows, by position it would mix the examples.
    weights = softmax(jnp.zeros((2, 3, 4)), jnp.array([1, 4]))
    np.testing.assert_array_equal(weights, [[[1, 0, 0, 0]] * 3, [[0.25] * 4] * 3])
