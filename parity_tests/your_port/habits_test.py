"""Programs in the ways in which people write them: a right port agrees, a wrong one differs, and advice works."""

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
import torch.nn.functional as F  # noqa: N812
from flax import nnx
from torch.utils.checkpoint import checkpoint

from parity_tests import compare

pytestmark = pytest.mark.slow
RNG = np.random.default_rng(0)
X, ROWS = RNG.normal(size=(3, 4)), RNG.normal(size=(2, 3, 4))
ANGLES = np.outer(np.arange(3), [1.0, 0.5])
COS, SIN = np.cos(ANGLES), np.sin(ANGLES)
compare_wide = partial(compare, dtypes=("float64",))


class Module(torch.nn.Module):
    """A layer, other parts by name, and what is computed with them."""

    def __init__(self, compute: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.fc, self.compute = torch.nn.Linear(4, 4), compute
        for name, part in parts.items():
            if name.startswith("table"):
                self.register_buffer(name, part, persistent=not part.is_complex())
            else:
                setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.compute(self, *args, **kwargs)


def dense(w: Any, x: Any, name: str = "fc") -> Any:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def one() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(4))


# PyTorch's side


def rotated(m: Any, x: Any) -> Any:
    z = torch.view_as_complex(m.fc(x).reshape(3, 2, 2))
    return torch.view_as_real(z * m.table).flatten(1)


def rotated_in_jax(sign: int, w: Any, x: Any) -> Any:
    a, b = jnp.moveaxis(dense(w, x).reshape(3, 2, 2), -1, 0)
    return jnp.stack([a * COS - sign * b * SIN, sign * a * SIN + b * COS], -1).reshape(3, 4)


def hooked() -> torch.nn.Module:
    module = Module(lambda m, x: torch.tanh(m.fc(x)), gain=one())
    module.fc.register_forward_hook(lambda part, given, result: result * module.gain)
    return module


def with_a_lambda() -> torch.nn.Module:
    module = Module(lambda m, x: m.act(m.fc(x)), gain=one())
    module.act = lambda x: torch.tanh(x * module.gain)
    return module


def keeping() -> torch.nn.Module:
    def compute(m: Any, x: Any) -> Any:
        m.last = F.softmax(m.fc(x), -1)
        return m.last

    module = Module(compute)
    module(torch.ones(1, 4))
    return module


def shared() -> torch.nn.Module:
    norm = torch.nn.BatchNorm1d(4)
    return Module(lambda m, x: m.b(torch.tanh(m.a(m.fc(x)))), a=norm, b=norm)


def norm(w: Any, x: Any) -> Any:
    return (x - w["a.running_mean"]) / jnp.sqrt(w["a.running_var"] + 1e-5) * w["a.weight"] + w["a.bias"]


def in_checkpoint(m: Any, x: Any, reentrant: bool) -> Any:
    return checkpoint(lambda x: torch.tanh(m.fc(x)) * torch.sin(torch.arange(1, 5) / 3), x, use_reentrant=reentrant)


def attention() -> torch.nn.Module:
    return torch.nn.MultiheadAttention(4, 2, batch_first=True, add_zero_attn=True, add_bias_kv=True)


def attended(extra: bool, w: Any, x: Any) -> Any:
    q, k, v = jnp.split(x @ w["a.in_proj_weight"].T + w["a.in_proj_bias"], 3, -1)
    if extra:
        k, v = (
            jnp.concatenate([y, jnp.broadcast_to(w[f"a.bias_{n}"], (2, 1, 4)), jnp.zeros((2, 1, 4))], 1)
            for y, n in ((k, "k"), (v, "v"))
        )
    q, k, v = (y.reshape(2, -1, 2, 2).swapaxes(1, 2) for y in (q, k, v))
    context = jax.nn.softmax(q @ k.mT / 2**0.5) @ v
    return dense(w, context.swapaxes(1, 2).reshape(2, 3, 4), "a.out_proj")


FEATURES: Any = {"feats": {"text": X, "image": X[:, :2]}}
MATRIX = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
BLUR = (torch.tensor([1.0, 2.0, 1.0]) / 4).expand(4, 1, 3)
HABITS: dict[str, tuple[Callable[[], Any], Any, Callable[..., Any], Callable[..., Any]]] = {
    "a complex table": (
        lambda: Module(rotated, table=torch.polar(torch.ones(3, 2).double(), torch.tensor(ANGLES))),
        X,
        partial(rotated_in_jax, 1),
        partial(rotated_in_jax, -1),
    ),
    "a dict in the order in which it is given": (
        lambda: Module(lambda m, feats: m.two(torch.cat(list(feats.values()), -1)), two=torch.nn.Linear(6, 3)),
        FEATURES,
        lambda w, feats: dense(w, jnp.concatenate([feats["text"], feats["image"]], -1), "two"),
        lambda w, feats: dense(w, jnp.concatenate([feats["image"], feats["text"]], -1), "two"),
    ),
    "a hook that knows the module": (
        hooked,
        X,
        lambda w, x: jnp.tanh(dense(w, x) * w["gain"]),
        lambda w, x: jnp.tanh(dense(w, x)) * w["gain"],
    ),
    "a lambda that knows the module": (
        with_a_lambda,
        X,
        lambda w, x: jnp.tanh(dense(w, x) * w["gain"]),
        lambda w, x: jnp.tanh(dense(w, x)) * w["gain"],
    ),
    "weight_norm": (
        lambda: torch.nn.utils.weight_norm(torch.nn.Linear(4, 3)),
        X,
        lambda w, x: (
            x @ (w["weight_v"] * w["weight_g"] / jnp.linalg.norm(w["weight_v"], axis=1)[:, None]).T + w["bias"]
        ),
        lambda w, x: x @ (w["weight_v"] * w["weight_g"]).T + w["bias"],
    ),
    "what was computed before is kept": (
        keeping,
        X,
        lambda w, x: jax.nn.softmax(dense(w, x)),
        lambda w, x: jax.nn.sigmoid(dense(w, x)),
    ),
    "a submodule with buffers under two names": (
        shared,
        X,
        lambda w, x: norm(w, jnp.tanh(norm(w, dense(w, x)))),
        lambda w, x: norm(w, jnp.tanh(dense(w, x))),
    ),
    "an input with the name of a weight": (
        lambda: Module(lambda m, x, bias: m.fc(x) + m.bias + bias, bias=one()),
        (X, X[0]),
        lambda w, x, bias: dense(w, x) + w["bias"] + bias,
        lambda w, x, bias: dense(w, x) + jax.lax.stop_gradient(w["bias"]) + bias,
    ),
    "a tensor that is an attribute": (
        lambda: Module(lambda m, x: m.fc(m.matrix @ x), matrix=MATRIX),
        X,
        lambda w, x: dense(w, jnp.asarray(MATRIX.numpy(), x.dtype) @ x),
        lambda w, x: dense(w, jnp.asarray(MATRIX.numpy(), x.dtype).T @ x),
    ),
    **{
        f"a checkpoint, reentrant {reentrant}": (
            partial(Module, partial(in_checkpoint, reentrant=reentrant)),
            X,
            lambda w, x: jnp.tanh(dense(w, x)) * jnp.sin(jnp.arange(1, 5) / 3),
            lambda w, x: jnp.tanh(dense(w, x)) * jnp.sin(jnp.arange(4) / 3),
        )
        for reentrant in (False, True)
    },
    "torch.vmap": (
        lambda: Module(lambda m, x: torch.vmap(lambda row: F.softmax(m.fc(row), -1))(x)),
        X,
        lambda w, x: jax.nn.softmax(dense(w, x)),
        lambda w, x: jax.nn.sigmoid(dense(w, x)),
    ),
    "a whole number that is a parameter": (
        lambda: Module(lambda m, x: m.fc(x) * m.k, k=torch.nn.Parameter(torch.tensor(3), requires_grad=False)),
        X,
        lambda w, x: dense(w, x) * 3,
        lambda w, x: dense(w, x) * 2,
    ),
    "a buffer made by expand": (
        lambda: Module(lambda m, x: F.conv1d(m.fc(x)[..., None].expand(-1, -1, 5), m.table, groups=4), table=BLUR),
        X,
        lambda w, x: jnp.repeat(dense(w, x)[..., None], 3, -1),
        lambda w, x: jnp.repeat(dense(w, x)[..., None], 3, -1) * 0.75,
    ),
    "a bias of one number": (
        lambda: Module(lambda m, x: m.fc(x) @ m.fc(x).T + m.bias, bias=torch.nn.Parameter(torch.tensor(-1.0))),
        X,
        lambda w, x: dense(w, x) @ dense(w, x).T + w["bias"],
        lambda w, x: dense(w, x) @ dense(w, x).T * 1.5 + w["bias"],
    ),
    "a function that Equinox compiles": (
        lambda: Module(lambda m, x: torch.tanh(m.fc(x))),
        X,
        eqx.filter_jit(lambda w, x: jnp.tanh(dense(w, x))),
        eqx.filter_jit(lambda w, x: dense(w, x)),
    ),
    "attention with a key more": (
        lambda: Module(lambda m, x: m.a(x, x, x, need_weights=False)[0], a=attention()),
        ROWS,
        partial(attended, True),
        partial(attended, False),
    ),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.usefixtures("verdict_alone")
@pytest.mark.parametrize("name", HABITS)
def test_a_right_port_agrees_and_a_wrong_one_does_not(name: str) -> None:
    module, inputs, right, wrong = HABITS[name]
    report = compare_wide(module(), right, inputs)
    assert report.agrees, report
    assert not compare_wide(module(), wrong, inputs)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("torch.vmap", "softmax is a sigmoid in JAX"),
        ("a dict in the order in which it is given", "the 2 parts are put together in the order 1, 0 in JAX"),
        ("attention with a key more", "cause: none of the known mistakes"),
        ("a bias of one number", "cause: none of the known mistakes"),
    ],
)
def test_the_search_goes_through_them(name: str, words: str) -> None:
    module, inputs, _, wrong = HABITS[name]
    assert words in str(compare_wide(module(), wrong, inputs))


def test_after_a_write_in_place_the_line_that_writes_is_named() -> None:
    def compute(m: Any, x: Any) -> Any:
        y = m.fc(x)
        y[:, :2].mul_(2)
        return torch.tanh(y)

    report = compare_wide(Module(compute), lambda w, x: jnp.tanh(dense(w, x).at[:, :2].multiply(1.7)), X)
    line = f"habits_test.py:{compute.__code__.co_firstlineno + 2}: y[:, :2]"
    assert f"print what goes into {line}" in str(report), report


# JAX's side


class Layers(torch.nn.Module):
    """Two layers, each with a norm."""

    def __init__(self) -> None:
        super().__init__()
        parts = ((torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)) for _ in range(2))
        self.layers = torch.nn.ModuleList(torch.nn.ModuleDict({"lin": lin, "bn": bn}) for lin, bn in parts)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.tanh(layer["bn"](layer["lin"](x)))
        return x


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        y = nn.Dense(4, name="lin")(x)
        return nn.tanh(nn.BatchNorm(not train, momentum=0.9, epsilon=1e-5, name="bn")(y)), None


class Scanned(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        axes = {"variable_axes": {"params": 0, "batch_stats": 0}, "split_rngs": {"params": True}}
        return nn.scan(Layer, length=2, in_axes=nn.broadcast, **axes)(name="layers")(x, train)[0]


def test_running_statistics_of_a_scanned_stack_find_their_places() -> None:
    variables = Scanned().init(jax.random.key(0), X)
    report = compare_wide(Layers(), Scanned(), X, variables=variables)
    assert report.agrees, report
    trained = compare_wide(Layers(), Scanned(), X, variables=variables, buffers=True)
    assert "the running variance is that of n, not of n − 1" in str(trained)


class ByHand(eqx.Module):
    weight: jax.Array
    bias: jax.Array

    def __call__(self, x: Any) -> Any:
        return jnp.tanh(x @ self.weight + self.bias)


def test_square_weights_of_ones_own_in_equinox_may_be_transposed() -> None:
    torch_module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    report = compare_wide(torch_module, ByHand(jnp.ones((4, 4)), jnp.ones(4)), X)
    assert report.agrees, report
    pair = {"0": nnx.Linear(4, 4, rngs=nnx.Rngs(0))}
    report = compare_wide(torch_module, pair, X, jax_call=lambda m, x: nnx.tanh(m["0"](x)))
    assert report.agrees, report


class Rotated(nnx.Module):
    """Its table was made in float32, as NNX makes all."""

    def __init__(self) -> None:
        self.fc, self.table = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), nnx.Variable(jnp.asarray(COS[:, [0, 0, 1, 1]], "f"))

    def __call__(self, x: Any) -> Any:
        return self.fc(x) * self.table[...] / np.sqrt(6).astype(np.float32)


def test_a_table_or_a_constant_in_float32_is_said_and_may_be_meant() -> None:
    def compute(m: Any, x: Any) -> Any:
        return m.fc(x) * torch.tensor(COS[:, [0, 0, 1, 1]]) / 6**0.5

    report = compare_wide(Module(compute), Rotated(), X)
    assert "note: JAX has a table or a constant in float32 inside; with inside='float32' the two agree" in str(report)
    assert compare_wide(Module(compute), Rotated(), X, inside="float32").agrees


class Adapted(nn.Module):
    """The adapter stands in a collection of its own, so that it can be trained alone."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        a = self.variable("lora", "a", jnp.ones, (4, 2)).value
        return nn.Dense(4, name="fc")(x) + (x @ a).sum(-1, keepdims=True)


def test_a_variable_of_ones_own_kind_may_be_a_parameter() -> None:
    def module() -> torch.nn.Module:
        a = torch.nn.Parameter(torch.randn(4, 2))
        return Module(lambda m, x: m.fc(x) + (x @ m.a).sum(-1, keepdim=True), a=a)

    report = compare_wide(module(), Adapted(), X, variables=Adapted().init(jax.random.key(0), X))
    assert report.agrees, report
    assert "a is a parameter in PyTorch, and a is a buffer in JAX" in str(report)


class Boxed(nn.Module):
    """As in models for many devices, its kernel has names of axes; a field is a dict with keys of any kind."""

    width: int = 4
    sizes: Any = None

    def setup(self) -> None:
        init = nn.with_logical_partitioning(nn.initializers.lecun_normal(), ("embed", "mlp"))
        self.fc = nn.Dense(self.width, kernel_init=init)

    def __call__(self, x: Any) -> Any:
        return self.fc(x)


@pytest.mark.parametrize(
    "call",
    [lambda m, x: m(x), lambda m, x: m.fc(x), lambda m, x: m(x)[..., : m.width]],
    ids=["itself", "its submodule", "its field"],
)
def test_a_linen_module_is_called_as_its_users_do(call: Any) -> None:
    report = compare_wide(Module(lambda m, x: m.fc(x)), Boxed(sizes={1: 2, "a": 3}), X, jax_call=call)
    assert report.agrees, report


def test_a_pair_of_a_module_and_an_array_returns_two_results() -> None:
    def call(model: Any, x: Any) -> Any:
        module, first = model
        y = module(x) * first
        return y, y.sum(-1)

    def compute(m: Any, x: Any) -> Any:
        y = torch.tanh(m.fc(x)) * m.gain
        return y, y.sum(-1)

    port = ByHand(jnp.ones((4, 4)), jnp.ones(4)), jnp.ones(4)
    names = {"0": "fc", "1": "gain"}
    report = compare_wide(Module(compute, gain=one()), port, X, jax_call=call, names=names)
    assert report.agrees, report


def test_a_port_that_has_no_gradient_is_told_to_compare_its_results() -> None:
    def port(w: Any, x: Any) -> Any:
        return jax.lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, 2 * s[1]), (0, dense(w, x)))[1]

    module = Module(lambda m, x: 4 * m.fc(x))
    with pytest.raises(ValueError, match=r"cannot be run with its gradients in float64: .*gradients=False"):
        compare_wide(module, port, X)
    assert compare_wide(module, port, X, gradients=False)


def test_a_stack_that_is_given_the_input_of_the_model_is_explained() -> None:
    class Stack(eqx.Module):
        layers: eqx.nn.Linear

        def __call__(self, x: Any) -> Any:
            arrays, rest = eqx.partition(self.layers, eqx.is_array)
            return jax.lax.scan(lambda x, w: (x + jax.nn.relu(eqx.combine(w, rest)(x)), None), x, arrays)[0]

    class Torch(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = x + torch.tanh(layer(x))
            return x

    stacked = eqx.filter_vmap(lambda key: eqx.nn.Linear(4, 4, key=key))(jax.random.split(jax.random.key(0), 2))
    report = compare_wide(Torch(), Stack(stacked), X, jax_call=lambda m, x: jax.vmap(m)(x))
    assert "cause: tanh is ReLU in JAX" in str(report)
    assert "(explains outputs and gradients on fresh draws)" in str(report)
