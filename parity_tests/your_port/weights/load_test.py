"""The user's own converter is run with positions, and what it does wrong is said."""

from collections.abc import Callable
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

from parity_tests import compare
from parity_tests.your_port.weights.positions import read_places

X, H = np.random.default_rng(0).normal(size=(3, 4)), np.random.default_rng(1).normal(size=(3, 5))
compare_wide = partial(compare, dtypes=("float64",))


class Torch(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 6), torch.nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh())


class Nnx(nnx.Module):
    def __init__(self) -> None:
        self.a, self.b = nnx.Linear(4, 6, rngs=nnx.Rngs(0)), nnx.Linear(6, 6, rngs=nnx.Rngs(0))

    def __call__(self, x: Any) -> Any:
        return self.b(jnp.tanh(self.a(x)))


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(6, name="b")(jnp.tanh(nn.Dense(6, name="a")(x)))


class Equinox(eqx.Module):
    a: eqx.nn.Linear
    b: eqx.nn.Linear

    def __init__(self) -> None:
        self.a, self.b = (eqx.nn.Linear(size, 6, key=jax.random.key(0)) for size in (4, 6))

    def __call__(self, x: Any) -> Any:
        return self.b(jnp.tanh(self.a(x)))


def tree(state: Any, **changes: Any) -> dict[str, dict[str, np.ndarray]]:
    """A converter in NumPy, and in float32 as most are."""
    found = {
        to: {"kernel": state[f"{name}.weight"].T, "bias": state[f"{name}.bias"]}
        for to, name in (("a", "first"), ("b", "second"))
    }
    for path, change in changes.items():
        layer, leaf = path.split("_")
        found[layer][leaf] = change(state)
    return {layer: {leaf: np.asarray(x, np.float32) for leaf, x in part.items()} for layer, part in found.items()}


def nnx_module(state: Any) -> Nnx:
    module = Nnx()
    for layer, name in ((module.a, "first"), (module.b, "second")):
        layer.kernel[...], layer.bias[...] = jnp.asarray(state[f"{name}.weight"].T), state[f"{name}.bias"]
    return module


def equinox_module(state: Any) -> Equinox:
    names = ("first.weight", "first.bias", "second.weight", "second.bias")
    where = lambda m: (m.a.weight, m.a.bias, m.b.weight, m.b.bias)  # noqa: E731
    return eqx.tree_at(where, Equinox(), tuple(jnp.asarray(state[name]) for name in names))


def function(weights: Any, x: Any) -> Any:
    hidden = jnp.tanh(x @ weights["a"]["kernel"] + weights["a"]["bias"])
    return hidden @ weights["b"]["kernel"] + weights["b"]["bias"]


@pytest.mark.parametrize(
    ("port", "load", "options"),
    [
        (Nnx, nnx_module, {}),
        (Nnx, lambda state: nnx.state(nnx_module(state)), {}),
        (Nnx, tree, {}),
        (Linen, tree, {}),
        (Linen, lambda state: {"params": tree(state)}, {}),
        (Equinox, equinox_module, {"jax_call": lambda module, x: jax.vmap(module)(x)}),
        (lambda: function, tree, {}),
        (lambda: function, lambda s: tree({n: torch.tensor(x).numpy() for n, x in s.items()}), {}),
    ],
    ids=["NNX module", "NNX state", "NNX dict", "Linen", "Linen variables", "Equinox", "function", "of tensors"],
)
def test_a_right_converter_of_each_kind(port: Callable[[], Any], load: Any, options: Any) -> None:
    report = compare_wide(Torch(), port(), X, load=load, **options)
    assert report.agrees, report
    kernel, transposed = ("weight", "as it is") if port is Equinox else ("kernel", "transposed")
    found = [" ".join(line.split()) for line in str(report.map).splitlines()]
    assert f"b.{kernel} [6, 6] second.weight {transposed}" in found
    assert not report.map.left_in_torch


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a scale": ({"b_kernel": lambda s: 0.5 * s["second.weight"].T}, "b.kernel is 0.5 times: second.weight"),
    "one twice": (
        {"b_bias": lambda s: s["first.bias"]},
        "first.bias is in a.bias and b.bias",
    ),
    "one forgotten": ({"b_bias": lambda s: np.zeros(6)}, "b.bias gets none of PyTorch's weights"),
    "two mixed": (
        {"b_bias": lambda s: s["first.bias"] - s["second.bias"]},
        "b.bias is -1 to 1 times: first.bias + second.bias",
    ),
    "one added": ({"a_bias": lambda s: s["first.bias"] + 1}, "a.bias is numbers moved, plus its own value: first.bias"),
}


@pytest.mark.usefixtures("verdict_alone")
@pytest.mark.parametrize(("changes", "remark"), WRONG.values(), ids=WRONG)
def test_what_a_wrong_converter_does_is_in_the_verdict(changes: Any, remark: str) -> None:
    report = compare_wide(Torch(), Linen(), X, load=partial(tree, **changes))
    assert not report.agrees
    (said,) = [line for line in str(report).splitlines() if line.startswith("  load: ")]
    assert said.removeprefix("  load: ").split("; ")[0] == remark


def test_a_kernel_that_is_not_transposed_is_found() -> None:
    report = compare_wide(Torch(), Linen(), X, load=partial(tree, b_kernel=lambda s: s["second.weight"]))
    cause = "second.weight is not transposed in JAX, or twice (explains outputs and gradients on fresh draws)"
    assert f"  cause: {cause}" in str(report).splitlines()


def test_a_number_that_is_lost_is_said() -> None:
    load = partial(tree, b_bias=lambda s: np.r_[s["second.bias"][:4], 0, 0])
    assert "left over in PyTorch: second.bias[2/3]" in str(compare_wide(Torch(), Linen(), X, load=load))


def test_the_sum_of_two_biases_is_read_and_their_gradients_agree() -> None:
    def load(state: Any) -> Any:
        b_ih, b_hh = (np.split(state[name], 3) for name in ("bias_ih", "bias_hh"))
        bias = np.concatenate([b_ih[0] + b_hh[0], b_ih[1] + b_hh[1], b_ih[2]])
        where = lambda cell: (cell.weight_ih, cell.weight_hh, cell.bias, cell.bias_n)  # noqa: E731
        cell = eqx.nn.GRUCell(4, 5, key=jax.random.key(0))
        return eqx.tree_at(where, cell, (state["weight_ih"], state["weight_hh"], bias, b_hh[2]))

    cell = eqx.nn.GRUCell(4, 5, key=jax.random.key(0))
    report = compare_wide(
        torch.nn.GRUCell(4, 5), cell, (X, H), load=load, jax_call=lambda cell, x, h: jax.vmap(cell)(x, h)
    )
    assert report.agrees, report
    assert "bias_ih + bias_hh" in str(report.map)


def test_a_converter_that_computes_is_run_by_jax_itself() -> None:
    """PyTorch keeps a logarithm, JAX the number itself."""

    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.log_scale = torch.nn.Parameter(torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.log_scale.exp()

    def port(weights: Any, x: Any) -> Any:
        return x * weights["scale"]

    report = compare_wide(Scale(), port, X, load=lambda state: {"scale": jnp.exp(state["log_scale"])})
    assert report.agrees, report
    assert not report.map.left_in_torch
    with pytest.raises(ValueError, match=r"load computes scale in another way than by moving.*jax\.numpy"):
        compare_wide(Scale(), port, X, load=lambda state: {"scale": np.exp(np.asarray(state["log_scale"]))})


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (lambda s: tree(s, b_bias=lambda s: s["bias"]), r"load raised KeyError: 'bias'\. It gets.*second.bias \[6\]"),
        (lambda s: tree(s, b_bias=lambda s: s["second.weight"]), r"other weights.*b.bias \[6, 6\] for \[6\]"),
        (lambda s: {"a": tree(s)["a"]}, r"returns other weights.*no b.kernel \[6, 6\]; no b.bias \[6\]"),
        (lambda s: (tree(s), 1), r"must return what the JAX module has: a.kernel; .*; it returned 0.a.bias; "),
        (lambda s: None, "load must return JAX's module or weights; it returned None"),
        (lambda s: {**tree(s), "c": X}, r"returns other weights.*c \[3, 4\], which it has not"),
        (
            lambda s: {**tree(s), "a": jax.eval_shape(lambda: tree(s)["a"])},
            r"a.kernel \[4, 6\] without numbers, since load does not fill it; a.bias \[6\] without numbers",
        ),
    ],
)
def test_a_converter_that_fails_says_how(load: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare_wide(Torch(), Linen(), X, load=load)


class Ordered(torch.nn.Module):
    """A state with whole numbers."""

    def __init__(self, order: tuple[int, ...] = (2, 0, 1)) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)
        self.register_buffer("order", torch.tensor(order))
        self.register_buffer("shown", torch.tensor([True, False, True]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)[self.order] * self.shown


class LinenOrdered(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        order = self.variable("constants", "order", lambda: jnp.zeros(3, int)).value
        shown = self.variable("constants", "shown", lambda: jnp.zeros(3, bool)).value
        return nn.Dense(3, name="fc")(x)[order] * shown


def ordered(state: Any) -> dict[str, Any]:
    params = {"fc": {"kernel": state["fc.weight"].T, "bias": state["fc.bias"]}}
    return {"params": params, "constants": {"order": state["order"], "shown": state["shown"]}}


def ordered_function(w: Any, x: Any) -> Any:
    return (x @ w["fc.weight"].T + w["fc.bias"])[w["order"]] * w["shown"]


@pytest.mark.parametrize(
    ("port", "load"),
    [(LinenOrdered, ordered), (lambda: ordered_function, None), (lambda: ordered_function, dict)],
    ids=["Linen", "function", "function with load"],
)
@pytest.mark.usefixtures("verdict_alone")
def test_whole_numbers_of_the_state_go_into_the_port(port: Callable[[], Any], load: Any) -> None:
    report = compare_wide(Ordered(), port(), X, load=load)
    assert report.agrees, report
    given = Ordered((1, 2, 0)).state_dict()
    assert compare_wide(Ordered(), port(), X, load=load, weights=given).agrees
    wrong = {"load": lambda state: load({**state, "order": np.arange(3)})} if load else {"jax_call": unordered}
    assert not compare_wide(Ordered(), port(), X, **wrong)


def unordered(function: Any, w: Any, x: Any) -> Any:
    return function({**w, "order": jnp.arange(3)}, x)


def test_places_are_read_in_bfloat16_and_of_tied_weights() -> None:
    def load(arrays: Any) -> dict[str, Any]:
        return {"x": jnp.asarray(arrays["w"][:, ::-1].T, jnp.bfloat16), "y": arrays["tied"], "n": np.arange(3)}

    found = read_places(load, {"w": (300, 400), "tied": (300, 400)}, {"w": "w", "tied": "w"})
    assert found.keys() == {"x", "y"}
    term = found["x"].terms["w"]
    np.testing.assert_array_equal(term.places, np.arange(120_000).reshape(300, 400)[:, ::-1].T)
    assert found["y"].terms.keys() == {"w"}
    assert (term.scales == 1).all()
