"""The error function: entries of very different size are measured apart, and mere rounding is no difference."""

import numpy as np
import pytest

from parity_tests.your_port.measure.errors import relative_error

LARGEST = np.finfo(np.float64).max
LOGITS = np.array([1.5, -0.25, 3.0])


@pytest.mark.parametrize("mask", [-1e4, -1e9, -LARGEST, LARGEST])
def test_the_numbers_of_a_mask_measure_nothing_but_themselves(mask: float) -> None:
    truth = np.append(LOGITS, mask)
    assert relative_error(truth, truth) == 0
    assert relative_error(np.append(0 * LOGITS, mask), truth) == 1
    assert relative_error(np.append(LOGITS * (1 + 1e-6), mask), truth) == pytest.approx(1e-6)
    assert relative_error(np.append(LOGITS, mask * (1 + 1e-6 if abs(mask) < 1e10 else 0.5)), truth) >= 9e-7


def test_numbers_planted_between_do_not_bridge_the_gap() -> None:
    truth = 10.0 ** np.arange(13)
    assert relative_error(np.where(truth == 1, 0, truth), truth) >= 1e-4
    assert relative_error(np.where(truth == 1, 1 + 1e-6, truth), truth) >= 1e-10


def test_a_small_entry_among_others_is_measured_by_them() -> None:
    truth = np.array([1.0, 1e-3, 1e-17, 0.0])
    assert relative_error(truth + np.array([0, 0, 1e-17, 1e-17]), truth) < 1e-14
    assert relative_error(truth + np.array([0, 1e-9, 0, 0]), truth) == pytest.approx(1e-9)


def test_where_all_is_zero_errors_are_absolute_and_least_is_the_smallest_size() -> None:
    zeros = np.zeros(3)
    assert relative_error(zeros + 1e-3, zeros) == 1e-3
    assert relative_error(np.array([2e-9]), np.array([1e-9]), least=1.0) == pytest.approx(1e-9)
    assert relative_error(np.array([2e-9]), np.array([1e-9])) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("x", "truth", "error"),
    [
        (np.zeros(3), np.zeros((3, 1)), np.inf),
        (np.array([1.0, np.nan]), np.array([1.0, np.nan]), 0.0),
        (np.array([1.0, np.nan]), np.array([1.0, 2.0]), np.inf),
        (np.array([1.0, np.inf]), np.array([1.0, -np.inf]), np.inf),
        (np.array([1, 2, 3]), np.array([1, 3, 2]), 2.0),
        (np.array([True]), np.array([True]), 0.0),
        (np.zeros((0, 2)), np.zeros((0, 2)), 0.0),
        (np.array([]), np.array([]), 0.0),
        (np.float64(3.0), np.float64(3.0), 0.0),
    ],
)
def test_other_forms_and_extremes(x: np.ndarray, truth: np.ndarray, error: float) -> None:
    assert relative_error(np.asarray(x), np.asarray(truth)) == error
