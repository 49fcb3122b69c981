"""A whole corpus: mistakes that only some batches show, the table, and iterators that are wrong."""

import json
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from parity_tests.your_port.compare import compare

ROWS, WIDTH, LONGEST, WINDOW = 17, 6, 8, 5


class Model(torch.nn.Module):
    """A mean over the last words within a window, of those that the mask allows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = torch.nn.Embedding(ROWS, WIDTH), torch.nn.Linear(WIDTH, 3)

    def forward(self, ids: Any, mask: Any) -> Any:
        steps = torch.arange(ids.shape[1])
        near = (steps <= steps[:, None]) & (steps > steps[:, None] - WINDOW) & (mask[:, None] != 0)
        weights = near / near.sum(-1, keepdim=True).clamp(min=1)
        return self.out(weights.to(self.embed.weight.dtype) @ self.embed(ids))


def port(mistake: str = "") -> Any:
    def run(w: Any, ids: Any, mask: Any) -> Any:
        steps = jnp.arange(ids.shape[1])
        window = WINDOW + (mistake == "window")
        near = (steps <= steps[:, None]) & (steps > steps[:, None] - window)
        allowed = mask != 0
        if mistake == "full rows":  # the last word of a row without padding
            allowed &= steps < LONGEST - 1
        near &= allowed[:, None]
        weights = near / jnp.maximum(near.sum(-1, keepdims=True), 1)
        ids = jnp.minimum(ids, ROWS - 2) if mistake == "last id" else ids
        return weights.astype(w["out.bias"].dtype) @ w["embed.weight"][ids] @ w["out.weight"].T + w["out.bias"]

    return run


def batch(lengths: list[int], largest: int = ROWS - 1, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    return rng.integers(0, largest, (len(lengths), max(lengths))) * mask, mask


def corpus(count: int = 12) -> Iterator[Any]:
    """Yield short batches; the third has a row that is full, and the eighth the largest id."""
    for number in range(count):
        ids, mask = batch([3, 2, 4] if number % 2 else [2, 4], ROWS - 1, number)
        if number == 3:
            ids, mask = batch([4, LONGEST, 7], ROWS - 1, number)
        if number == 8:
            ids[1, 2] = ROWS - 1
        yield ids, mask


@pytest.mark.usefixtures("place_alone")
@pytest.mark.parametrize(
    ("mistake", "place", "words"),
    [
        pytest.param(
            *("window", "batch 3, row 0", "first difference: the forward pass at result"), marks=pytest.mark.slow
        ),
        ("full rows", "batch 3, row 1", "first difference: the forward pass at result"),
        ("last id", "batch 8, row 1", "first difference: the forward pass at "),
    ],
)
def test_a_mistake_that_only_some_batches_show(mistake: str, place: str, words: str) -> None:
    report = compare(Model(), port(mistake), corpus(), dtypes=("float64",))
    assert not report
    assert f"  corpus: 12 batches, 30 examples; worst: result at {place}: error " in str(report)
    assert words in str(report)
    assert {x.shape[0] for x in report.case.variants[0].inputs.values()} == {1}  # that row alone


def test_a_right_port_agrees_and_says_what_it_has_seen() -> None:
    compiled = list[tuple[int, ...]]()

    def counting(w: Any, ids: Any, mask: Any) -> Any:
        if isinstance(ids, jax.core.Tracer):
            compiled.append(ids.shape)
        return port()(w, ids, mask)

    report = compare(Model(), counting, corpus(60), dtypes=("float64",), gradients=False)
    assert report.agrees, report
    assert report.corpus is not None
    shapes = [shape for shape in compiled if shape[0] == 3]  # the first batch, which is traced for more, has two rows
    assert sorted(shapes) == [(3, 4), (3, LONGEST)]
    assert "60 batches, 150 examples" in str(report)
    assert f"met: {ROWS} of the {ROWS} ids of ids; lengths of mask from 2 to {LONGEST}" in str(report)
    facts = json.loads(report.to_json())["corpus"]
    assert facts["batches"] == 60
    assert 0 <= facts["shares"]["result"]["median"] <= facts["shares"]["result"]["most"] < 1
    assert report.corpus.table().splitlines()[0].split() == [
        "output",
        "least",
        "median",
        "90",
        "%",
        "99",
        "%",
        "most",
        "worst",
    ]


@pytest.mark.usefixtures("verdict_alone")
def test_whole_numbers_that_are_wrong_in_one_batch_fail() -> None:
    def sides(wrong: int) -> tuple[Any, Any]:
        return lambda ids, mask: ids + 1, lambda ids, mask: ids + 1 + wrong * (ids == ROWS - 1)

    assert compare(*sides(0), corpus(), dtypes=("float64",), gradients=False)
    report = compare(*sides(1), corpus(), dtypes=("float64",), gradients=False)
    assert not report
    assert "worst: result at batch 8, row 1: error 1, bound 0" in str(report)
    assert json.loads(report.to_json())["corpus"]["shares"]["result"]["most"] is None


def test_whole_numbers_that_are_no_mask_are_none() -> None:
    batches = ((np.zeros((2, 3), int), np.random.default_rng(n).normal(size=(2, 3))) for n in range(3))
    report = compare(lambda types, x: x + types, lambda types, x: x + types, batches, gradients=False)
    assert report, report
    assert "is full" not in str(report)


def test_what_was_never_met_is_weak() -> None:
    def short() -> Iterator[Any]:
        for number in range(4):
            yield batch([3, 3], ROWS - 4, number)

    report = compare(Model(), port("last id"), short(), dtypes=("float64",))
    assert report.agrees, report
    assert f"ids never is {ROWS - 1}" in str(report)
    assert "mask never has padding" in str(report)


def test_of_two_tables_that_ids_fit_none_is_named() -> None:
    """The table of positions may be larger than the ids that are met."""

    class Positions(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = torch.nn.Embedding(ROWS, 2), torch.nn.Embedding(9, 2)

        def forward(self, ids: Any) -> Any:
            return self.words(ids) + self.places.weight[: ids.shape[1]]

    def run(w: Any, ids: Any) -> Any:
        return w["words.weight"][ids] + w["places.weight"][: ids.shape[1]]

    batches = iter([np.array([[1, 2, 0]]), np.array([[5, 2, 3]])])
    report = compare(Positions(), run, batches, dtypes=("float64",), gradients=False)
    assert report.corpus is not None
    assert report.corpus.seen == ("5 ids of ids up to 5",)
    assert report.corpus.unseen == ("ids never is above 5",)


def test_nothing_of_the_batches_is_kept() -> None:
    import gc
    import weakref

    alive = list[Any]()

    class Batch(np.ndarray):
        """An array that can be watched."""

    def watched() -> Iterator[Any]:
        for ids, mask in corpus(40):
            alive.append(weakref.ref(kept := ids.view(Batch)))
            yield kept, mask

    report = compare(Model(), port(), watched(), dtypes=("float64",), gradients=False)
    gc.collect()
    assert report.agrees
    assert sum(each() is not None for each in alive) < 5


def raising() -> Iterator[Any]:
    yield batch([2, 3])
    raise OSError("the disk is full")


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (iter(()), "inputs is an iterator that has no batch"),
        (map(batch, ["no lengths"]), "the iterator raised at batch 0: TypeError"),
        (raising(), "the iterator raised at batch 1: OSError: the disk is full"),
        (
            iter([batch([2]), (batch([2])[0][0], np.ones(2, int))]),
            "batch 1 is unlike the first one: it has ids with 1 axes",
        ),
        (iter([batch([2]), (np.full((1, 2), ROWS), np.ones((1, 2), int))]), "batch 1 cannot be run: IndexError"),
        (iter([batch([2]), {"ids": 3}]), "batch 1 cannot be read: inputs must hold an array"),
    ],
)
def test_an_iterator_that_is_wrong_says_where(batches: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare(Model(), port(), batches, dtypes=("float64",), gradients=False)


def test_arguments_that_are_no_arrays_are_the_same_in_all_batches() -> None:
    """Both programs are made for those of the first batch."""
    batches = iter([(np.ones(3), 1), (np.ones(3), 2)])
    with pytest.raises(ValueError, match="batch 1 has other arguments that are no arrays than the first one"):
        compare(lambda x, n: x * n, lambda x, n: x * min(n, 1), batches, gradients=False)


@pytest.mark.usefixtures("verdict_alone")
def test_a_first_batch_that_differs_ends_it() -> None:
    report = compare(Model(), port("full rows"), iter([batch([LONGEST])]), dtypes=("float64",))
    assert not report
    assert "the other batches were not run, since the first one differs" in report.notes
