"""The answers are those that mathematics gives, and those of docs/scoring_functions.json."""

import json
from pathlib import Path

import numpy as np
import pytest

from train.compare_attention import exercises

NUMBERS = json.loads((Path(__file__).parents[2] / "docs" / "scoring_functions.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def weights():
    return {name: exercises.weights_of_the_example(keys) for name, keys in exercises.keys_of_the_example().items()}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exercises")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exercises, "cost", lambda: {"shapes": {"x": [1, 2, 3]}, "milliseconds": {"dot": {"x": 0.5}}})
        return folder, exercises.answer(folder)


def test_the_answers_are_pictures_numbers_and_tables(answers):
    folder, found = answers
    assert {path.name for path in folder.iterdir()} == {"changed_keys.png", "vector_sum.png"}
    assert json.loads(json.dumps(found)) == found
    tables = exercises.tables(found)
    assert [rows[0][0] for rows in tables.values()] == ["keys", "score", "score", "attention"]
    assert tables["changed keys"][1] == ("ones", *["0.17 0.17 0.17 0.17 0.17 0.17"] * 2, "0.00")
    assert tables["different lengths"][2] == ("(W_q q) · (W_k k), 1 feature", "22", "1")
    assert tables["cost"] == [("attention", "x: 1 × 2 × 3"), ("dot", "0.50 ms")]


def test_keys_that_are_alike_get_equal_weights_from_both(weights):
    expected = np.array([[1 / 2] * 2 + [0] * 8, [1 / 6] * 6 + [0] * 4])
    for kind in ("additive", "scaled_dot"):
        np.testing.assert_allclose(weights["ones"][kind], expected, atol=1e-7)


def test_with_other_keys_the_two_differ(weights):
    for name in ("normal", "normal × 10"):
        assert np.abs(weights[name]["additive"] - weights[name]["scaled_dot"]).max() > 0.5
        for kind in ("additive", "scaled_dot"):
            np.testing.assert_allclose(weights[name][kind].sum(axis=-1), 1, atol=1e-6)
            assert (weights[name][kind][0, 2:] == 0).all()


def test_additive_attention_can_prefer_a_key_only_so_much_and_the_dot_product_any(weights):
    of_additive, of_dot = (weights["normal × 10"][kind][1, :6] for kind in ("additive", "scaled_dot"))
    assert of_additive.max() / of_additive.min() <= weights["normal"]["most"]
    assert of_dot.max() / of_dot.min() > 1e6
    huge = exercises.weights_of_the_example(1e6 * exercises.keys_of_the_example()["normal"])
    assert huge["additive"][1, :6].max() / huge["additive"][1, :6].min() <= weights["normal"]["most"]


def test_two_projections_are_a_bilinear_score_of_low_rank(answers):
    found = answers[1]["different_lengths"]
    assert found["bilinear"] == {"parameters": 40, "rank": 2}
    for one in found["two_projections"]:
        assert one["largest_difference_of_scores"] < 1e-12
        assert one["rank"] == min(one["num_hiddens"], 2)
        assert one["parameters"] == 22 * one["num_hiddens"]


def test_the_query_cancels_in_a_sum_and_nowhere_else(answers):
    found = answers[1]["vector_sum"]
    assert found["sum"]["between_queries"] < 1e-6
    assert found["sum"]["gradient_of_queries"] < 1e-5
    for name in ("additive", "scaled_dot"):
        assert found[name]["between_queries"] > 0.05
        assert found[name]["gradient_of_queries"] > 0.05


def test_the_page_s_answers_are_still_those_of_the_code(answers):
    today, told = answers[1], NUMBERS["exercises"]
    for name in ("additive", "scaled_dot"):
        ours, of_page = (list(found["vector_sum"][name].values()) for found in (today, told))
        np.testing.assert_allclose(ours, of_page, rtol=0.02)
    assert max(*today["vector_sum"]["sum"].values(), *told["vector_sum"]["sum"].values()) < 1e-5
    assert today["different_lengths"]["bilinear"] == told["different_lengths"]["bilinear"]
    for name in exercises.keys_of_the_example():
        for kind in ("additive", "scaled_dot"):
            both = (found["changed_keys"][name]["weights"][kind] for found in (today, told))
            for row, of_page in zip(*both, strict=True):
                assert row == pytest.approx(of_page, abs=2e-3)


@pytest.mark.slow
def test_the_cost_is_measured_of_each():
    found = exercises.cost(8, {"tiny": (2, 1, 3)}, seconds=0.01)
    assert set(found["milliseconds"]) == {
        "dot", "scaled_dot", "sum", "bilinear", "multi_head", "gaussian", "additive",
    }  # fmt: skip
    assert all(0 < times["tiny"] < 1000 for times in found["milliseconds"].values())
