"""Blind spots: mistakes that given inputs do not show, and that stronger ones do."""

from typing import Any

import jax
import numpy as np
import pytest
import torch

from parity_tests.your_port.cause.blind import find_blind
from parity_tests.your_port.cause.cause import Blind
from parity_tests.your_port.compare import compare
from parity_tests.your_port.weights.torch_program import read_program

RNG = np.random.default_rng(0)
X, KEYS, MASK = RNG.normal(size=(2, 3, 4)), RNG.normal(size=(2, 5, 4)), RNG.random((2, 3, 5)) > 0.4


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = self.q(x) @ self.k(keys).mT / 2
        return scores.masked_fill(~mask, -1e9).softmax(-1) @ keys


class Tagger(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(7, 4, padding_idx=0)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        shown = (torch.arange(ids.shape[1]) < lengths[:, None])[..., None]
        return (self.table(ids) * shown).sum(1)


IDS, LENGTHS = np.array([[1, 0, 2], [4, 3, 6]]), np.array([2, 3])


def blind(module: Any, *inputs: Any, seconds: float = 20.0) -> Blind:
    return find_blind(read_program(module, inputs).case(), seconds)


@pytest.mark.parametrize(
    ("module", "inputs", "unseen"),
    [
        pytest.param(Attention(), (X, KEYS, MASK), None, marks=pytest.mark.slow),
        (Attention(), (X, KEYS, np.ones_like(MASK)), "the mask is ignored in JAX"),
        pytest.param(
            Attention(),
            (X, KEYS[:, :1], np.ones((2, 3, 1), bool)),
            "the factor 2 is missing in JAX",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            Attention(),
            (np.ones_like(X), np.ones_like(KEYS), MASK),
            "q and k are exchanged in JAX",
            marks=pytest.mark.slow,
        ),
        (Tagger(), (IDS, LENGTHS), None),
        pytest.param(
            Tagger(),
            (IDS, np.array([3, 3])),
            "lengths is ignored in JAX, as if all were the largest",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            Tagger(),
            (np.maximum(IDS, 1), LENGTHS),
            "the row of the padding gets a gradient in JAX",
            marks=pytest.mark.slow,
        ),
        (torch.nn.ReLU(), (X,), None),
        (torch.nn.ReLU(), (abs(X),), "relu is missing in JAX"),
    ],
)
def test_what_weak_inputs_do_not_show_is_named_and_of_strong_ones_nothing_is(module, inputs, unseen) -> None:
    found = blind(module, *inputs)
    assert found.unseen == () if unseen is None else unseen in found.unseen
    assert found.tried > len(found.unseen)
    assert found.not_tried == ()


def test_when_the_time_runs_out_it_says_what_was_not_tried() -> None:
    found = blind(Attention(), X, KEYS, MASK, seconds=0.0)
    assert "the mask is ignored in JAX" in found.not_tried
    assert str(found).endswith(f" known mistakes would be seen; {len(found.not_tried)} were not tried")


def test_the_verdict_says_at_once_that_an_input_is_constant_and_what_is_unseen_when_it_is_asked() -> None:
    report = compare(torch.relu, jax.nn.relu, np.ones((2, 3)), dtypes=("float64",))
    weak = "  weak: input0 is 1 everywhere, which may hide mistakes (print(report.blind) shows which)"
    assert weak in str(report).splitlines()
    assert "blind" not in str(report).replace(weak, "")
    assert report.record.blind is None
    assert "relu is missing in JAX" in report.blind.unseen
    assert f"  blind: {report.blind}" in str(report).splitlines()
    assert report.record.blind == report.blind
