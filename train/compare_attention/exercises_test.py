"""The answers agree with mathematics and with docs/scoring_functions.json, which the text of the page agrees with."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from train.compare_attention import exercises
from train.compare_attention.__main__ import ATTENTIONS, update_tables

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "scoring_functions.md").read_text(encoding="utf-8")
NUMBERS = json.loads((DOCS / "scoring_functions.json").read_text(encoding="utf-8"))
ROWS = {row["attention"]: row for row in NUMBERS["comparison"]["attentions"]}
ANSWERS = NUMBERS["exercises"]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exercises")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exercises, "cost", lambda: {"shapes": {"x": [1, 2, 3]}, "milliseconds": {"dot": {"x": 0.5}}})
        found = exercises.answer(folder)
    assert {path.name for path in folder.iterdir()} == {"changed_keys.png", "vector_sum.png"}
    assert json.loads(json.dumps(found)) == found
    return found


def test_the_tables_show_the_answers(answers):
    tables = exercises.tables(answers)
    assert tables["changed keys"][1] == ("ones", *["0.17 0.17 0.17 0.17 0.17 0.17"] * 2, "0.00")
    assert tables["different lengths"][2] == ("(W_q q) · (W_k k), 1 feature", "22", "1")
    assert tables["cost"] == [("attention", "x: 1 × 2 × 3"), ("dot", "0.50 ms")]


def test_additive_attention_can_prefer_a_key_only_so_much_and_the_dot_product_without_limit():
    keys = exercises.example_keys()["normal"]
    for factor in (1, 10, 1e6):
        weights, bound = exercises.example_weights(factor * keys)
        for found in weights.values():
            np.testing.assert_allclose(found.sum(axis=-1), 1, atol=1e-6)
            assert (found[0, 2:] == 0).all()
            assert (found[1, 6:] == 0).all()
        additive, product = (weights[kind][1, :6] for kind in exercises.KINDS)
        assert additive.max() / additive.min() <= bound
        if factor == 10:
            assert product.max() / product.min() > 1e6
        assert np.abs(weights["additive"] - weights["scaled_dot"]).max() > 0.5


def test_equal_keys_get_equal_weights_from_both():
    weights, _ = exercises.example_weights(exercises.example_keys()["ones"])
    expected = np.array([[1 / 2] * 2 + [0] * 8, [1 / 6] * 6 + [0] * 4])
    for found in weights.values():
        np.testing.assert_allclose(found, expected, atol=1e-7)


def test_two_projections_are_a_bilinear_score_of_low_rank(answers):
    found = answers["different_lengths"]
    assert found["bilinear"] == {"parameters": 40, "rank": 2}
    for projections in found["two_projections"]:
        assert projections["largest_difference"] < 1e-12
        assert projections["rank"] == min(projections["num_hiddens"], 2)
        assert projections["parameters"] == 22 * projections["num_hiddens"]


def test_the_query_cancels_in_a_sum_and_nowhere_else(answers):
    found = answers["vector_sum"]
    assert found["sum"]["between_queries"] < 1e-6
    assert found["sum"]["query_gradient"] < 1e-5
    for name in exercises.KINDS:
        assert found[name]["between_queries"] > 0.05
        assert found[name]["query_gradient"] > 0.05


def test_the_numbers_of_the_page_are_those_of_the_code(answers):
    for name in exercises.KINDS:
        ours, documented = (list(found["vector_sum"][name].values()) for found in (answers, ANSWERS))
        np.testing.assert_allclose(ours, documented, rtol=0.02)
    assert max(*answers["vector_sum"]["sum"].values(), *ANSWERS["vector_sum"]["sum"].values()) < 1e-5
    assert answers["different_lengths"]["bilinear"] == ANSWERS["different_lengths"]["bilinear"]
    for name in exercises.example_keys():
        for kind in exercises.KINDS:
            both = (found["changed_keys"][name]["weights"][kind] for found in (answers, ANSWERS))
            for row, documented in zip(*both, strict=True):
                assert row == pytest.approx(documented, abs=2e-3)
    assert answers["changed_keys"]["largest_additive_ratio"] == pytest.approx(
        ANSWERS["changed_keys"]["largest_additive_ratio"], rel=2e-3
    )


@pytest.mark.slow
def test_the_cost_of_each_is_measured():
    found = exercises.cost(8, {"tiny": (2, 1, 3)}, seconds=0.01)
    assert set(found["milliseconds"]) == set(ANSWERS["cost"]["milliseconds"])
    assert all(0 < times["tiny"] < 1000 for times in found["milliseconds"].values())


# --- The page ---------------------------------------------------------------------------------------------------------


def leaves(tree):
    if isinstance(tree, dict | list):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(part)
    elif isinstance(tree, int | float) and not isinstance(tree, bool):
        yield tree


def test_the_tables_of_the_page_are_those_of_the_numbers():
    names = ["comparison", "changed keys", "different lengths", "bilinear ranks", "vector sum", "cost"]
    assert re.findall(r"<!-- table: (.*) -->\n\|", PAGE) == names
    assert update_tables(PAGE, NUMBERS) == PAGE


def test_each_decimal_of_the_text_is_one_of_the_numbers():
    prose = re.sub(r"<!-- table.*?<!-- end -->|```.*?```|^    .*?$", "", PAGE, flags=re.DOTALL | re.MULTILINE)
    known = {f"{abs(number):.{digits}f}" for number in leaves(NUMBERS) for digits in (1, 2, 3)}
    quoted = re.findall(r"\d+\.\d+", prose)
    assert quoted
    assert [number for number in quoted if number not in known] == []


def test_the_page_shows_its_pictures_and_names_every_attention():
    names = re.findall(r"!\[.*?\]\((.*?)\)", PAGE)
    assert len(names) == 4
    for name in names:
        assert (DOCS / name).read_bytes().startswith(b"\x89PNG")
    assert set(ROWS) <= set(ATTENTIONS)
    assert [name for name in ATTENTIONS if name not in PAGE] == []
    assert len(NUMBERS["comparison"]["seeds"]) == 3


def test_the_claims_of_the_page_hold():
    comparison = NUMBERS["comparison"]
    attends = [row for row in ROWS.values() if row["attention"] not in ("sum", "none")]
    diagonal = comparison["diagonal_alignment_error"]
    assert all(row["alignment_error"]["high"] < diagonal / 2 for row in attends)
    for score, names in (
        ("bleu", ("scaled_dot", "scaled_bilinear", "multi_head")),
        ("alignment_error", ("dot", "scaled_dot", "bilinear", "gaussian")),
    ):
        differences = [ROWS[name][f"{score}_minus_first"] for name in names]
        assert all(difference["low"] <= 0 <= difference["high"] for difference in differences)
    assert all(ROWS[name]["bleu_minus_first"]["high"] < 0 for name in ("dot", "bilinear", "gaussian"))
    by_bleu = sorted(attends, key=lambda row: row["bleu"]["value"])
    assert (by_bleu[0]["attention"], by_bleu[-1]["attention"]) == ("bilinear", "scaled_bilinear")
    best = sorted(attends, key=lambda row: row["alignment_error"]["value"])[:2]
    assert [row["attention"] for row in best] == ["scaled_bilinear", "multi_head"]
    assert all(row["alignment_error_minus_first"]["high"] < 0 for row in best)
    assert ROWS["sum"]["bleu"]["low"] < ROWS["none"]["bleu"]["high"]
    assert ROWS["sum"]["alignment_error"]["low"] > 0.8
    assert ROWS["scaled_dot"]["attention_parameters"] == 0
    errors = {row["rank"]: row["alignment_error"] for row in comparison["bilinear_ranks"]}
    assert abs(errors[16] - errors[96]) < 0.01
    assert errors[4] > diagonal
    times = ANSWERS["cost"]["milliseconds"]
    for shape in ANSWERS["cost"]["shapes"]:
        assert set(sorted(times, key=lambda name: times[name][shape])[:2]) == {"dot", "scaled_dot"}
    assert max(times, key=lambda name: times[name]["a text"]) == "gaussian"
    assert times["additive"]["a text"] > times["sum"]["a text"]
    assert f"{ANSWERS['changed_keys']['largest_additive_ratio']} times" in PAGE
