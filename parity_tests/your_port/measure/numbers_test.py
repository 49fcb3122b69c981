"""Fresh draws are other numbers of the same kind."""

import numpy as np
import pytest

from parity_tests.your_port.measure.case import Variant
from parity_tests.your_port.measure.numbers import fresh

RNG = np.random.default_rng(0)
X = RNG.normal(2.0, 3.0, size=(20, 30))
LENGTHS = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]])


def redraw(x: np.ndarray, draw: int = 1) -> np.ndarray:
    again = fresh(Variant("v", {"x": x}), draw).inputs["x"]
    assert again.shape == x.shape
    assert again.dtype == x.dtype
    return again


def test_draws_differ_have_other_names_and_can_be_repeated() -> None:
    variant = Variant("v", {"x": X, "nothing": None, "pair": (X, X)}, weights={"w": X})
    drawn = [fresh(variant, draw) for draw in (1, 2, 1)]
    assert [v.name for v in drawn] == ["v, fresh 1", "v, fresh 2", "v, fresh 1"]
    assert drawn[0].weights is None  # given ones may be zeros, which hide mistakes
    for value in (lambda v: v.inputs["x"], lambda v: v.inputs["pair"][1]):
        assert (value(drawn[0]) == value(drawn[2])).all()
        assert (value(drawn[0]) != value(drawn[1])).all()
        assert (value(drawn[0]) != X).all()
    assert drawn[0].inputs["nothing"] is None
    assert fresh(Variant("v", {}), 1).weights is None


def test_real_numbers_keep_their_scale_their_sign_and_their_zeros() -> None:
    assert redraw(X).mean() == pytest.approx(2.0, abs=0.5)
    assert redraw(X).std() == pytest.approx(3.0, abs=0.5)
    positive = np.where(np.arange(30) < 5, 0, np.abs(X))
    again = redraw(positive)
    assert ((again == 0) == (positive == 0)).all()
    assert (again <= positive.max()).all()
    assert (again >= 0).all()
    broken = np.where(np.arange(30) < 5, np.nan, X.astype(np.float32))
    assert (np.isnan(redraw(broken)) == np.isnan(broken)).all()


def test_ids_and_lengths_stay_in_their_range() -> None:
    ids = RNG.integers(0, 50, size=(4, 30))
    assert redraw(ids).max() == ids.max()
    assert redraw(ids).min() >= 0
    lengths = np.array([5, 4, 4, 5, 4, 4])
    drawn = np.stack([redraw(lengths, draw) for draw in range(1, 20)])
    assert set(drawn.ravel()) == {1, 2, 3, 4, 5}
    assert (drawn.max(1) == 5).all()
    labels = np.array([[3, -100, 4], [-100, 7, 0]])
    assert ((redraw(labels) < 0) == (labels < 0)).all()
    assert (redraw(np.tile(np.arange(7), (3, 1))) == np.arange(7)).all()


def test_ids_with_padding_get_no_padding_among_them() -> None:
    ids = RNG.integers(1, 5, (40, 6)) * (np.arange(6) < RNG.integers(1, 7, (40, 1)))
    np.testing.assert_array_equal(redraw(ids) == 0, ids == 0)
    np.testing.assert_array_equal(redraw(ids[:, ::-1]) == 0, ids[:, ::-1] == 0)
    labels = RNG.integers(0, 5, (40, 6))
    assert ((redraw(labels) == 0) & (labels != 0)).any()


@pytest.mark.parametrize(
    "x",
    [
        np.arange(5) - np.arange(5)[:, None] - 5,  # relative positions
        -np.arange(3, 9),
        np.array([1e3, 3.4e38, 2.0], np.float32),
        np.array([-3.4e38, 3.4e38, 2.0], np.float32),
        np.array([7, 2**62]),
    ],
)
def test_whole_numbers_that_are_negative_or_huge_stay_in_their_range(x: np.ndarray) -> None:
    again = redraw(x)
    assert (again != x).any()
    assert again.min() >= x.min()
    assert again.max() <= x.max()


@pytest.mark.parametrize("dtype", [bool, np.int64, np.float32])
def test_masks_are_shuffled_and_hide_no_whole_row_and_square_ones_stay(dtype: type) -> None:
    mask = LENGTHS[:, [0, 3, 1, 2]].astype(dtype)
    drawn = np.stack([redraw(mask, draw) for draw in range(1, 20)])
    assert (drawn != mask).any()
    assert (drawn.sum(-1) == mask.sum(-1)).all()
    causal = np.tril(np.ones((4, 4), bool))
    for mask in (causal, ~causal, np.broadcast_to(causal, (2, 1, 4, 4)), np.where(causal, 0.0, -np.inf)):
        assert (redraw(mask) == mask).all()
    for constant in (np.ones((3, 4)), np.zeros((3, 4), bool), np.array(1.0), np.array([True]), np.zeros((0, 2))):
        assert (redraw(constant) == constant).all()
    padding = np.where(LENGTHS == 1, 0.0, -1e9)
    assert set(np.unique(redraw(padding))) == {0.0, -1e9}


@pytest.mark.parametrize("mask", [LENGTHS, LENGTHS[:, ::-1], LENGTHS.astype(bool), np.where(LENGTHS == 0, -1e9, 0.0)])
def test_a_mask_of_padding_keeps_its_form(mask: np.ndarray) -> None:
    drawn = [redraw(mask, draw) for draw in range(1, 9)]
    for x in drawn:
        rising = np.diff((x == mask.max()).astype(int), axis=-1)
        assert (rising <= 0).all() or (rising >= 0).all()
        assert np.isin(x, mask).all()
        counts = (x == mask.max()).sum(-1)
        assert counts.max() == 3  # a text of full length stays
        assert counts.min() >= 1  # and none is empty
    assert any((x != mask).any() for x in drawn)
