"""A tensor made wrong in a known way has to be described so."""

import numpy as np
import pytest

from parity_tests.your_port.cause.symptoms import describe

TRUTH = np.random.default_rng(0).normal(size=(3, 4))
INFINITE, NAN = TRUTH.copy(), TRUTH.copy()
INFINITE[1, 2], NAN[0, 3] = np.inf, np.nan
PART = np.where(np.arange(3)[:, None] == 1, TRUTH * 2 + 1, TRUTH)


@pytest.mark.parametrize(
    ("in_jax", "symptom"),
    [
        (NAN, "NaN in 1 of 12 entries, all within [0:1, 3:4]"),
        (INFINITE, "infinite in 1 of 12 entries, all within [1:2, 2:3]"),
        (TRUTH * (1 + 1e-9), "rounding"),
        (0 * TRUTH, "JAX's is zero everywhere"),
        (TRUTH * 4, "JAX's is 4 times PyTorch's"),
        (-TRUTH, "JAX's is -1 times PyTorch's"),
        (TRUTH * 0.9999, "JAX's is 0.9999 times PyTorch's: a scale, an epsilon, or a constant of few digits"),
        (TRUTH + np.arange(4), "the difference is the same in every row"),
        (np.roll(TRUTH, 1, axis=-1), "the same numbers in another order"),
        (PART, "only part of it differs: 4 of 12 entries, all within [1:2, 0:4]"),
    ],
)
def test_the_symptom_is_named(in_jax: np.ndarray, symptom: str) -> None:
    (found,) = describe(in_jax, TRUTH)
    assert found.startswith(symptom)


def test_pytorchs_zero_is_told_from_jaxs() -> None:
    assert describe(TRUTH, 0 * TRUTH) == ("PyTorch's is zero everywhere: not used there, or its gradient is stopped",)


def test_any_two_numbers_have_a_ratio_which_says_nothing() -> None:
    assert describe(np.array(0.99), np.array(1.0)) == ()
    assert describe(np.array(8.0), np.array(1.0)) == (
        "JAX's is 8 times PyTorch's: a scale, a sum for a mean, or a sign",
    )


def test_that_almost_all_of_it_differs_is_not_said() -> None:
    truth = np.random.default_rng(2).normal(size=(10, 10))
    in_jax = truth**2
    in_jax[3, 4] = truth[3, 4]
    assert describe(in_jax, truth) == ()


def test_nothing_is_said_of_what_is_merely_different() -> None:
    assert describe(np.random.default_rng(1).normal(size=(3, 4)), TRUTH) == ()
