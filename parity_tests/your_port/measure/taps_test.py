"""Calls are recorded whatever a submodule is given, and whatever transformation runs it."""

import enum
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

from parity_tests import compare, tap
from parity_tests.your_port.measure.taps import recording, tapped

X = np.random.default_rng(0).normal(size=(3, 4))
locate = partial(compare, gradients=False, dtypes=("float64",))
pytestmark = pytest.mark.usefixtures("place_alone")


class Mode(enum.Enum):
    DOUBLE = 2.0


@dataclass
class Config:
    table: Any
    mode: Mode = Mode.DOUBLE


GIVEN: dict[str, Any] = {
    "nothing": {},
    "a keyword that is None": {"scale": None},
    "a dataclass": {"scale": Config(None)},
    "a dict of mixed keys": {"scale": {0: {"b": 1, 2: None}, "a": [Mode.DOUBLE, abs]}},
    "a function": {"scale": abs},
}


class TorchInner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x: Any, scale: Any = 1.0) -> Any:
        return self.fc(x).tanh()


class TorchOuter(torch.nn.Module):
    def __init__(self, given: str = "nothing") -> None:
        super().__init__()
        self.inner, self.out, self.given = TorchInner(), torch.nn.Linear(4, 2), given

    def forward(self, x: Any) -> Any:
        return self.out(self.inner(x, **GIVEN[self.given]))


class NnxInner(nnx.Module):
    def __init__(self) -> None:
        self.fc = nnx.Linear(4, 4, rngs=nnx.Rngs(0))

    def __call__(self, x: Any, scale: Any = None) -> Any:
        return jnp.sin(self.fc(x))


class NnxOuter(nnx.Module):
    def __init__(self, given: str = "nothing") -> None:
        self.inner, self.out, self.given = NnxInner(), nnx.Linear(4, 2, rngs=nnx.Rngs(0)), given

    def __call__(self, x: Any) -> Any:
        return self.out(self.inner(x, **GIVEN[self.given]))


@pytest.mark.parametrize("given", GIVEN)
def test_a_submodule_may_be_given_anything(given: str) -> None:
    found = locate(TorchOuter(given), NnxOuter(given), (X,)).divergence
    assert found is not None
    assert (found.module, found.tensor) == ("inner", "inner")


class TorchIds(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = TorchTable()

    def forward(self, ids: Any) -> Any:
        return self.inner(ids, scale=None).tanh()


class TorchTable(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(5, 3)

    def forward(self, ids: Any, scale: Any) -> Any:
        return self.table(ids)


class NnxIds(nnx.Module):
    def __init__(self) -> None:
        self.table = nnx.Embed(5, 3, rngs=nnx.Rngs(0))

    def __call__(self, ids: Any) -> Any:
        return jnp.sin(self.table(ids))


def test_a_submodule_may_be_given_ids_and_keywords_alone() -> None:
    found = locate(TorchIds(), NnxIds(), (np.arange(4),)).divergence
    assert found is not None
    assert (found.module, found.tensor, found.agreed) == ("", "result", ("inner.table",))


def noisy(weights: Any, x: Any) -> Any:
    keys = jax.random.split(jax.random.key(0), 3)
    noise = jax.vmap(lambda key: jax.random.normal(key, (4,), x.dtype))(keys)
    _, more = jax.lax.scan(lambda carry, key: (carry, jax.random.uniform(key, (4,), x.dtype)), 0.0, keys)
    y = jnp.sin(x @ weights["inner.fc.weight"].T + weights["inner.fc.bias"]) + 0 * (noise + more)
    return y @ weights["out.weight"].T + weights["out.bias"]


@pytest.mark.slow
def test_a_function_may_use_typed_keys() -> None:
    found = locate(TorchOuter(), noisy, (X,)).divergence
    assert found is not None
    assert (found.module, found.tensor) == ("inner", "result")


def with_a_tap(weights: Any, x: Any) -> Any:
    y = tap("input of out", jnp.sin(x @ weights["inner.fc.weight"].T + weights["inner.fc.bias"]))
    return y @ weights["out.weight"].T + weights["out.bias"]


def test_a_function_may_tap_what_a_submodule_of_pytorch_is_given() -> None:
    found = locate(TorchOuter(), with_a_tap, (X,)).divergence
    assert found is not None
    assert (found.module, found.tensor) == ("inner", "input of out")


class TorchRnn(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = torch.nn.RNN(4, 5, batch_first=True), torch.nn.Linear(5, 2)

    def forward(self, x: Any) -> Any:
        return self.fc(self.rnn(x)[0])


class NnxRnn(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.rnn = nnx.RNN(nnx.SimpleCell(4, 5, activation_fn=jnp.sin, rngs=rngs), rngs=rngs)
        self.fc = nnx.Linear(5, 2, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.fc(self.rnn(x))


def test_a_recurrent_layer_of_nnx_is_named() -> None:
    names = {"dense_i.bias": "rnn.bias_ih_l0 + rnn.bias_hh_l0"}
    found = locate(TorchRnn(), NnxRnn(), (X[:, None] * np.ones((3, 2, 4)),), names=names).divergence
    assert found is not None
    assert (found.module, found.tensor) == ("rnn", "rnn.0")


TRANSFORMATIONS: dict[str, Any] = {
    "nnx.vmap": lambda inner, x: nnx.vmap(lambda m, x: m(x), in_axes=(None, 0))(inner, x),
    "nnx.remat": lambda inner, x: nnx.remat(lambda m, x: m(x))(inner, x),
    "nnx.jit": lambda inner, x: nnx.jit(lambda m, x: m(x))(inner, x),
    "nnx.scan": lambda inner, x: nnx.scan(lambda m, x: m(x), in_axes=(None, 0), out_axes=0)(inner, x),
    "jax.checkpoint": lambda inner, x: jax.checkpoint(inner)(x),
    "while_loop": lambda inner, x: jax.lax.while_loop(lambda s: s[0] < 1, lambda s: (s[0] + 1, inner(s[1])), (0, x))[1],
    "cond": lambda inner, x: jax.lax.cond(x.sum() > -99, inner, lambda x: x, x),
    "fori_loop": lambda inner, x: jax.lax.fori_loop(0, 1, lambda i, x: inner(x), x),
}


QUICK = ("nnx.vmap", "nnx.scan", "jax.checkpoint", "while_loop", "cond")
"""The others are among the slow tests, since each does what one of these does."""


@pytest.mark.parametrize(
    "transformation", [pytest.param(x, marks=[] if x in QUICK else [pytest.mark.slow]) for x in TRANSFORMATIONS]
)
def test_submodules_of_nnx_keep_their_paths_in_transformations(transformation: str) -> None:
    class Port(NnxOuter):
        def __call__(self, x: Any) -> Any:
            return self.out(TRANSFORMATIONS[transformation](self.inner, x))

    found = locate(TorchOuter(), Port(), (X,)).divergence
    assert found is not None
    assert (found.module, found.tensor.partition("[")[0]) == ("inner", "inner")


class EqxInner(eqx.Module):
    one: eqx.nn.Linear
    two: eqx.nn.Linear

    def __call__(self, x: Any) -> Any:
        return self.two(self.one(x))


class EqxOuter(eqx.Module):
    layers: list[EqxInner]
    run: Any = eqx.field(static=True)

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = self.run(layer, x)
        return x


def stacked(layers: Any, x: Any) -> Any:
    arrays, static = eqx.partition(layers, eqx.is_array)
    return jax.lax.scan(lambda x, layer: (jax.vmap(eqx.combine(layer, static))(x), None), x, arrays)[0]


def test_copies_of_equinox_modules_keep_their_paths_and_the_model_is_left_as_it_was() -> None:
    make = partial(eqx.nn.Linear, 4, 4)
    keys = jax.random.split(jax.random.key(0), 4)
    inner = [EqxInner(make(key=keys[i]), make(key=keys[i + 1])) for i in (0, 2)]
    names = ["one", "two", ""]
    for run in (lambda m, x: eqx.filter_vmap(m)(x), lambda m, x: jax.vmap(eqx.filter_jit(m))(x)):
        with recording() as trace, tapped(EqxOuter(inner, run)) as model:
            model(jnp.asarray(X))
        assert {x.inside[-1] for x in trace if x.inside} == {
            f"layers.{i}.{name}".rstrip(".") for i in (0, 1) for name in names
        }
        assert {type(layer) for layer in model.layers} == {EqxInner}
    both = eqx.filter_vmap(lambda key: EqxInner(make(key=key), make(key=key)))(keys[:2])
    with recording() as trace, tapped({"layers": both}) as model:
        stacked(model["layers"], jnp.asarray(X))
    results = [x.name for x in trace if not x.is_input]
    assert sorted(results) == sorted(["layers", "layers.one", "layers.two"] * 2)


class LinenNarrow(nn.Module):
    """Returns float32 from a submodule, which is meant, and has a mistake after it."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        y = LinenRounded(name="fc")(x)
        return nn.Dense(2, name="out")(jnp.sin(y).astype(x.dtype))


class LinenRounded(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        kernel = self.param("kernel", nn.initializers.ones, (4, 4))
        return (x @ kernel + self.param("bias", nn.initializers.ones, (4,))).astype("float32")


def test_where_float32_is_meant_inside_its_dtype_is_no_difference() -> None:
    found = locate(TorchTwo(), LinenNarrow(), (X,), inside="float32").divergence
    assert found is not None
    assert (found.module, found.tensor, found.agreed) == ("", "input of out", ("fc",))


class LinenOuter(nn.Module):
    """Taps what its submodule returns, under the submodule's name."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        y = tap("fc", nn.Dense(4, name="fc")(x))
        return nn.Dense(2, name="out")(jnp.tanh(y) + 1)


class TorchTwo(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.out(self.fc(x).tanh())


class LinenTapped(nn.Module):
    """Is wrong in a submodule that taps its own result."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(2, name="out")(jnp.tanh(LinenFc(name="fc")(x)))


class LinenFc(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        kernel = self.param("kernel", nn.initializers.ones, (4, 4))
        bias = self.param("bias", nn.initializers.ones, (4,))
        return tap("fc", x @ kernel + bias) * 1.03


@pytest.mark.parametrize(
    ("port", "expected"), [(LinenOuter, ("", "input of out", "fc")), (LinenTapped, ("fc", "fc", None))]
)
def test_an_own_tap_beside_the_record_of_a_submodule_changes_nothing(port: Any, expected: Any) -> None:
    found = locate(TorchTwo(), port(), (X,)).divergence
    assert found is not None
    assert (found.module, found.tensor, found.agreed[-1] if found.agreed else None) == expected
