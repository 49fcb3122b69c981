"""Ports made to deceive: what could pass as agreement, or be blamed on what it is not."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

from parity_tests import compare

RNG = np.random.default_rng(0)
X, IDS = RNG.normal(size=(4, 6)), RNG.integers(0, 11, (2, 5))
compare_wide = partial(compare, dtypes=("float64",))


def lines(report: Any, start: str) -> list[str]:
    """Return the lines of a verdict that begin so, without the beginning."""
    return [line.removeprefix(start) for line in str(report).splitlines() if line.startswith(start)]


# Converters that lose digits


@pytest.mark.parametrize(
    "cast",
    [
        lambda w: jnp.asarray(w).astype(jnp.float16).astype(jnp.float32),
        lambda w: jnp.round(jnp.asarray(w), 2),
    ],
    ids=["float16", "rounded"],
)
def test_a_converter_that_changes_numbers_differs(cast: Any) -> None:
    def load(state: Any) -> Any:
        return {"kernel": cast(state["weight"].T), "bias": state["bias"]}

    report = compare_wide(nn.Linear(6, 5), nnx.Linear(6, 5, rngs=nnx.Rngs(0)), X, load=load)
    assert not report.agrees
    assert lines(report, "  load: ")[0].startswith("kernel is computed by load")


def test_a_converter_to_fewer_digits_than_the_module_has_is_refused() -> None:
    def load(state: Any) -> Any:
        return {"kernel": jnp.asarray(state["weight"].T, jnp.bfloat16), "bias": state["bias"]}

    with pytest.raises(ValueError, match="kernel in bfloat16 for float32"):
        compare_wide(nn.Linear(6, 5), nnx.Linear(6, 5, rngs=nnx.Rngs(0)), X, load=load)


# Weights that an optimiser would move otherwise


class Positions(nn.Module):
    """Its table is a buffer, and its embedding is the output layer, too."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.emb.weight
        self.register_buffer("pe", torch.randn(5, 6))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.emb(ids) + self.pe))


class NnxPositions(nnx.Module):
    def __init__(self, kind: Any, tied: bool) -> None:
        self.emb, self.pe = nnx.Embed(11, 6, rngs=nnx.Rngs(0)), kind(jnp.zeros((5, 6)))
        self.head = None if tied else nnx.Linear(6, 11, use_bias=False, rngs=nnx.Rngs(0))

    def __call__(self, ids: Any) -> Any:
        x = jnp.tanh(self.emb(ids) + self.pe[...])
        return self.emb.attend(x) if self.head is None else self.head(x)


@pytest.mark.parametrize(
    ("kind", "tied", "notes"),
    [
        (nnx.BatchStat, True, []),
        (nnx.Param, True, ["pe is a buffer in PyTorch, and pe is a parameter in JAX"]),
        (
            nnx.BatchStat,
            False,
            ["emb.weight is one weight in PyTorch, and JAX trains emb.embedding and head.kernel apart"],
        ),
    ],
)
def test_weights_that_are_trained_otherwise_are_noted(kind: Any, tied: bool, notes: list[str]) -> None:
    report = compare_wide(Positions(), NnxPositions(kind, tied), IDS)
    assert report.agrees, report
    assert lines(report, "  note: ") == notes


# Gradients


class Target(nn.Module):
    """No gradient flows through its second result."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.pred = nn.Linear(6, 5), nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> Any:
        z = torch.tanh(self.enc(x))
        return self.pred(z), z.detach()


class NnxTarget(nnx.Module):
    def __init__(self, stopped: bool) -> None:
        self.enc, self.pred = (nnx.Linear(size, 5, rngs=nnx.Rngs(0)) for size in (6, 5))
        self.stopped = stopped

    def __call__(self, x: Any) -> Any:
        z = jnp.tanh(self.enc(x))
        return self.pred(z), jax.lax.stop_gradient(z) if self.stopped else z


def test_a_gradient_that_is_not_stopped_differs() -> None:
    assert compare_wide(Target(), NnxTarget(stopped=True), X).agrees
    failed = compare_wide(Target(), NnxTarget(stopped=False), X).failed
    assert {m.tensor for m in failed} == {"gradient of x", "gradient of enc.weight", "gradient of enc.bias"}


def test_a_gradient_that_is_rounding_agrees_however_small_pytorch_s_is() -> None:
    """In float32 PyTorch's gradient of the bias before a norm may by chance be as small as in float64."""

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c, self.bn = nn.Linear(6, 1), nn.BatchNorm1d(1, track_running_stats=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.bn(self.c(x))

    def port(w: Any, x: Any) -> Any:
        y = x @ w["c.weight"].T + w["c.bias"]
        return (y - y.mean(0)) / jnp.sqrt(y.var(0) + 1e-5) * w["bn.weight"] + w["bn.bias"]

    for seed in (20, 25, 27, 33):
        x = np.random.default_rng(seed).normal(size=(8, 6))
        report = compare_wide(Normed(), port, x, name=f"s{seed}")
        assert report.agrees, report


# Running statistics


class Moving(nn.Module):
    """Keeps a mean under a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("moving_mean", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x - self.moving_mean
        mean = x.mean(0)
        self.moving_mean.mul_(0.9).add_(0.1 * mean.detach())
        return x - mean


class NnxMoving(nnx.Module):
    """Without `updates` it forgets the mean; without `flows` no gradient reaches it, in training alone."""

    def __init__(self, updates: bool = True, flows: bool = True) -> None:
        self.moving_mean, self.use_running_average = nnx.BatchStat(jnp.zeros(6)), False
        self.updates, self.flows = updates, flows

    def __call__(self, x: Any) -> Any:
        if self.use_running_average:
            return x - self.moving_mean[...]
        mean = x.mean(0)
        if self.updates:
            self.moving_mean[...] = 0.9 * self.moving_mean[...] + 0.1 * mean
        return x - (mean if self.flows else jax.lax.stop_gradient(mean))


def test_every_buffer_that_a_step_moves_is_compared() -> None:
    assert compare_wide(Moving(), NnxMoving(), X, buffers=True).agrees
    report = compare_wide(Moving(), NnxMoving(updates=False), X, buffers=True)
    assert [m.tensor for m in report.failed] == ["moving_mean after a step"]


def test_what_is_wrong_in_training_alone_is_not_blamed_on_jit() -> None:
    report = compare_wide(Moving(), NnxMoving(flows=False), X, buffers=True)
    assert [m.tensor for m in report.failed] == ["gradient of x"]
    assert "jit" not in str(report)


# Causes and notes


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.fc = nn.LayerNorm(6), nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm2(self.fc(self.norm1(x)))


class NnxTwice(nnx.Module):
    """Takes the first norm for the second one, or has a number of its own."""

    def __init__(self, wrong: bool = False, epsilon: float = 1e-5) -> None:
        self.norm1, self.norm2 = (nnx.LayerNorm(6, epsilon=epsilon, rngs=nnx.Rngs(0)) for _ in range(2))
        self.fc, self.one = nnx.Linear(6, 6, rngs=nnx.Rngs(0)), nnx.Variable(jnp.ones(6))
        self.wrong = wrong

    def __call__(self, x: Any) -> Any:
        x = self.fc(self.norm1(x)) * self.one[...]
        return self.norm1(x) if self.wrong else self.norm2(x)


def test_one_norm_in_the_place_of_another_is_named() -> None:
    report = compare_wide(Twice(), NnxTwice(wrong=True), X)
    words = "norm2.weight, norm2.bias are those of the first layer of their kind in JAX"
    assert lines(report, "  cause: ") == [f"{words} (explains outputs and gradients on fresh draws)"]


def test_a_variable_of_jax_s_own_is_no_cast() -> None:
    report = compare_wide(Twice(), NnxTwice(epsilon=1e-6), X)
    assert lines(report, "  cause: ") == [
        "epsilon is 1e-06 in JAX, in norm* (explains outputs and gradients on fresh draws)"
    ]
    assert lines(report, "  note: ") == []


# What PyTorch keeps in another form


def test_a_sparse_gradient_is_compared_as_a_dense_one() -> None:
    table = nn.Embedding(11, 6, sparse=True)
    assert compare_wide(table, lambda w, ids: w["weight"][ids], IDS).agrees
    assert not compare_wide(table, lambda w, ids: jax.lax.stop_gradient(w["weight"])[ids], IDS).agrees


def test_a_lazy_module_has_to_be_called_before() -> None:
    with pytest.raises(ValueError, match="lazy and has no weights yet: call it once before"):
        compare_wide(nn.LazyLinear(5), nnx.Linear(6, 5, rngs=nnx.Rngs(0)), X)


# Complex numbers


def test_complex_numbers_are_refused() -> None:
    class Filter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, dtype=torch.complex64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.irfft(torch.fft.rfft(x) * self.w)

    with pytest.raises(ValueError, match=r"PyTorch's w is complex.*two parameters"):
        compare_wide(Filter(), lambda w, x: jnp.fft.irfft(jnp.fft.rfft(x) * w["w"]), X)
    with pytest.raises(ValueError, match=r"PyTorch's result is complex.*by torch_call and jax_call"):
        compare_wide(torch.fft.rfft, jnp.fft.rfft, X)
    with pytest.raises(ValueError, match=r"PyTorch's input0 is complex.*give its real and its imaginary part"):
        compare_wide(torch.real, jnp.real, X + 1j)
