"""docs/scoring_functions.md says what docs/scoring_functions.json holds; exercises_test.py holds that to the code."""

import json
import re
from pathlib import Path

from train.compare_attention.__main__ import ATTENTIONS, renewed

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "scoring_functions.md").read_text(encoding="utf-8")
NUMBERS = json.loads((DOCS / "scoring_functions.json").read_text(encoding="utf-8"))
ROWS = {row["attention"]: row for row in NUMBERS["comparison"]["attentions"]}
ANSWERS = NUMBERS["exercises"]


def leaves(tree):
    if isinstance(tree, dict | list):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(part)
    elif isinstance(tree, int | float) and not isinstance(tree, bool):
        yield tree


def test_the_tables_are_those_of_the_numbers():
    marks = re.findall(r"<!-- table: (.*) -->\n\|", PAGE)
    expected = ["comparison", "changed keys", "different lengths", "bilinear ranks", "vector sum", "cost"]
    assert marks == expected
    assert renewed(PAGE, NUMBERS) == PAGE


def test_each_decimal_of_the_text_is_one_of_the_numbers():
    prose = re.sub(r"<!-- table.*?<!-- end -->|```.*?```|^    .*?$", "", PAGE, flags=re.DOTALL | re.MULTILINE)
    known = {f"{abs(number):.{digits}f}" for number in leaves(NUMBERS) for digits in (1, 2, 3)}
    quoted = re.findall(r"\d+\.\d+", prose)
    assert quoted
    assert [number for number in quoted if number not in known] == []


def test_the_pictures_are_there():
    names = re.findall(r"!\[.*?\]\((.*?)\)", PAGE)
    assert len(names) == 4
    for name in names:
        assert (DOCS / name).read_bytes().startswith(b"\x89PNG")


def test_all_attentions_were_compared_with_three_seeds():
    assert tuple(ROWS) == ATTENTIONS
    assert len(NUMBERS["comparison"]["seeds"]) == 3


def holds_zero(difference):
    return difference["low"] <= 0 <= difference["high"]


def test_what_the_page_says_was_found_is_what_was_found():
    attending = [row for row in ROWS.values() if row["attention"] not in ("sum", "none")]
    diagonal = NUMBERS["comparison"]["alignment_error_of_diagonal"]
    assert all(row["alignment_error"]["high"] < diagonal / 2 for row in attending)
    for name in ("scaled_dot", "scaled_bilinear", "multi_head"):
        assert holds_zero(ROWS[name]["bleu_beside_first"])
    for name in ("dot", "bilinear", "gaussian"):
        assert ROWS[name]["bleu_beside_first"]["high"] < 0
    assert min(attending, key=lambda row: row["bleu"]["value"])["attention"] == "bilinear"
    assert max(attending, key=lambda row: row["bleu"]["value"])["attention"] == "scaled_bilinear"
    by_error = sorted(attending, key=lambda row: row["alignment_error"]["value"])
    assert [row["attention"] for row in by_error[:2]] == ["scaled_bilinear", "multi_head"]
    for row in by_error[:2]:
        assert row["alignment_error_beside_first"]["high"] < 0
    for name in ("dot", "scaled_dot", "bilinear", "gaussian"):
        assert holds_zero(ROWS[name]["alignment_error_beside_first"])
    assert ROWS["sum"]["bleu"]["low"] < ROWS["none"]["bleu"]["high"]
    assert ROWS["sum"]["alignment_error"]["low"] > 0.8
    assert ROWS["scaled_dot"]["attention_parameters"] == 0


def test_sixteen_directions_are_enough_and_four_are_not():
    errors = {row["rank"]: row["alignment_error"] for row in NUMBERS["comparison"]["bilinear_ranks"]}
    assert abs(errors[16] - errors[96]) < 0.01
    assert errors[4] > NUMBERS["comparison"]["alignment_error_of_diagonal"]


def test_the_dot_products_are_cheapest_and_of_a_text_the_gaussian_is_dearest():
    times = ANSWERS["cost"]["milliseconds"]
    for shape in ANSWERS["cost"]["shapes"]:
        cheapest = sorted(times, key=lambda name: times[name][shape])[:2]
        assert set(cheapest) == {"dot", "scaled_dot"}
    assert max(times, key=lambda name: times[name]["a text"]) == "gaussian"
    assert times["additive"]["a text"] > times["sum"]["a text"]


def test_the_largest_preference_is_the_one_that_the_page_names():
    assert f"here {ANSWERS['changed_keys']['most_that_additive_can_prefer']} times" in PAGE
