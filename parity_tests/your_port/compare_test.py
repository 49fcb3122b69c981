"""One call compares any kind of port: right ones agree, wrong ones say where, and bad input says what to do."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from parity_tests import Case, Variant, compare, compare_case, torch_module
from parity_tests.this_library.sides import linen_module

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4))
compare_wide = partial(compare, dtypes=("float64",))
compare_outputs = partial(compare_wide, gradients=False)


class Torch(torch.nn.Module):
    """A layer, a norm and a square layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.norm, self.fc2 = torch.nn.Linear(4, 6), torch.nn.LayerNorm(6), torch.nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.norm(self.fc1(x)).tanh())


class Nnx(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.fc1, self.fc2 = nnx.Linear(4, 6, rngs=rngs), nnx.Linear(6, 6, rngs=rngs, dtype=jnp.float32)
        self.norm = nnx.LayerNorm(6, epsilon=1e-5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.fc2(jnp.tanh(self.norm(self.fc1(x))))


class Linen(nn.Module):
    """Its layers get names of their own, and one asks for float32."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(6, dtype=jnp.float32)(jnp.tanh(nn.LayerNorm(epsilon=1e-5)(nn.Dense(6)(x))))


class Equinox(eqx.Module):
    fc1: eqx.nn.Linear
    norm: eqx.nn.LayerNorm
    fc2: eqx.nn.Linear

    def __call__(self, x: Any) -> Any:
        return self.fc2(jnp.tanh(self.norm(self.fc1(x))))


def normed(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def with_torch_names(weights: Any, x: Any) -> Any:
    hidden = normed(x @ weights["fc1.weight"].T + weights["fc1.bias"]) * weights["norm.weight"] + weights["norm.bias"]
    return jnp.tanh(hidden) @ weights["fc2.weight"].T + weights["fc2.bias"]


def with_own_names(weights: Any, x: Any) -> Any:
    """Only a trial shows that the square matrix is not transposed."""
    hidden = normed(x @ weights["fc1"]["first"] + weights["fc1"]["b"]) * weights["norm"]["g"] + weights["norm"]["b"]
    return jnp.tanh(hidden) @ weights["fc2"]["second"].T + weights["fc2"]["b"]


def equinox() -> Equinox:
    keys = jax.random.split(jax.random.key(0))
    return Equinox(eqx.nn.Linear(4, 6, key=keys[0]), eqx.nn.LayerNorm(6), eqx.nn.Linear(6, 6, key=keys[1]))


OWN = {
    "fc1": {"first": np.zeros((4, 6)), "b": np.zeros(6)},
    "norm": {"g": np.zeros(6), "b": np.zeros(6)},
    "fc2": {"second": np.zeros((6, 6)), "b": np.zeros(6)},
}


@pytest.mark.parametrize(
    ("port", "options"),
    [
        (Nnx, {}),
        (Linen, {}),
        (equinox, {"jax_call": lambda module, x: jax.vmap(module)(x)}),
        (lambda: with_torch_names, {}),
        (lambda: with_own_names, {"variables": OWN}),
    ],
    ids=["NNX", "Linen", "Equinox", "function", "function with its own structure"],
)
def test_a_right_port_of_any_kind_agrees(port: Callable[[], Any], options: Any) -> None:
    report = compare_wide(Torch(), port(), X, **options)
    assert report.agrees, report
    assert len(report.measurements) == 8
    assert len(report.map.entries) == 6
    assert ("agrees when tried" in str(report.map)) == ("variables" in options)


@pytest.mark.skipif(nnx.GRUCell(1, 1, rngs=nnx.Rngs(0)).dense_h.bias is not None, reason="this version has the bias")
def test_the_bias_that_a_gru_cell_lacks_is_the_verdict_in_ten_lines() -> None:
    h = RNG.normal(size=(3, 5))
    cell = nnx.GRUCell(4, 5, rngs=nnx.Rngs(0))
    report = compare_wide(torch.nn.GRUCell(4, 5), cell, (X, h), jax_call=lambda cell, x, h: cell(h, x)[1])
    lines = str(report).splitlines()
    assert not report.agrees
    assert len(lines) <= 10
    assert lines[0] == "GRUCell DIFFERS in 7 of 7 tensors (1 output, 6 gradients; float64)"
    assert "  cause: bias_hh is missing in JAX (explains outputs and gradients on fresh draws)" in lines
    assert "gradient of hx" in report.table()


# Convolutions, statistics, padding, float32 inside


class TorchImage(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = torch.nn.Conv2d(2, 3, 3, padding=1), torch.nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bn1(self.conv1(x)).relu()


class NnxImage(nnx.Module):
    def __init__(self, hard_coded: bool = False) -> None:
        self.conv1 = nnx.Conv(2, 3, (3, 3), rngs=nnx.Rngs(0))
        self.bn1 = nnx.BatchNorm(3, momentum=0.9, epsilon=1e-5, rngs=nnx.Rngs(0))
        self.hard_coded = hard_coded

    def __call__(self, x: Any) -> Any:
        x = self.conv1(x)
        if self.hard_coded:
            return nnx.relu(x / (1 + 1e-5) ** 0.5 * self.bn1.scale[...] + self.bn1.bias[...])
        return nnx.relu(self.bn1(x))


IMAGES = RNG.normal(size=(2, 2, 4, 4))


@pytest.mark.usefixtures("verdict_alone")
def test_a_training_step_shows_the_variance_that_flax_keeps_otherwise() -> None:
    """The bias before the norm has a gradient of zero, but for rounding; statistics have none."""
    report = compare_wide(TorchImage(), NnxImage(), IMAGES, layout={"*": "NHWC"}, buffers=True)
    assert [m.tensor for m in report.failed] == ["bn1.running_var after a step"]


@pytest.mark.usefixtures("verdict_alone")
def test_statistics_are_drawn() -> None:
    report = compare_wide(TorchImage(), NnxImage(hard_coded=True), IMAGES, layout={"*": "NHWC"})
    assert "result" in [m.tensor for m in report.failed]


def test_the_row_of_the_padding_has_no_gradient_and_frozen_weights_none_either() -> None:
    class Embedding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = torch.nn.Embedding(5, 4, padding_idx=0)
            self.scale = torch.nn.Parameter(torch.ones(4), requires_grad=False)

        def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"hidden": self.emb(ids) * self.scale}

    @dataclass
    class Result:
        hidden: Any

    def port(weights: Any, ids: Any, keeps: bool) -> Any:
        rows = weights["emb.weight"]
        rows = rows.at[0].set(jax.lax.stop_gradient(rows[0])) if keeps else rows
        return Result(rows[ids] * weights["scale"])

    ids = np.array([[1, 0, 3, 0]])
    right = compare_wide(Embedding(), partial(port, keeps=True), ids)
    assert right.agrees, right
    assert [m.tensor for m in right.measurements] == ["gradient of emb.weight", "hidden"]
    wrong = compare_wide(Embedding(), partial(port, keeps=False), ids)
    assert [m.tensor for m in wrong.failed] == ["gradient of emb.weight"]


@pytest.mark.usefixtures("place_alone")
def test_a_softmax_in_float32_is_said_and_may_be_meant() -> None:
    def port(x: Any) -> Any:
        return jax.nn.softmax(x.astype(jnp.float32), -1).astype(x.dtype)

    softmax = partial(torch.softmax, dim=-1)
    strict = compare_wide(softmax, port, X)
    assert not strict.agrees
    assert strict.divergence is None
    place = f"compare_test.py:{port.__code__.co_firstlineno + 1}"
    assert f"  note: JAX casts to float32 inside, at {place}; with inside='float32' the two agree" in str(strict)
    assert compare_wide(softmax, port, X, inside="float32").agrees
    assert not compare_wide(softmax, lambda x: 1.00001 * port(x), X, inside="float32").agrees


@pytest.mark.usefixtures("place_alone")
@pytest.mark.parametrize(("scale", "agrees"), [(1.0, True), (1.1, False)])
def test_a_port_in_bfloat16_is_said(scale: float, agrees: bool) -> None:
    def port(x: Any) -> Any:
        return scale * jnp.tanh(x.astype(jnp.bfloat16))

    report = compare(torch.tanh, port, X)
    assert not report
    note = f"compare_test.py:{port.__code__.co_firstlineno + 1}; with dtypes=('bfloat16',) the two agree"
    assert (note in str(report)) == agrees, report
    assert compare(torch.tanh, port, X, dtypes=("bfloat16",)).agrees == agrees


# Weights that find their place by trying, and sums


class Own(torch.nn.Module):
    """A linear layer by hand, whose layout in JAX only a trial can show."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(outputs, inputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight.T).tanh()


def test_every_way_of_placing_five_square_kernels_is_tried() -> None:
    def port(weights: Any, x: Any) -> Any:
        for i, path in enumerate("abcde"):
            kernel = weights[path][f"kernel_{path}"]
            x = jnp.tanh(x @ (kernel if i != 4 else kernel.T))
        return x

    report = compare_outputs(
        torch.nn.Sequential(*(Own(4, 4) for _ in range(5))),
        port,
        X,
        variables={path: {f"kernel_{path}": np.zeros((4, 4))} for path in "abcde"},
        names={path: str(i) for i, path in enumerate("abcde")},
    )
    assert report.agrees, report
    assert str(report.map).count("transposed; agrees when tried") == 4


def test_modules_whose_names_mislead_are_tried_in_their_order() -> None:
    """The numbers in the names say that the layer of block 1 is the fourth of the five; it is the third."""

    class Block(nn.Module):
        depth: int

        @nn.compact
        def __call__(self, x: Any) -> Any:
            for i in range(self.depth):
                x = jnp.tanh(nn.Dense(4, name=f"layers_{i}")(x))
            return x

    class Port(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for i, depth in enumerate((2, 1, 2)):
                x = Block(depth, name=f"block_{i}")(x)
            return x

    layers = [layer for _ in range(5) for layer in (torch.nn.Linear(4, 4), torch.nn.Tanh())]
    report = compare_outputs(torch.nn.Sequential(*layers), Port(), X)
    assert report.agrees, report
    assert str(report.map.entries["block_1.layers_0.kernel"].source) == "4.weight"


def test_a_layout_that_only_gradients_show() -> None:
    """As in a low-rank adapter, the weight behind the open one is zero."""
    layers = torch.nn.Sequential(Own(4, 4), Own(4, 3))
    state = {"0.weight": torch.tensor(RNG.normal(size=(4, 4))), "1.weight": torch.zeros(3, 4)}

    def port(weights: Any, x: Any) -> Any:
        return jnp.tanh(jnp.tanh(x @ weights["first"]) @ weights["second"])

    variables = {"first": np.zeros((4, 4)), "second": np.zeros((4, 3))}
    report = compare_wide(layers, port, X, weights=state, variables=variables)
    assert report.agrees, report
    assert "first   [4, 4]  0.weight  transposed; agrees when tried" in str(report.map)


@pytest.mark.usefixtures("verdict_alone")
def test_a_square_kernel_goes_the_way_of_those_beside_it_where_none_agrees() -> None:
    class Port(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for i, size in enumerate((6, 6, 4)):
                x = jnp.tanh(nn.Dense(size, use_bias=False, name=f"layers_{i}")(x)) + 1e-4 * (i == 2)
            return x

    report = compare_wide(torch.nn.Sequential(Own(4, 6), Own(6, 6), Own(6, 4)), Port(), X)
    assert str(report).splitlines()[-1] == (
        "  weights: 3 placed, 1 guessed (none of 2 ways agrees), such as layers_1.kernel from 1.weight "
        "(print(report.map) shows how); for float64 its weights are cast and its dtype fields set"
    )
    assert "layers_1.kernel  [6, 6]  1.weight  transposed; guessed: none of 2 ways agrees" in str(report.map)
    assert max(m.error for m in report.measurements if not m.is_gradient) < 1e-3


QUICK = ("NNX optimized LSTM", "Equinox GRU", "Linen GRU")
"""The cells among the default tests."""


def cells() -> dict[str, tuple[Any, Any, Callable[..., Any]]]:
    rngs, key = nnx.Rngs(0), jax.random.key(0)

    def state_first(cell: Any, x: Any, h: Any, c: Any) -> Any:
        (c, h), _ = cell((c, h), x)
        return h, c

    def by_row(cell: Any, x: Any, h: Any, c: Any) -> Any:
        return jax.vmap(lambda x, h, c: cell(x, (h, c)))(x, h, c)

    def gru(cell: Any, x: Any, h: Any, c: Any) -> Any:
        return jax.vmap(cell)(x, h)

    def linen_gru(cell: Any, x: Any, h: Any, c: Any) -> Any:
        return cell(h, x)[1]

    lstm = torch.nn.LSTMCell
    return {
        "NNX LSTM": (lstm, nnx.LSTMCell(4, 5, rngs=rngs), state_first),
        "NNX optimized LSTM": (lstm, nnx.OptimizedLSTMCell(4, 5, rngs=rngs), state_first),
        "NNX simple": (torch.nn.RNNCell, nnx.SimpleCell(4, 5, rngs=rngs), linen_gru),
        "Equinox LSTM": (lstm, eqx.nn.LSTMCell(4, 5, key=key), by_row),
        "Equinox GRU": (torch.nn.GRUCell, eqx.nn.GRUCell(4, 5, key=key), gru),
        "Linen GRU": (torch.nn.GRUCell, nn.GRUCell(5), linen_gru),
    }


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in cells()]
)
def test_one_bias_for_two_is_their_sum(name: str) -> None:
    def call(cell: Any, x: Any, h: Any, c: Any) -> Any:
        return cell(x, (h, c)) if isinstance(cell, torch.nn.LSTMCell) else cell(x, h)

    in_torch, cell, jax_call = cells()[name]
    inputs = dict(zip("xhc", (X, RNG.normal(size=(3, 5)), RNG.normal(size=(3, 5))), strict=True))
    report = compare_wide(in_torch(4, 5), cell, inputs, torch_call=call, jax_call=jax_call)
    assert report.agrees, report
    assert "gradient of bias_ih" in [m.tensor for m in report.measurements]
    assert " + bias_" in str(report.map)


@pytest.mark.usefixtures("verdict_alone")
def test_names_that_leave_a_bias_out_are_followed_and_the_bias_is_said() -> None:
    cell = nnx.OptimizedLSTMCell(4, 5, rngs=nnx.Rngs(0))
    h, c = RNG.normal(size=(2, 3, 5))
    report = compare_wide(
        torch.nn.LSTMCell(4, 5),
        cell,
        (X, (h, c)),
        names={"dense_h.bias": "bias_hh"},
        jax_call=lambda cell, x, hx: cell((hx[1], hx[0]), x)[0][::-1],
    )
    assert "  left over in PyTorch: bias_ih; if JAX has it, give load= or names=" in str(report).splitlines()


# Axes, masks, keys, containers, wrappers


def test_inputs_and_results_may_have_another_order_of_axes() -> None:
    def port(weights: Any, x: Any) -> Any:
        return jnp.cumsum(x @ weights["weight"].T + weights["bias"], 1)

    class Time(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input).cumsum(0)

    x = RNG.normal(size=(5, 2, 4))
    assert compare_wide(Time(4, 3), port, x, layout={"input": (1, 0, 2), "result": (1, 0, 2)}).agrees
    with pytest.raises(ValueError, match=r"layout must name 3 axes for input; got \(1, 0\)"):
        compare_wide(Time(4, 3), port, x, layout={"input": (1, 0)})


class Picture(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Conv2d(3, 3, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


class PicturePort(nnx.Module):
    def __init__(self, activation: Any = nnx.relu) -> None:
        self.first, self.second = (nnx.Conv(3, 3, (3, 3), rngs=nnx.Rngs(0)) for _ in range(2))
        self.activation = activation

    def __call__(self, x: Any) -> Any:
        return self.second(self.activation(self.first(x)))


@pytest.mark.parametrize("size", [(3, 3), (4, 5)])
def test_channels_go_where_the_port_has_them(size: tuple[int, int]) -> None:
    x = RNG.normal(size=(2, 3, *size))
    assert compare_outputs(Picture(), PicturePort(), x).agrees

    class First(PicturePort):
        def __call__(self, x: Any) -> Any:
            return super().__call__(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)

    assert compare_outputs(Picture(), First(), x).agrees


@pytest.mark.usefixtures("verdict_alone")
def test_results_that_are_no_images_keep_their_axes() -> None:
    def attended(picture: Any, x: Any) -> Any:
        y = picture(x)
        rows = y.reshape(2, 3, 20).permute(0, 2, 1)
        return y, torch.softmax(rows[:, None] @ rows[:, None].mT, -1)

    def port(picture: Any, x: Any) -> Any:
        y = picture(x)
        rows = y.reshape(2, 20, 3)
        return y, jax.nn.softmax(rows[:, None] @ rows[:, None].mT)

    x = RNG.normal(size=(2, 3, 4, 5))
    report = compare_outputs(Picture(), PicturePort(), x, torch_call=attended, jax_call=port)
    assert report.agrees, report
    assert not compare_outputs(Picture(), PicturePort(nnx.tanh), x, torch_call=attended, jax_call=port)


@pytest.mark.usefixtures("verdict_alone")
def test_where_channels_fit_in_two_ways_and_neither_agrees_layout_is_needed() -> None:
    report = compare_outputs(Picture(), PicturePort(nnx.tanh), RNG.normal(size=(2, 3, 3, 3)))
    assert "channels fit first and last in JAX, and neither agrees: give layout=" in str(report)


def test_a_star_speaks_of_the_tensors_with_as_many_axes_and_not_of_weights() -> None:
    class Signal(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = torch.nn.Conv1d(3, 3, 3), torch.nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.conv(x), self.head(self.conv(x).mean(2))

    class Port(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            y = nn.Conv(3, (3,), padding="VALID", name="conv")(x)
            return y, nn.Dense(2, name="head")(y.mean(1))

    report = compare_outputs(Signal(), Port(), RNG.normal(size=(2, 3, 6)), layout={"*": (0, 2, 1)})
    assert report.agrees, report
    assert "conv.weight  channels last" in str(report.map)


def test_a_mask_of_the_smallest_number_fits_into_pytorch_s_own_tensors() -> None:
    def masked(x: torch.Tensor) -> torch.Tensor:
        hidden = torch.full((3, 4), torch.finfo(x.dtype).min).triu(1)
        return (x + hidden).softmax(-1)

    def port(x: Any) -> Any:
        return jax.nn.softmax(jnp.where(jnp.tri(3, 4), x, -jnp.inf), -1)

    assert compare_outputs(masked, port, X).agrees


def test_a_random_key_keeps_its_value_among_weights() -> None:
    def port(weights: Any, x: Any) -> Any:
        return x @ weights["kernel"] + weights["bias"] + 0 * jax.random.normal(weights["key"], (4,))

    variables = {"kernel": np.zeros((4, 4)), "bias": np.zeros(4), "key": jax.random.key(0)}
    assert compare_outputs(torch.nn.Linear(4, 4), port, X, variables=variables).agrees


def test_a_container_may_know_the_padding_of_its_embedding() -> None:
    class Container(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.padding_idx, self.emb = 0, torch.nn.Embedding(5, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.emb(ids)

    assert compare_outputs(Container(), lambda weights, ids: weights["emb.weight"][ids], np.array([[1, 2]])).agrees


def test_weight_norm_of_nnx_keeps_its_scales_or_gets_them_by_name() -> None:
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 5))
    port = nnx.WeightNorm(nnx.Linear(4, 5, rngs=nnx.Rngs(0)), feature_axes=1, epsilon=0, rngs=nnx.Rngs(0))
    names = {"scales": "parametrizations.weight.original0"}
    assert compare_outputs(layer, port, X, names=names).agrees


def test_a_pretrained_model_is_called_since_it_fills_in_what_its_module_needs() -> None:
    class Scaled(nn.Module):
        @nn.compact
        def __call__(self, x: Any, scale: Any) -> Any:
            return nn.Dense(3)(x) * scale

    class Pretrained:
        """As those of `transformers`."""

        def __init__(self) -> None:
            self.module = Scaled()
            self.params = self.module.init(jax.random.key(0), X, 1)["params"]

        def __call__(self, x: Any, scale: Any = None) -> Any:
            return self.module.apply({"params": self.params}, x, 1 if scale is None else scale)

    model = Pretrained()
    before = model.params
    assert compare_outputs(torch.nn.Sequential(torch.nn.Linear(4, 3)), model, X).agrees
    assert model.params is before


def test_a_complex_weight_of_jax_is_said_to_keep_its_numbers() -> None:
    class Spectral(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.re, self.im = (torch.nn.Parameter(torch.randn(3)) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.irfft(torch.fft.rfft(x) * torch.complex(self.re, self.im), n=4)

    class Port(nnx.Module):
        def __init__(self) -> None:
            self.w = nnx.Param(jnp.ones(3, complex))

        def __call__(self, x: Any) -> Any:
            return jnp.fft.irfft(jnp.fft.rfft(x) * self.w[...], n=4)

    report = compare_outputs(Spectral(), Port(), X)
    assert not report.agrees
    assert "note: w is complex in JAX: it keeps the port's own numbers" in str(report)


def test_a_result_that_is_no_tensor_is_named() -> None:
    def call(module: torch.nn.Linear, x: torch.Tensor) -> Any:
        return {"logits": module(x), "cache": object()}

    with pytest.raises(ValueError, match="PyTorch's cache is no tensor but object: leave it out by torch_call"):
        compare(torch.nn.Linear(4, 3), nnx.Linear(4, 3, rngs=nnx.Rngs(0)), X, torch_call=call)


def test_a_mask_of_narrow_numbers_is_no_cast_inside() -> None:
    def port(x: Any, mask: Any) -> Any:
        return jnp.where(mask.astype(jnp.float32) > 0, x, 1e-9)

    report = compare_wide(lambda x, mask: torch.where(mask, x, 0), port, (X, X > 0))
    assert not report.agrees
    assert "casts to float32" not in str(report)


class FrozenPositions(torch.nn.Module):
    def __init__(self, table: np.ndarray) -> None:
        super().__init__()
        self.linear, self.positions = torch.nn.Linear(4, 3), torch.nn.Embedding.from_pretrained(torch.tensor(table))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.positions(torch.arange(len(x)))


POSITIONS = np.sin(np.arange(len(X))[:, None] * np.arange(1, 4))


def test_a_frozen_table_keeps_its_numbers_beside_weights_that_train() -> None:
    layer = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    assert compare_wide(FrozenPositions(POSITIONS), layer, X, jax_call=lambda layer, x: layer(x) + POSITIONS).agrees


@pytest.mark.usefixtures("verdict_alone")
def test_a_table_made_in_float32_is_named_if_it_is_all_that_differs() -> None:
    def call(layer: Any, x: Any, flows: bool) -> Any:
        return layer(x if flows else jax.lax.stop_gradient(x)) + POSITIONS

    narrow, layer = FrozenPositions(POSITIONS.astype(np.float32)), nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    report = compare_wide(narrow, layer, X, jax_call=partial(call, flows=True))
    note = "note: PyTorch's positions.weight is a table made in float32; with inside='float32' the two agree"
    assert note in str(report)
    assert "note" not in str(compare_wide(narrow, layer, X, jax_call=partial(call, flows=False)))


class NarrowPositions(torch.nn.Module):
    """No state dict has its table."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("positions", torch.tensor(POSITIONS, dtype=torch.float32), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) + self.positions)[torch.tensor(ORDER)]


ORDER = np.array([2, 0, 1, 1])


@pytest.mark.usefixtures("verdict_alone")
def test_arrays_of_numpy_in_a_port_have_the_dtype_of_the_run() -> None:
    def port(weights: Any, x: Any, table: np.ndarray = POSITIONS) -> Any:
        return (x @ weights["linear.weight"].T + weights["linear.bias"] + table)[ORDER]

    weights = {"linear.weight": jnp.ones((3, 4)), "linear.bias": jnp.ones(3)}
    for _ in range(2):
        assert jax.jit(port)(weights, jnp.asarray(X, jnp.float32)).dtype == jnp.float32  # the caller's own run
        report = compare(NarrowPositions(), port, X)
        note = "note: PyTorch's positions is a table made in float32; with inside='float32' the two agree"
        assert note in str(report)
    narrow = POSITIONS.astype(np.float32)
    assert compare(NarrowPositions(), partial(port, table=narrow), X).agrees


@pytest.mark.usefixtures("place_alone")
@pytest.mark.parametrize(("activation", "runs"), [(jnp.tanh, 20), (jnp.sin, 22)])
def test_pytorch_runs_once_on_each_draw_of_numbers(activation: Any, runs: int) -> None:
    """Three runs check it, one of them is kept; one shows its rounding, 16 are draws in float32, two are recorded."""
    calls = 0

    def call(module: Any, x: Any) -> Any:
        nonlocal calls
        calls += 1
        return module(x).tanh()

    linear = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    compare(torch.nn.Linear(4, 3), linear, X, torch_call=call, jax_call=lambda module, x: activation(module(x)))
    assert calls == runs


def test_where_float32_decides_inside_of_float64_eight_draws_are_measured_and_their_median_counts() -> None:
    def weights_seen(**options: Any) -> set[float]:
        seen: set[float] = set()

        def call(module: Any, x: Any) -> Any:
            seen.add(round(module.weight.detach().double().sum().item(), 3))
            return module(x)

        linear = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
        assert compare_wide(torch.nn.Linear(4, 3), linear, X, torch_call=call, **options).agrees
        return seen

    assert len(weights_seen(inside="float32")) - len(weights_seen()) == 7


def test_a_search_that_fails_leaves_the_verdict_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise TypeError("no such thing\nas this")

    monkeypatch.setattr("parity_tests.your_port.compare.explain_difference", fail)
    report = compare_wide(torch.sin, jnp.cos, X)
    lines = str(report).splitlines()
    assert lines[0] == "sin DIFFERS in 2 of 2 tensors (1 output, 1 gradient; float64)"
    assert lines[2] == "  the search for the place failed: TypeError: no such thing; please report it"
    assert not report  # so that `assert compare(…)` fails


def test_a_report_is_true_where_the_two_agree() -> None:
    assert compare_wide(torch.sin, jnp.sin, X)


# Checkpoints, order, jit


def test_given_weights_are_used() -> None:
    layer = torch.nn.Linear(4, 4)
    port = nnx.Linear(4, 4, use_bias=False, rngs=nnx.Rngs(0))
    state = layer.state_dict() | {"bias": torch.zeros(4)}
    assert [m.tensor for m in compare_wide(layer, port, X, weights=state).failed] == ["gradient of bias"]


def test_results_are_compared_in_the_order_of_their_computation() -> None:
    def both(x: Any, wrong: float) -> Any:
        early = x * wrong
        return early.sum(), early

    report = compare_wide(partial(both, wrong=1.0), lambda x: both(x, 2.0), X)
    assert report.divergence is not None
    assert report.divergence.tensor == "1"


def test_without_gradients_what_pytorch_returns_as_it_is_has_none() -> None:
    report = compare_wide(torch.nn.Identity(), lambda x: x, X, gradients=False)
    assert [m.is_gradient for m in report.measurements] == [False], report


def test_what_jit_alone_makes_wrong_is_said() -> None:
    report = compare_wide(torch.sin, lambda x: jnp.sin(x) + isinstance(x, jax.core.Tracer) * 1.0, X, gradients=False)
    assert "jit: result is right only without jit" in str(report)


def test_a_linen_module_that_knows_no_dtype_runs_in_all() -> None:
    class OwnNames(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3, name="fc")(x)

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x)

    case = Case(
        "documented",
        (Variant("random", {"x": X}),),
        torch_module(lambda options, inputs: Layer()),
        linen_module(lambda options, dtype: OwnNames()),
    )
    assert not [m for m in compare_case(case, "float64") if m.failed]


class OrderInAVariable(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        order = self.variable("constants", "order", lambda: jnp.asarray(ORDER))
        return nn.Dense(3, name="linear")(x)[order.value]


def test_whole_numbers_of_a_linen_module_keep_their_values() -> None:
    def call(linear: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return linear(x)[torch.tensor(ORDER)]

    assert compare(torch.nn.Linear(4, 3), OrderInAVariable(), X, torch_call=call).agrees


class Flagged(nn.Module):
    """Its arguments are more than arrays: a tree with a None in it, a flag of training, and a word."""

    @nn.compact
    def __call__(self, given: Any, train: bool, reduction: str = "mean") -> Any:
        x = nn.Dense(3, name="linear")(given["x"] if given["mask"] is None else given["x"] * given["mask"])
        return getattr(x, reduction)(0) * (2 if train else 1)


class TorchFlagged(torch.nn.Module):
    """The same; its state holds more than tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, given: Any, train: bool, reduction: str = "mean") -> Any:
        x = self.linear(given["x"] if given["mask"] is None else given["x"] * given["mask"])
        return getattr(x, reduction)(0) * (2 if train else 1)

    def get_extra_state(self) -> Any:
        return {"version": 2}

    def set_extra_state(self, state: Any) -> None:
        assert state["version"] == 2


@pytest.mark.parametrize("given", [(True, "sum"), (False, "mean"), (False,)])
def test_arguments_may_be_more_than_arrays(given: tuple[Any, ...]) -> None:
    report = compare_wide(TorchFlagged(), Flagged(), ({"x": X, "mask": None}, *given))
    assert report.agrees, report


def test_a_linen_module_may_be_called_by_pytorch_s_path() -> None:
    class Dotted(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3, name="fc.1")(nn.Dense(4, name="fc.0")(x))

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x)

    report = compare_wide(Layers(), Dotted(), X)
    assert report.agrees, report
    assert "fc.1.kernel  [4, 3]  fc.1.weight  transposed" in str(report.map)


def test_a_dtype_of_equinox_that_is_not_static_is_no_weight_and_is_that_of_the_run() -> None:
    class Cast(eqx.Module):
        fc: eqx.nn.Linear
        dtype: type = jnp.float32

        def __call__(self, x: Any) -> Any:
            return jax.vmap(self.fc)(x.astype(self.dtype))

    report = compare_wide(torch.nn.Linear(4, 3), Cast(eqx.nn.Linear(4, 3, key=jax.random.key(0))), X)
    assert report.agrees, report


# Bad input


class Wrong(torch.nn.Module):
    """A layer with a function around it."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.call = torch.nn.Linear(4, 4), call

    def forward(self, x: torch.Tensor) -> Any:
        return self.call(self.layer, x)


def test_a_refusal_names_the_arguments_of_a_call() -> None:
    class Other(nn.Module):
        @nn.compact
        def __call__(self, y: Any) -> Any:
            return nn.Dense(3)(y)

    advice = r"unexpected keyword argument 'x'. If it needs other arguments, give jax_call=lambda module, x: …"
    with pytest.raises(ValueError, match=advice):
        compare(torch.nn.Linear(4, 3), Other(), {"x": X}, torch_call=lambda module, x: module(x))


@pytest.mark.parametrize("by_name", [False, True])
def test_the_remedy_for_an_input_that_changes_in_place_has_all_arguments(by_name: bool) -> None:
    class InPlace(torch.nn.Module):
        def forward(self, x: torch.Tensor, scale: torch.Tensor) -> Any:
            return x.relu_() * scale

    arrays = {"x": np.array([-1.0, 1.0]), "scale": np.array([2.0, 3.0])}
    call = r"module\(x=x.clone\(\), scale=scale\)" if by_name else r"module\(x.clone\(\), scale\)"
    with pytest.raises(ValueError, match=f"torch_call=lambda module, x, scale: {call}"):
        compare(InPlace(), lambda x, scale: x, arrays if by_name else tuple(arrays.values()))


def without_gradient(layer: Any, x: Any) -> Any:
    with torch.no_grad():
        return layer(x)


COMPILED = "compiled by torch.compile: give the module or function"
"""What `torch.compile` returns has the module as `_orig_mod`; to call it takes seconds of imports."""


def square(use_bias: bool = True) -> nnx.Linear:
    return nnx.Linear(4, 4, use_bias=use_bias, rngs=nnx.Rngs(0))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of what torch.compile imports
@pytest.mark.parametrize(
    ("module", "port", "options", "message"),
    [
        (lambda: Wrong(lambda layer, x: layer(x.relu_())), square, {}, r"changes its input x in place.*x\.clone\(\)"),
        (
            lambda: Wrong(lambda layer, x: layer(torch.nn.functional.dropout(x))),
            square,
            {},
            "not the same in two runs.*dropout.*to 0",
        ),
        (lambda: Wrong(lambda layer, x: (layer(x), x)), square, {}, "same structure: PyTorch returns 0 .*torch_call"),
        (lambda: Wrong(without_gradient), square, {}, "no result of PyTorch has a gradient path.*gradients=False"),
        (lambda: Wrong(lambda layer, x: layer(x).log()), square, {}, "result has NaN in .* of 12 places"),
        (
            lambda: torch.nn.Linear(4, 4, bias=False),
            square,
            {},
            r"1 of JAX's weights have no counterpart[^^]*bias \[4\][^^]*names=\{'bias': None\}",
        ),
        (lambda: torch.nn.Linear(4, 4), square, {"names": {"weight": "kernel"}}, "JAX's name stands on the left"),
        (
            lambda: torch.nn.Linear(4, 4),
            square,
            {"weights": {"w": X}},
            "state dict of the PyTorch module[^^]*Missing key",
        ),
        (lambda: torch.nn.Linear(4, 4), square, {"layout": {"kernel": "HW"}}, "layout must be one of"),
        (
            lambda: torch.nn.Linear(4, 4),
            square,
            {"jax_call": lambda m, x: m(x, 1, 2)},
            "cannot be run in float64.*jax_call",
        ),
        (lambda: torch.nn.Linear(5, 4), square, {}, "PyTorch's module cannot be run"),
        (lambda: torch.nn.Linear(4, 4, device="meta"), square, {}, r"on the device meta.*module\.to_empty"),
        pytest.param(lambda: torch.compile(torch.nn.Linear(4, 4)), square, {}, COMPILED, marks=pytest.mark.slow),
        pytest.param(lambda: torch.compile(torch.sin), square, {}, COMPILED, marks=pytest.mark.slow),
        (lambda: torch.nn.ModuleDict({"_orig_mod": torch.nn.Linear(4, 4)}), square, {}, COMPILED),
        (lambda: Wrong(lambda layer, x: {}), square, {}, "PyTorch returns no tensor: return the tensors"),
        (lambda: torch.nn.Linear(4, 4), square, {"bound": float("nan")}, "bound must be a relative error"),
        (lambda: torch.nn.Linear(4, 4), square, {"inside": "half"}, "inside must be"),
        (lambda: torch.nn.Linear(4, 4), square, {"dtypes": "float64"}, "dtypes must be some of"),
        (lambda: torch.sin, lambda: jnp.sin, {"buffers": True}, "a function has no buffers"),
        (
            lambda: torch.nn.Linear(4, 4).forward,
            lambda: jnp.sin,
            {},
            "If the function calls a module, give that instead",
        ),
        (lambda: torch.nn.Linear(4, 4), lambda: lambda x: jnp.sin(x), {}, "A function gets the weights first"),
    ],
)
def test_what_cannot_be_compared_says_what_to_do(module: Any, port: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare(module(), port(), X, **{"dtypes": ("float64",), **options})


def test_arguments_of_another_kind_are_refused() -> None:
    with pytest.raises(TypeError, match="load must be a function of PyTorch's weights; got dict"):
        compare(torch.nn.Linear(4, 4), square(), X, load={})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="names must be a dict of JAX's names -> PyTorch's; got list"):
        compare(torch.nn.Linear(4, 4), square(), X, names=[("kernel", "weight")])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="variables= is for a module of Linen or a function; Linear has weights"):
        compare(torch.nn.Linear(4, 4), square(), X, variables={})

    class Own(torch.nn.Linear):
        pass

    with pytest.raises(TypeError, match="torch_module comes first and jax_module second; got Linear first"):
        compare(square(), Own(4, 4), X)


def test_a_bias_of_heads_that_pytorch_lacks_gets_no_weight_of_its_size() -> None:
    class Port(nnx.Module):
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.key, self.norm = nnx.LinearGeneral(4, (2, 2), rngs=rngs), nnx.LayerNorm(4, epsilon=1e-5, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.key(self.norm(x)).reshape(x.shape)

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.key = torch.nn.LayerNorm(4), torch.nn.Linear(4, 4, bias=False)

        def forward(self, x: Any) -> Any:
            return self.key(self.norm(x))

    with pytest.raises(ValueError, match=r"(?s)names=\{'key.bias': None\}") as raised:
        compare_wide(Attention(), Port(), X)
    assert "layout=" not in str(raised.value)
    assert compare_wide(Attention(), Port(), X, names={"key.bias": None}).agrees


def test_a_port_that_runs_in_float32_alone_is_compared_in_it() -> None:
    class Three(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.dense(self.dense(self.dense(x)))

    def port(weights: Any, x: Any) -> Any:
        def step(_: Any, x: Any) -> Any:  # the result of a step must have the dtype of what comes in
            return (x @ weights["w"] + weights["b"]).astype(jnp.float32)

        return jax.lax.fori_loop(0, 3, step, x)

    variables = {"w": np.zeros((4, 4)), "b": np.zeros(4)}
    with pytest.raises(ValueError, match="cannot be run in float64"):
        compare(Three(), port, X, variables=variables)
    report = compare(Three(), port, X, variables=variables, dtypes=("float32",))
    assert report.agrees, report
    assert "transposed; agrees when tried" in str(report.map)


def test_a_weight_that_jax_has_no_place_for_is_the_cause() -> None:
    report = compare_wide(torch.nn.Linear(4, 4), square(use_bias=False), X)
    assert "  cause: bias is missing in JAX" in str(report)
    assert "has no place in JAX" in str(report.map)


def test_a_weight_that_pytorch_does_not_use_is_no_cause() -> None:
    class Idle(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.aux = torch.nn.Linear(4, 3), torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x)

    class Port(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3, name="fc")(jax.lax.stop_gradient(x))

    report = compare_wide(Idle(), Port(), X)
    assert "left over in PyTorch: aux.weight, aux.bias" in str(report)
    assert "aux.weight, aux.bias are missing" not in str(report)
    assert [m.tensor for m in report.failed] == ["gradient of x"]


class TwoLayers(torch.nn.Module):
    """Two layers, or one twice."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.a = torch.nn.Linear(4, 4)
        self.b = self.a if tied else torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.b(torch.tanh(self.a(x)))


def test_names_of_haiku_are_no_paths_of_each_other() -> None:
    """There a layer that `__init__` makes is called `net/~/linear`, and one that `__call__` makes `net/linear`."""
    names = {"net/~/linear": "a", "net/linear": "b"}
    variables = {key: {"w": np.zeros((4, 4)), "b": np.zeros(4)} for key in names}

    def port(weights: Any, x: Any) -> Any:
        for key in names:
            x = jnp.tanh(x) if key == "net/linear" else x
            x = x @ weights[key]["w"] + weights[key]["b"]
        return x

    def load(state: Any) -> Any:
        return {key: {"w": state[f"{of}.weight"].T, "b": state[f"{of}.bias"]} for key, of in names.items()}

    assert compare_wide(TwoLayers(tied=False), port, X, load=load).agrees
    report = compare_wide(TwoLayers(tied=False), port, X, variables=variables, names=names)
    assert report.agrees, report
    tied = compare_wide(TwoLayers(tied=True), port, X, variables=variables)
    assert "JAX trains net.linear.w and net.~.linear.w apart" in str(tied)


def test_two_arrays_of_one_name_are_refused() -> None:
    variables = {"dense.w": np.zeros((4, 3)), "dense": {"w": np.zeros(3)}}
    with pytest.raises(ValueError, match=r"two of JAX's arrays are called dense\.w: give one of them another name"):
        compare(torch.nn.Linear(4, 3), lambda w, x: x @ w["dense.w"] + w["dense"]["w"], X, variables=variables)
