"""The page's numbers are those of its script, its text agrees with its tables, and the answers with mathematics."""

import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from train.translating.metrics import score_texts

DOCS = Path(__file__).parent
PAGE = (DOCS / "scoring_functions.md").read_text(encoding="utf-8")
script = SimpleNamespace(**runpy.run_path(str(DOCS / "scoring_functions.py")))


def numbers_of(cell):
    """Read `96.5 [95.9, 97.0]`."""
    return [float(number.replace("−", "-")) for number in re.findall(r"−?\d+\.\d+", cell)]


def table(first, second):
    """The table of the page whose first columns have these names: for each row its other cells."""
    (text,) = re.findall(rf"^\| {first} +\| +{second}.*?(?=\n\n)", PAGE, re.DOTALL | re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return {name: cells for name, *cells in rows}


COMPARISON = table("attention", "BLEU")


def test_the_exercises_tables_are_those_of_the_code(tmp_path):
    for rows in (script.changed_keys(tmp_path), script.vector_sum(tmp_path)):
        noise = "w · (W_q q + W_k k)"  # rounding errors
        assert [line for line in script.as_markdown(rows).splitlines() if line not in PAGE and noise not in line] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["changed_keys.png", "vector_sum.png"]


def test_equal_keys_get_equal_weights_and_additive_attention_is_bounded_where_the_product_is_not():
    expected = np.array([[1 / 2] * 2 + [0] * 8, [1 / 6] * 6 + [0] * 4])
    for found in script.example_weights(script.example_keys()["ones"])[0]:
        np.testing.assert_allclose(found, expected, atol=1e-7)
    keys = script.example_keys()["normal"]
    for factor in (1, 10, 1e6):
        weights, bound = script.example_weights(factor * keys)
        additive, product = (found[1, :6] for found in weights)
        assert additive.max() / additive.min() <= bound
        assert factor != 10 or product.max() / product.min() > 1e6
        assert np.abs(additive - product).max() > 0.5
    assert f"{bound:.1f} times" in PAGE


def test_two_projections_are_a_bilinear_score_of_low_rank():
    random, rows = np.random.default_rng(0), table("score", "parameters")
    assert rows.pop("qᵀ W k") == [str(20 * 2), "2"]
    for name, (parameters, rank) in rows.items():
        (width,) = map(int, re.findall(r"\d+", name))
        W_q, W_k = random.normal(size=(width, 20)), random.normal(size=(width, 2))
        queries, keys = random.normal(size=(3, 20)), random.normal(size=(5, 2))
        np.testing.assert_allclose((queries @ W_q.T) @ (keys @ W_k.T).T, queries @ (W_q.T @ W_k) @ keys.T, rtol=1e-9)
        assert (int(parameters), int(rank)) == (W_q.size + W_k.size, np.linalg.matrix_rank(W_q.T @ W_k))


def test_each_decimal_of_the_text_is_one_of_the_numbers():
    lines = PAGE.splitlines()
    tables, prose = (" ".join(line for line in lines if line.startswith("|") == of) for of in (True, False))
    others = {"0.265", "300.7"}  # the error of the diagonal, and the bound of additive weights
    assert set(re.findall(r"\d+\.\d+", prose)) - set(re.findall(r"\d+\.\d+", tables)) == others


def test_the_page_shows_its_pictures_and_names_every_attention():
    names = re.findall(r"!\[.*?\]\((.*?)\)", PAGE)
    assert len(names) == 4
    assert all((DOCS / name).read_bytes().startswith(b"\x89PNG") for name in names)
    assert set(COMPARISON) <= set(script.ATTENTIONS)
    assert [name for name in script.ATTENTIONS if name not in PAGE] == []


def test_the_claims_of_the_page_hold():
    rows = {name: list(map(numbers_of, cells)) for name, cells in COMPARISON.items()}
    bleu, bleu_apart, error, error_apart = ({name: row[i] for name, row in rows.items()} for i in range(4))
    attends = set(rows) - {"sum", "none"}
    assert all(error[name][2] < 0.265 / 2 for name in attends)
    for name in ("scaled_dot", "scaled_bilinear", "multi_head"):
        assert bleu_apart[name][1] <= 0 <= bleu_apart[name][2]
    for name in ("dot", "scaled_dot", "bilinear", "gaussian"):
        assert error_apart[name][1] <= 0 <= error_apart[name][2]
    assert all(bleu_apart[name][2] < 0 for name in ("dot", "bilinear", "gaussian"))
    by_bleu = sorted(attends, key=lambda name: bleu[name])
    assert (by_bleu[0], by_bleu[-1]) == ("bilinear", "scaled_bilinear")
    best = sorted(attends, key=lambda name: error[name])[:2]
    assert best == ["scaled_bilinear", "multi_head"]
    assert all(error_apart[name][2] < 0 for name in best)
    assert bleu["sum"][1] < bleu["none"][2]
    assert error["sum"][1] > 0.8
    errors = {int(kept): float(found) for kept, (_, found) in table("singular values kept", "share").items()}
    assert abs(errors[16] - errors[96]) < 0.01
    assert errors[4] > 0.265
    step, text = (
        {name: float(cells[i].split()[0]) for name, cells in table("attention", "a decoder").items()} for i in (0, 1)
    )
    assert all(set(sorted(times, key=times.get)[:2]) == {"dot", "scaled_dot"} for times in (step, text))
    assert max(text, key=text.get) == "gaussian"
    assert text["additive"] > text["sum"]


REFERENCES = ["le chat dort .", "elle mange une pomme .", "je ne sais pas .", "tu vends la maison ."]
TRANSLATIONS = [REFERENCES, ["le chien dort .", "elle mange la pomme .", "je ne sais pas .", "tu vends la maison ."]]


def test_a_sample_is_the_score_of_the_drawn_seeds_on_the_drawn_sentences():
    counts = np.array([script.bleu_counts(texts, REFERENCES) for texts in TRANSLATIONS])
    by_seed, (mean, *samples) = script.bootstrap(counts, script.bleu_of, num_samples=20)
    whole = [score_texts(texts, REFERENCES).bleu for texts in TRANSLATIONS]
    np.testing.assert_allclose([*by_seed, mean], [*whole, np.mean(whole)])
    random = np.random.default_rng(0)
    seeds = random.integers(2, size=(20, 2))
    times = random.multinomial(4, np.full(4, 1 / 4), size=20)
    for sample, drawn, counted in zip(samples, seeds, times, strict=True):
        ids = np.repeat(range(4), counted)
        scores = [score_texts([TRANSLATIONS[s][i] for i in ids], [REFERENCES[i] for i in ids]).bleu for s in drawn]
        assert sample == pytest.approx(np.mean(scores))


def test_with_one_seed_the_interval_is_that_of_the_standard_error():
    values = np.random.default_rng(1).normal(3, 2, size=400)
    counts = np.stack([values, np.ones(400)], axis=-1)[None]
    _, found = script.bootstrap(counts, lambda parts: parts[0] / parts[1])
    mean, low, high = numbers_of(script.with_interval(found, 3))
    error = values.std() / 20
    assert mean == pytest.approx(values.mean(), abs=1e-3)
    np.testing.assert_allclose([low, high], [mean - 1.96 * error, mean + 1.96 * error], atol=0.15 * error)


@pytest.mark.slow
def test_attentions_are_trained_once_and_compared(tmp_path, monkeypatch, capfd):
    small = "--corpus.train 96 --corpus.valid 0 --corpus.test 12 --epochs 1 --model.num-hiddens 16 --model.embed-size 8"
    command = ["compare", "--attentions", "bilinear", "none", "--seeds", "3", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["scoring_functions.py", *command, *small.split(), "--search.batch-size", "12"])
    script.main()
    _, _, printed = capfd.readouterr().out.partition("| attention")
    trained = (tmp_path / "out" / "none-3" / "summary.json").stat().st_mtime_ns
    script.main()
    assert (tmp_path / "out" / "none-3" / "summary.json").stat().st_mtime_ns == trained
    assert capfd.readouterr().out == f"| attention{printed}"
    comparison, ranks = printed.rstrip().split("\n\n")
    assert [line.split()[1] for line in comparison.splitlines()[-2:]] == ["bilinear", "none"]
    assert [line.split()[1] for line in ranks.splitlines()[2:]] == ["1", "2", "4", "8", "16"]
    assert {"scores.png", "attention.png"} <= {path.name for path in (tmp_path / "out").iterdir()}
