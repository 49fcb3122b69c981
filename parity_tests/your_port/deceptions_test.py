"""Ports made to deceive: what could pass as agreement, or be blamed on what it is not."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx
from torch import nn

from parity_tests import compare

pytestmark = pytest.mark.slow
RNG = np.random.default_rng(0)
X, IDS = RNG.normal(size=(4, 6)), RNG.integers(0, 11, (2, 5))
compare_wide = partial(compare, dtypes=("float64",))


def lines(report: Any, start: str) -> list[str]:
    """Return the lines of a verdict that begin so, without the beginning."""
    return [line.removeprefix(start) for line in str(report).splitlines() if line.startswith(start)]


# Converters that lose digits


@pytest.mark.usefixtures("verdict_alone")
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


@pytest.mark.usefixtures("verdict_alone")
@pytest.mark.parametrize("how", ["load", "found", "names"])
def test_one_weight_that_jax_holds_twice_is_noted_however_pytorch_uses_it_twice(how: str) -> None:
    class Used(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb, self.layer = nn.Embedding(11, 6), nn.Linear(6, 6)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.tanh(self.layer(self.emb(ids)))) @ self.emb.weight.T

    class Apart(nnx.Module):
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.emb, self.head = nnx.Embed(11, 6, rngs=rngs), nnx.Linear(6, 11, use_bias=False, rngs=rngs)
            self.first, self.second = nnx.Linear(6, 6, rngs=rngs), nnx.Linear(6, 6, rngs=rngs)

        def __call__(self, ids: Any) -> Any:
            return self.head(self.second(jnp.tanh(self.first(self.emb(ids))))) * factor

    def load(w: Any) -> Any:
        layer = {"kernel": w["layer.weight"].T, "bias": w["layer.bias"]}
        head = {"kernel": w["emb.weight"].T}
        return {"emb": {"embedding": w["emb.weight"]}, "head": head, "first": layer, "second": layer}

    factor = 1.0
    names = {"head": "emb", "emb": "emb", "first": "layer", "second": "layer"}
    given: dict[str, Any] = {"load": {"load": load}, "found": {}, "names": {"names": names}}[how]
    report = compare_wide(Used(), Apart(), IDS, **given)
    assert report.agrees, report
    factor = 2.0
    if how == "found":  # perhaps PyTorch has no such weight: copies are found only where the two then agree
        with pytest.raises(
            ValueError, match=r"(?s)3 of JAX's weights have no counterpart.*'head.kernel': 'emb.weight'"
        ):
            compare_wide(Used(), Apart(), IDS)
    else:
        assert not compare_wide(Used(), Apart(), IDS, **given)
    assert lines(report, "  note: ") == [
        "emb.weight is one weight in PyTorch, and JAX trains emb.embedding and head.kernel apart",
        "layer.weight is one weight in PyTorch, and JAX trains first.kernel and second.kernel apart",
        "and 1 more",
    ]


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.register_buffer("pe", torch.randn(4, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) + self.pe


@pytest.mark.parametrize("stopped", [True, False])
def test_a_buffer_that_equinox_would_train_is_noted(stopped: bool) -> None:
    class Port(eqx.Module):
        fc: eqx.nn.Linear
        pe: jax.Array

        def __call__(self, x: Any) -> Any:
            return jax.vmap(self.fc)(x) + (jax.lax.stop_gradient(self.pe) if stopped else self.pe)

    report = compare_wide(Shifted(), Port(eqx.nn.Linear(6, 6, key=jax.random.key(0)), jnp.zeros((4, 6))), X)
    assert report.agrees, report
    found = "pe is a buffer in PyTorch, and pe gets a gradient in JAX: jax.lax.stop_gradient"
    assert lines(report, "  note: ") == [found] * (not stopped)


@pytest.mark.parametrize(("rate", "notes"), [(0.1, 0), (0.9, 1)])
def test_another_rate_of_dropout_is_noted(rate: float, notes: int) -> None:
    class Linen(linen.Module):
        @linen.compact
        def __call__(self, x: Any, deterministic: bool) -> Any:
            return linen.Dropout(rate)(linen.Dense(5)(x), deterministic)

    torch_side = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.1))
    in_nnx = nnx.Sequential(nnx.Linear(6, 5, rngs=nnx.Rngs(0)), nnx.Dropout(rate))
    for port in (Linen(), in_nnx):
        report = compare_wide(torch_side, port, X)
        assert report.agrees, report
        assert (
            lines(report, "  note: dropout is 0.1 in PyTorch and 0.9 in JAX") == [", and both ran without it"] * notes
        )


# Numbers that hide mistakes


class Scaled(nn.Module):
    """Normalises by numbers of its own, which begin at 0 and 1."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 5)
        self.register_buffer("centre", torch.zeros(6))
        self.register_buffer("width", torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc((x - self.centre) / self.width)


def scaled(w: Any, x: Any, ignored: str = "") -> Any:
    centre, width = (0.0 if ignored == "centre" else w["centre"], 1.0 if ignored == "width" else w["width"])
    return (x - centre) / width @ w["fc.weight"].T + w["fc.bias"]


def test_buffers_of_one_number_are_drawn_once_more() -> None:
    hidden = ", and with other numbers the two differ in result"
    for ignored, weak in (("", []), ("centre", ["centre is 0 everywhere"]), ("width", ["width is 1 everywhere"])):
        report = compare_wide(Scaled(), partial(scaled, ignored=ignored), X)
        assert report.agrees, report
        assert lines(report, "  weak: ") == [words + hidden for words in weak]


def test_given_weights_of_one_number_are_drawn_once_more() -> None:
    norm = nn.BatchNorm1d(6)

    def port(w: Any, x: Any) -> Any:
        return x / np.sqrt(1 + 1e-5) * w["weight"] + w["bias"]

    report = compare_wide(norm, port, X, weights=norm.state_dict())
    assert report.agrees, report
    assert lines(report, "  weak: running_mean is 0 everywhere, running_var is 1 everywhere, and with other numbers ")


def test_an_argument_that_the_port_does_not_read_differs() -> None:
    table = nn.Embedding(11, 6)
    assert compare_wide(table, lambda w, ids: w["weight"][ids], IDS).agrees
    report = compare_wide(table, lambda w, ids: w["weight"][IDS], IDS)
    words = "other numbers in input change it in PyTorch, and not in JAX: does the port read it?"
    assert [m.mismatch for m in report.failed] == [words]


def test_results_whose_names_are_one_are_refused() -> None:
    def both(x: Any) -> Any:
        return {"a.b": x, "a": {"b": 2 * x}}

    with pytest.raises(ValueError, match=r"two tensors are called a\.b: a key has a dot in it"):
        compare_wide(both, both, X)


def test_a_copy_that_is_not_used_is_not_said_to_be_trained() -> None:
    class Port(nnx.Module):
        def __init__(self) -> None:
            self.emb, self.head = nnx.Embed(11, 6, rngs=nnx.Rngs(0)), nnx.Embed(11, 6, rngs=nnx.Rngs(1))
            self.used = False

        def __call__(self, ids: Any) -> Any:
            return self.emb(ids) @ self.head.embedding[...].T if self.used else self.emb(ids)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(11, 6)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.emb(ids) @ self.emb.weight.T if port.used else self.emb(ids)

    port = Port()
    assert lines(compare_wide(Model(), port, IDS), "  note: ") == []
    port.used = True
    assert lines(compare_wide(Model(), port, IDS), "  note: ") == [
        "emb.weight is one weight in PyTorch, and JAX trains emb.embedding and head.embedding apart"
    ]


@pytest.mark.usefixtures("verdict_alone")
def test_sixteen_bits_alone_are_held_to_float64_too() -> None:
    def norm(w: Any, x: Any) -> Any:
        y = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-3)
        return jax.nn.gelu(y * w["0.weight"] + w["0.bias"])

    report = compare(nn.Sequential(nn.LayerNorm(6), nn.GELU()), norm, X, dtypes=("bfloat16",))
    assert {m.dtype for m in report.failed} == {"float64"}


def test_a_norm_in_float32_stays_so_in_sixteen_bits() -> None:
    class Port(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return linen.LayerNorm(epsilon=1e-5, dtype=jnp.float32, name="norm")(linen.Dense(5, name="fc")(x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.norm = nn.Linear(6, 5), nn.LayerNorm(5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.fc(x))

    report = compare(Model(), Port(), X, dtypes=("bfloat16",))
    assert {m.mismatch for m in report.failed} == {"dtype float32 in JAX, bfloat16 in PyTorch"}
    assert not report, "a report is false where the two differ"


# Gradients


def test_an_infinity_leaves_out_its_own_gradient_alone_and_is_named() -> None:
    masks = (np.where(np.tri(4, 6), 0.0, -np.inf), RNG.normal(size=(4, 6)))

    def port(x: Any, masks: Any) -> Any:
        return jax.nn.softmax(x + masks[0] + jax.lax.stop_gradient(masks[1]), -1)

    report = compare_wide(lambda x, masks: (x + masks[0] + masks[1]).softmax(-1), port, (X, masks))
    assert [m.tensor for m in report.failed] == ["gradient of masks.1"]
    assert lines(report, "  note: ") == ["no gradient of masks.0 is compared, which is not finite everywhere"]


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


@pytest.mark.usefixtures("verdict_alone")
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

    for seed in (20, 25):
        x = np.random.default_rng(seed).normal(size=(8, 6))
        report = compare_wide(Normed(), port, x, name=f"s{seed}")
        assert report.agrees, report


def test_the_part_of_a_gradient_that_is_rounding_is_judged_by_itself() -> None:
    """The key's bias changes no weight of attention. PyTorch's is a third of a packed bias."""
    x = np.random.default_rng(5).normal(size=(2, 7, 12))
    attention = nn.MultiheadAttention(12, 3, batch_first=True)
    port = nnx.MultiHeadAttention(num_heads=3, in_features=12, decode=False, rngs=nnx.Rngs(0))

    def call(module: nn.MultiheadAttention, x: torch.Tensor) -> torch.Tensor:
        return module(x, x, x, need_weights=False)[0]

    report = compare_wide(attention, port, x, torch_call=call, inside="float32", name="s5")
    assert report.agrees, report
    assert "jit" not in str(report)


@pytest.mark.usefixtures("verdict_alone")
def test_codes_may_fall_to_either_side_of_a_tie_below_float64() -> None:
    x = np.random.default_rng(0).normal(size=(300, 300))

    def codes(x: torch.Tensor) -> torch.Tensor:
        return (x / 1e-4).round().long()

    def port(x: Any, shift: int = 0) -> Any:
        return jnp.round(x * 1e4).astype(jnp.int32) + shift

    assert compare(codes, port, x, gradients=False).agrees
    report = compare(codes, partial(port, shift=1), x, gradients=False)
    assert {m.dtype for m in report.failed} == {"float64", "float32"}


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


@pytest.mark.usefixtures("verdict_alone")
def test_every_buffer_that_a_step_moves_is_compared() -> None:
    assert compare_wide(Moving(), NnxMoving(), X, buffers=True).agrees
    report = compare_wide(Moving(), NnxMoving(updates=False), X, buffers=True)
    assert [m.tensor for m in report.failed] == ["moving_mean after a step"]


@pytest.mark.usefixtures("verdict_alone")
def test_a_buffer_that_jax_alone_moves_differs() -> None:
    class Still(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("moving_mean", torch.zeros(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x - (x.mean(0) if self.training else self.moving_mean)

    assert compare_wide(Still(), NnxMoving(updates=False), X, buffers=True).agrees
    report = compare_wide(Still(), NnxMoving(), X, buffers=True)
    assert [m.tensor for m in report.failed] == ["moving_mean after a step"]


class LinenDropped(linen.Module):
    @linen.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = linen.Dropout(0.5, deterministic=not train)(linen.Dense(6)(x))
        return linen.BatchNorm(use_running_average=not train, momentum=0.9, epsilon=1e-5)(x)


class NnxDropped(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.fc, self.drop = nnx.Linear(6, 6, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        self.norm = nnx.BatchNorm(6, momentum=0.9, rngs=rngs)

    def __call__(self, x: Any, train: bool = False) -> Any:
        return self.norm(self.drop(self.fc(x), deterministic=not train), use_running_average=not train)


class EquinoxDropped(eqx.Module):
    fc: eqx.nn.Linear
    drop: eqx.nn.Dropout
    norm: eqx.nn.BatchNorm

    def __init__(self) -> None:
        self.fc, self.drop = eqx.nn.Linear(6, 6, key=jax.random.key(0)), eqx.nn.Dropout(0.5)
        self.norm = eqx.nn.BatchNorm(6, "batch", momentum=0.9, mode="batch")

    def __call__(self, x: Any, state: Any) -> Any:
        return self.norm(self.drop(self.fc(x)), state)


def in_a_batch(given: Any, x: Any) -> Any:
    module, state = given
    return jax.vmap(module, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)


@pytest.mark.usefixtures("verdict_alone")
@pytest.mark.parametrize(
    ("port", "options"),
    [
        (LinenDropped, {}),
        (NnxDropped, {}),
        (lambda: eqx.nn.make_with_state(EquinoxDropped)(), {"jax_call": in_a_batch}),
    ],
    ids=["Linen", "NNX", "Equinox"],
)
def test_a_step_of_training_has_no_dropout_whatever_turns_it_on(port: Any, options: Any) -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.BatchNorm1d(6))
    report = compare_wide(module, port(), X, buffers=True, **options)
    assert [m.tensor for m in report.failed] == ["2.running_var after a step"]  # which JAX's libraries keep otherwise


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


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.zeros((0, 6)), "results have no numbers: choose inputs without an axis of length 0"),
        (({"x": X, "mode": "mean"},), r"input\.mode of the inputs is no array but str.*by torch_call and jax_call"),
    ],
)
def test_inputs_that_show_nothing_or_are_no_arrays_are_refused(inputs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare_wide(nn.Linear(6, 5), nnx.Linear(6, 5, rngs=nnx.Rngs(0)), inputs)


def test_the_refusal_of_a_function_says_what_it_gets() -> None:
    with pytest.raises(ValueError, match="A function gets the inputs alone: PyTorch has no weights"):
        compare_wide(nn.Softmax(-1), lambda w, x: jax.nn.softmax(x), X)


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


# Causes beside a part that both compute in float32


@pytest.mark.parametrize(
    ("activation", "cause"),
    [
        pytest.param(jax.nn.gelu, "gelu is GELU approximated by tanh in JAX, at ", id="known"),
        pytest.param(
            *(
                lambda h: jax.nn.gelu(jnp.where(h > 0.1, h, h**2), approximate=False),
                "none of the known mistakes; print ",
            ),
            id="unknown",
        ),
    ],
)
def test_rounding_to_float32_before_it_hides_no_cause(activation: Any, cause: str) -> None:
    class InTorch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.widen, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: Any) -> Any:
            x = nn.functional.layer_norm(self.widen(x).float(), (6,)).to(x.dtype)
            return self.out(nn.functional.gelu(x))

    class InJax(nnx.Module):
        def __init__(self) -> None:
            self.widen, self.out = (nnx.Linear(6, size, rngs=nnx.Rngs(size)) for size in (6, 3))

        def __call__(self, x: Any) -> Any:
            narrow = self.widen(x).astype(jnp.float32)
            mean, variance = narrow.mean(-1, keepdims=True), narrow.var(-1, keepdims=True)
            return self.out(activation(((narrow - mean) * jax.lax.rsqrt(variance + 1e-5)).astype(x.dtype)))

    report = compare(InTorch(), InJax(), X, inside="float32")
    (said,) = lines(report, "  cause: ")
    assert said.startswith(cause)
    assert "nn.functional.gelu(x)" in said
