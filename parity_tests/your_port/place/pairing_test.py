"""Names, shapes and the user's layout say which tensor is which; values never do."""

from typing import Any

import numpy as np
import pytest

from parity_tests.your_port.place.pairing import align, bring, match_names

IMAGE = np.arange(2 * 3 * 8 * 8.0).reshape(2, 3, 8, 8)
SQUARE = np.arange(16.0).reshape(4, 4)
CUBES = np.arange(2 * 4 * 4 * 4.0).reshape(2, 4, 4, 4)
STEPS = np.arange(3 * 5 * 4.0).reshape(3, 5, 4)


@pytest.mark.parametrize(
    ("x", "like", "wish", "expected"),
    [
        (SQUARE, SQUARE.T, None, SQUARE),
        (IMAGE, IMAGE.transpose(0, 2, 3, 1), None, IMAGE.transpose(0, 2, 3, 1)),
        (CUBES, CUBES.transpose(0, 2, 3, 1), None, CUBES),
        (CUBES, CUBES, "NHWC", CUBES.transpose(0, 2, 3, 1)),
        (CUBES, CUBES, (0, 2, 1, 3), CUBES.transpose(0, 2, 1, 3)),
        (STEPS, STEPS, "NHWC", STEPS),
        (STEPS, STEPS.transpose(1, 0, 2), None, STEPS.transpose(1, 0, 2)),
        (IMAGE, np.zeros((2, 64, 3)), None, IMAGE.transpose(0, 2, 3, 1).reshape(2, 64, 3)),
        (STEPS, np.zeros((3, 5, 2, 2)), None, STEPS.reshape(3, 5, 2, 2)),
        (STEPS, np.zeros((3, 1, 5, 4)), None, STEPS[:, None]),
        (np.zeros((4, 4, 2)), np.zeros((2, 4, 4)), None, None),
        (STEPS, np.zeros((3, 5, 5)), None, None),
    ],
)
def test_a_form_follows_from_shapes_and_layout_alone(x: Any, like: Any, wish: Any, expected: Any) -> None:
    found = bring(x, like.shape, wish)
    assert (found is None) == (expected is None)
    if expected is not None:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("axis", [0, 1])
def test_one_call_may_stand_for_many_where_only_one_axis_fits(axis: int) -> None:
    rows = list(np.moveaxis(STEPS, axis, 0))
    np.testing.assert_array_equal(align([STEPS], rows), rows)
    np.testing.assert_array_equal(align(rows, [STEPS]), [STEPS])
    square = STEPS[:, :3]
    assert align([square], list(square)) == align(list(square), [square]) == []


def test_names_are_matched_by_weights_by_words_and_as_a_stack() -> None:
    in_torch = ["net.h.0", "net.h.0.act", "net.h.1", "net.h.1.act", "emb"]
    paths = {"blocks_0": "net.h.0", "blocks_1": "net.h.1"}
    found = match_names(["blocks_0", "blocks_0.act", "blocks_1", "other"], in_torch, paths)
    assert found == {"blocks_0": ["net.h.0"], "blocks_0.act": ["net.h.0.act"], "blocks_1": ["net.h.1"]}
    stack = {"blocks": ["net.h.0", "net.h.1"], "blocks.act": ["net.h.0.act", "net.h.1.act"], "Emb": ["emb"]}
    assert match_names(["blocks", "blocks.act", "Emb"], in_torch, {"blocks": "net.h"}) == stack
