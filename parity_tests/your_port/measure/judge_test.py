"""Attacks on the verdict: ports that are wrong where it is hard to see, and right ones where it is hard to tell."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from parity_tests import Case, JaxSide, Variant, torch_function
from parity_tests.your_port.compare import compare
from parity_tests.your_port.measure.draw import Draw
from parity_tests.your_port.measure.judge import Measurement, median_of_draws
from parity_tests.your_port.measure.torch_side import Observer

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 6))
SEEN = np.array([[True, True, False, True, False, True]] * 4)
FEW = np.arange(6) < np.ones((4, 1))

compare_wide = partial(compare, dtypes=("float64",))
compare_outputs = partial(compare_wide, gradients=False)


def dense(weights: Any, name: str, x: Any) -> Any:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def norm(weights: Any, x: Any, eps: float) -> Any:
    mean = x.mean(-1, keepdims=True)
    deviation = jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps)
    return (x - mean) / deviation * weights["norm.weight"] + weights["norm.bias"]


# Entries of very different size


class Masked(nn.Module):
    def __init__(self, fill: float | None, added: bool) -> None:
        super().__init__()
        self.norm, self.out, self.fill, self.added = nn.LayerNorm(6), nn.Linear(6, 6), fill, added

    def forward(self, x: Any, seen: Any) -> Any:
        y = self.out(self.norm(x))
        fill = torch.finfo(y.dtype).min if self.fill is None else self.fill
        return y + ~seen * fill if self.added else y.masked_fill(~seen, fill)


def masked(fill: float | None, added: bool, eps: float = 1e-5, factor: float = 1.0) -> Callable[..., Any]:
    def port(weights: Any, x: Any, seen: Any) -> Any:
        y = factor * dense(weights, "out", norm(weights, x, eps))
        value = jnp.finfo(y.dtype).min if fill is None else fill
        return y + ~seen * value if added else jnp.where(seen, y, value)

    return port


@pytest.mark.usefixtures("verdict_alone")
@pytest.mark.parametrize(
    ("fill", "added", "seen"),
    [
        (None, False, SEEN),
        (-1e9, True, FEW),
        pytest.param(None, False, FEW, marks=pytest.mark.slow),
        pytest.param(-1e9, True, SEEN, marks=pytest.mark.slow),
        *(pytest.param(fill, False, seen, marks=pytest.mark.slow) for fill in (-1e9, -1e4) for seen in (SEEN, FEW)),
    ],
)
def test_the_numbers_of_a_mask_hide_nothing(fill: float | None, added: bool, seen: np.ndarray) -> None:
    module = Masked(fill, added)
    assert compare_outputs(module, masked(fill, added), (X, seen)).agrees
    assert not compare_outputs(module, masked(fill, added, factor=0.0), (X, seen)).agrees
    assert not compare_outputs(module, masked(fill, added, eps=1e-6), (X, seen)).agrees


@pytest.mark.usefixtures("verdict_alone")
def test_the_verdict_on_zeros_beside_a_mask() -> None:
    report = compare_outputs(Masked(None, False), masked(None, False, factor=0.0), (X, SEEN))
    lines = str(report).split("\n")
    assert lines[0] == "Masked DIFFERS in 1 of 1 tensors (1 output, 0 gradients; float64)"
    assert lines[1] == "  worst: result, float64: error 1, 1e+12 times its bound 1e-12"


SCALES = (1.0, 1e3, 1e5, 1e7, 1e9, 1e12)


class Bridged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        y = self.out(self.norm(x))
        return y * torch.tensor(SCALES, dtype=y.dtype)


def bridged(weights: Any, x: Any, eps: float = 1e-5, factor: float = 1.0) -> Any:
    right, wrong = (dense(weights, "out", norm(weights, x, e)) for e in (1e-5, eps))
    return jnp.where(jnp.arange(6) == 0, factor * wrong, right) * jnp.array(SCALES, right.dtype)


@pytest.mark.slow
@pytest.mark.usefixtures("verdict_alone")
def test_numbers_between_do_not_bridge_the_gap_and_a_right_port_agrees() -> None:
    assert compare_wide(Bridged(), bridged, X).agrees
    assert not compare_outputs(Bridged(), partial(bridged, factor=0.0), X).agrees
    assert not compare_outputs(Bridged(), partial(bridged, eps=1e-6), X).agrees


class Ill(nn.Module):
    """Half of its result has no digit in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        y = self.a(x)
        return torch.cat([(y + 1e9) - 1e9, y], -1)


def ill(weights: Any, x: Any, factor: float) -> Any:
    y = dense(weights, "a", x)
    return jnp.concatenate([(y + 1e9) - 1e9, factor * y], -1)


@pytest.mark.usefixtures("verdict_alone")
@pytest.mark.parametrize(("factor", "agrees"), [(1.0, True), (1 + 1e-6, False), (0.0, False)])
def test_a_tensor_that_is_ill_conditioned_in_part(factor: float, agrees: bool) -> None:
    assert compare_outputs(Ill(), partial(ill, factor=factor), X).agrees is agrees


@pytest.mark.usefixtures("verdict_alone")
def test_in_float32_too_an_error_beyond_pytorchs_own_is_a_difference() -> None:
    """PyTorch's own error is 1 % to 100 %: 16 times that let anything pass."""

    def variance(x: Any, shift: float) -> Any:
        return ((x + shift) ** 2).mean(-1) - (x + shift).mean(-1) ** 2

    narrow = partial(compare, dtypes=("float32",), gradients=False)
    report = narrow(partial(variance, shift=1500.0), partial(variance, shift=1500.0), X)
    assert report.agrees
    assert report.measurements[0].torch_error > 0.1
    assert not narrow(partial(variance, shift=1500.0), lambda x: 5 + variance(x, 0.0), X).agrees


# Zero except for rounding


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.scale = nn.Linear(6, 5), nn.Parameter(torch.ones(5))

    def forward(self, x: Any) -> Any:
        return F.batch_norm(self.a(x), None, None, training=True) * self.scale


def normed(weights: Any, x: Any, factor: float = 1.0, leak: float = 0.0) -> Any:
    bias = weights["a.bias"]
    y = dense(weights, "a", x) + leak * (bias - jax.lax.stop_gradient(bias)) * jnp.arange(4.0)[:, None]
    return factor * (y - y.mean(0)) / jnp.sqrt(y.var(0) + 1e-5) * weights["scale"]


def test_a_gradient_that_is_zero_except_for_rounding_is_called_that() -> None:
    report = compare(Normed(), normed, X)
    assert report.agrees
    rounding = {m.tensor for m in report.measurements if m.only_rounding}
    assert rounding == {"gradient of a.bias"}
    assert "gradient of a.bias" not in str(report)
    assert all("zero except for rounding in both" in line for line in report.table().split("\n") if "a.bias" in line)


@pytest.mark.usefixtures("verdict_alone")
@pytest.mark.parametrize("wrong", [partial(normed, leak=1e-9), partial(normed, factor=1 + 1e-9)])
def test_and_one_that_is_more_in_jax_is_a_difference(wrong: Any) -> None:
    assert not compare_wide(Normed(), wrong, X).agrees


# Large scores


class Attention(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.q, self.k, self.v, self.scale = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6), scale

    def forward(self, x: Any) -> Any:
        return (self.q(x) @ self.k(x).mT * self.scale).softmax(-1) @ self.v(x)


def attention(weights: Any, x: Any, scale: float) -> Any:
    scores = dense(weights, "q", x) @ dense(weights, "k", x).mT * scale
    return jax.nn.softmax(scores, -1) @ dense(weights, "v", x)


@pytest.mark.usefixtures("verdict_alone")
@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
def test_a_right_attention_agrees_however_large_its_scores_are(scale: float) -> None:
    """At 30 and more JAX's gradients of the queries had an error of any size times PyTorch's, which are almost 0."""
    report = compare_wide(Attention(scale), partial(attention, scale=scale), X)
    assert report.agrees, report
    if scale == 1:
        assert not compare_wide(Attention(scale), partial(attention, scale=0.9 * scale), X).agrees


SCORES = torch.tensor(RNG.normal(size=(3, 4)) * 1e3)
IDS = torch.tensor([0, 1, 3])
LARGEST = SCORES.abs().max().item()


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (lambda x: torch.softmax(x, -1), LARGEST),
        (lambda x: x.softmax(-1), LARGEST),
        (lambda x: F.softmax(x, dim=-1), LARGEST),
        (nn.Softmax(-1), LARGEST),
        (lambda x: torch.special.softmax(x, -1), LARGEST),
        (lambda x: torch.log_softmax(x, -1), LARGEST),
        (lambda x: x.log_softmax(-1), LARGEST),
        (lambda x: F.log_softmax(x, dim=-1), LARGEST),
        (nn.LogSoftmax(-1), LARGEST),
        (lambda x: F.softmin(x, dim=-1), LARGEST),
        (lambda x: torch.logsumexp(x, -1), LARGEST),
        (lambda x: F.cross_entropy(x, IDS), LARGEST),
        (lambda x: F.cross_entropy(target=IDS, input=x), LARGEST),
        (lambda x: nn.CrossEntropyLoss()(x, IDS), LARGEST),
        (
            lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], scale=1e-2),
            1e-2 * (SCORES @ SCORES.T).abs().max().item(),
        ),
        (lambda x: x.masked_fill(x > 0, -torch.inf).softmax(-1), -SCORES.min().item()),
        (torch.tanh, 0.0),
    ],
)
def test_the_scores_of_every_form_of_a_softmax_are_seen(form: Callable[[Any], Any], expected: float) -> None:
    with Observer() as observer:
        form(SCORES)
    assert observer.max_score == pytest.approx(expected)


@pytest.mark.parametrize("options", [{}, {"kdim": 3, "vdim": 3}, {"bias": False}])
def test_the_scores_inside_of_multi_head_attention_are_seen(options: dict[str, Any]) -> None:
    layer = nn.MultiheadAttention(4, 1, batch_first=True, **options)
    keys = torch.eye(options.get("kdim", 4))[None]
    queries = torch.ones(1, 1, 4)
    with Observer() as observer:
        _, weights = layer(queries, keys, keys)
    separate = layer.in_proj_weight is None
    wq, wk = (layer.q_proj_weight, layer.k_proj_weight) if separate else layer.in_proj_weight.chunk(3)[:2]
    scores = ((queries @ wq.T) @ (keys @ wk.T).mT / 2).detach()  # biases are 0 at first
    assert observer.max_score == pytest.approx(scores.abs().max().item(), rel=1e-5)
    torch.testing.assert_close(scores.softmax(-1), weights.detach())


@pytest.mark.parametrize("fill", [-torch.inf, torch.finfo(torch.float64).min, -1e9, -1e5])
def test_the_numbers_of_a_mask_are_no_scores(fill: float) -> None:
    with Observer() as observer:
        torch.tensor([1.0, -3.0, fill], dtype=torch.float64).softmax(-1)
    assert observer.max_score == 3


@pytest.mark.usefixtures("verdict_alone")
def test_a_mask_in_a_softmax_hides_nothing() -> None:
    """The bound was infinite: 16 u max|score| with finfo.min as a score."""

    def right(x: Any) -> Any:
        return torch.softmax(x.masked_fill(~torch.tensor(SEEN), torch.finfo(x.dtype).min), -1)

    def port(x: Any, factor: float) -> Any:
        return factor * jax.nn.softmax(jnp.where(SEEN, x, jnp.finfo(x.dtype).min), -1)

    assert compare_outputs(right, partial(port, factor=1.0), X).agrees
    assert not compare_outputs(right, partial(port, factor=1 + 1e-10), X).agrees
    assert not compare_outputs(right, partial(port, factor=0.0), X).agrees


# float32 inside


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        return self.out(F.gelu(self.norm(x)))


def blocks(weights: Any, x: Any, approximate: bool = False) -> Any:
    y = norm(weights, x.astype(jnp.float32), 1e-5).astype(x.dtype)  # as some norms do
    return dense(weights, "out", jax.nn.gelu(y, approximate=approximate))


NOTE = r"  note: JAX casts to float32 inside, at judge_test.py:\d+; with inside='float32' the two agree"


def test_a_mistake_beside_a_cast_is_named_and_not_the_cast() -> None:
    report = compare_wide(Blocks(), partial(blocks, approximate=True), X)
    assert "note" not in str(report)
    assert report.divergence is not None
    assert [cause.words for cause in report.divergence.causes] == ["gelu is GELU approximated by tanh in JAX"]
    assert "bound of float32" in report.divergence.difference


@pytest.mark.parametrize("where", ["jit", "scan", "remat", "custom_vjp", "cond", "vmap", "table"])
def test_a_cast_is_found_wherever_it_is(where: str) -> None:
    def cast(x: Any) -> Any:
        return jnp.sin(x.astype(jnp.float32)).astype(x.dtype)

    own = jax.custom_vjp(cast)
    own.defvjp(lambda x: (cast(x), x), lambda x, g: (g * jnp.cos(x),))
    table = np.linspace(0, 1, 6, dtype=np.float32)
    forms: dict[str, Callable[[Any], Any]] = {
        "jit": jax.jit(cast),
        "scan": lambda x: jax.lax.scan(lambda c, row: (c, cast(row)), 0, x)[1],
        "remat": jax.checkpoint(cast),
        "custom_vjp": own,
        "cond": lambda x: jax.lax.cond(x[0, 0] > 0, cast, jnp.sin, x),
        "vmap": jax.vmap(cast),
        "table": lambda x: jnp.sin(x + 0 * jnp.asarray(table)) + 1e-9,
    }
    report = compare_outputs(torch.sin, forms[where], X)
    assert re.search(NOTE, str(report)), report
    wrong = compare_outputs(torch.sin, lambda x: jnp.sin(x) + 1e-9, X)
    assert "note" not in str(wrong)


# Draws


def test_the_median_of_the_draws_counts_and_a_mismatch_in_any() -> None:
    first = Measurement("case", "variant", "float32", "result", error=1.0, bound=2.0)
    worse = replace(first, error=9.0)
    unequal = replace(first, mismatch="a dtype")
    assert median_of_draws([first, worse, first]) is first
    assert median_of_draws([first, worse]) is worse
    assert median_of_draws([first, unequal, first, first]) is unequal


def test_a_run_in_float32_of_another_length_says_nothing_about_rounding() -> None:
    side = torch_function(lambda inputs, options: inputs["x"][: 3 if inputs["x"].dtype == torch.float32 else 4])
    case = Case("dynamic", (Variant("one", {"x": X}),), side, JaxSide(lambda _, inputs, options: inputs["x"]))
    assert not any(m.failed for m in Draw(case, case.variants[0], "float64").measure_draws())


def test_a_cast_to_16_bits_alone_is_named_with_its_line() -> None:
    def port(weights: Any, x: Any) -> Any:
        y = norm(weights, x.astype(jnp.bfloat16), 1e-5).astype(x.dtype)
        return dense(weights, "out", jax.nn.gelu(y, approximate=False))

    report = compare(Blocks(), port, X)
    assert {m.run_dtype for m in report.failed} == {"float64", "float32"}
    line = port.__code__.co_firstlineno + 1
    note = f"note: JAX casts to bfloat16 inside, at judge_test.py:{line}; within its rounding the two agree"
    assert report.divergence is None
    assert str(report).split("\n")[2].strip() == note


@pytest.mark.usefixtures("verdict_alone")
def test_a_result_that_pytorch_casts_may_stay_wide_in_jax_and_is_said() -> None:
    def torch_side(x: Any) -> Any:
        return x.float().tanh()

    note = "note: PyTorch casts result to float32 at its end, and JAX does not: in 16 bits their dtypes differ"
    right = compare_wide(torch_side, jnp.tanh, X, inside="float32")
    assert right.agrees, right
    assert note in str(right)
    assert note not in str(compare_wide(torch_side, lambda x: jnp.tanh(x.astype(jnp.float32)), X, inside="float32"))
    unsaid = compare_wide(torch_side, jnp.tanh, X)
    assert "note: PyTorch casts to float32 inside; with inside='float32' the two agree" in str(unsaid)
    assert not compare_wide(torch_side, lambda x: jnp.tanh(1.00001 * x), X, inside="float32")
    sixteen = compare(torch_side, jnp.tanh, X, dtypes=("bfloat16",), inside="float32")
    assert "dtype bfloat16 in JAX, float32 in PyTorch" in {m.mismatch for m in sixteen.failed}


@pytest.mark.usefixtures("verdict_alone")
def test_a_result_that_jax_casts_is_right_if_float32_is_asked_for() -> None:
    def port(x: Any) -> Any:
        return jnp.tanh(x).astype(jnp.float32)

    unsaid = str(compare_wide(torch.tanh, port, X))
    assert "worst: result, float64: dtype float32 in JAX, float64 in PyTorch" in unsaid
    assert "note: JAX casts to float32 inside, at judge_test.py:" in unsaid
    assert "with inside='float32' the two agree" in unsaid
    assert compare_wide(torch.tanh, port, X, inside="float32").agrees
    assert not compare_wide(torch.tanh, lambda x: port(1.00001 * x), X, inside="float32")
    note = "note: JAX casts result to float32 at its end, and PyTorch does not: in 16 bits their dtypes differ"
    assert note in unsaid


def test_a_cast_does_not_explain_what_is_wrong_without_jit_alone() -> None:
    def port(weights: Any, x: Any) -> Any:
        return blocks(weights, x) + (not isinstance(x, jax.core.Tracer)) * 1.0

    report = compare_wide(Blocks(), port, X, gradients=False, inside="float32")
    assert {m.dtype for m in report.failed} == {"float64 without jit"}
    assert "within its rounding" not in str(report)


# Errors without a share of their bounds


def test_with_a_bound_of_0_what_is_exact_agrees_and_hides_nothing() -> None:
    x = np.arange(1.0, 9.0).reshape(2, 4)
    right = compare_outputs(lambda x: 2 * x, lambda x: 2 * x, x, bound=0.0)
    assert right, right
    assert [m.share for m in right.measurements] == [0.0] * len(right.measurements)
    assert not compare_outputs(lambda x: 2 * x, lambda x: (2 * x).at[1, 2].multiply(1.5), x, bound=0.0)


@pytest.mark.parametrize(
    ("error", "bound"), [(np.inf, np.inf), (np.nan, 1.0), (0.0, np.nan), (1e-300, 0.0), (1.0, 0.0)]
)
def test_what_has_no_share_of_its_bound_fails(error: float, bound: float) -> None:
    found = Measurement("c", "v", "float64", "y", error, bound)
    assert found.failed
    assert found.share == np.inf
