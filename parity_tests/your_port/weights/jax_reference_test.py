"""A JAX module in PyTorch's place."""

import subprocess
import sys
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from parity_tests.your_port.compare import compare

X = np.random.default_rng(0).normal(size=(3, 5, 4))


class LinenModel(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        y = nn.BatchNorm(use_running_average=True, name="bn")(nn.Dense(8, name="up")(x))
        return nn.LayerNorm(name="norm")(nn.Dense(4, name="down")(nn.gelu(y)) + x)


class NnxModel(nnx.Module):
    def __init__(self, epsilon: float = 1e-6) -> None:
        rngs = nnx.Rngs(0)
        self.up, self.down = nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 4, rngs=rngs)
        self.bn, self.norm = nnx.BatchNorm(8, rngs=rngs), nnx.LayerNorm(4, epsilon=epsilon, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.norm(self.down(nnx.gelu(self.bn(self.up(x)))) + x)


def function(weights: Any, x: Any) -> Any:
    y = x @ weights["up.kernel"] + weights["up.bias"]
    y = (y - weights["bn.mean"]) / jnp.sqrt(weights["bn.var"] + 1e-5) * weights["bn.scale"] + weights["bn.bias"]
    y = jax.nn.gelu(y) @ weights["down.kernel"] + weights["down.bias"] + x
    y = (y - y.mean(-1, keepdims=True)) / jnp.sqrt(y.var(-1, keepdims=True) + 1e-6)
    return y * weights["norm.scale"] + weights["norm.bias"]


@pytest.mark.parametrize(
    ("port", "dtypes"),
    [
        pytest.param(NnxModel(), ("float64",), id="nnx"),
        pytest.param(LinenModel(), ("float64", "float32"), id="linen", marks=pytest.mark.slow),
        pytest.param(function, ("float64", "float32"), id="function", marks=pytest.mark.slow),
    ],
)
def test_a_linen_module_and_the_same_in_nnx_linen_or_a_function_agree(port: Any, dtypes: tuple[str, ...]) -> None:
    report = compare(LinenModel(), port, X, dtypes=dtypes)
    assert report.agrees, report
    assert str(report).startswith(f"LinenModel agrees (1 output, 9 gradients; {' and '.join(dtypes)})")


def test_another_epsilon_is_seen_and_located() -> None:
    report = compare(LinenModel(), NnxModel(1e-5), X, dtypes=("float64",))
    assert not report.agrees
    assert report.divergence is not None
    assert (report.divergence.tensor, report.divergence.module) == ("norm", "norm")
    assert "  cause: not looked for, which needs PyTorch itself" in str(report).splitlines()


@pytest.mark.slow
def test_nnx_and_equinox_can_be_the_first_too() -> None:
    assert compare(NnxModel(), LinenModel(), X, dtypes=("float64",)).agrees
    mlp = eqx.nn.MLP(4, 3, 8, 2, key=jax.random.key(0))
    call = lambda module, x: jax.vmap(jax.vmap(module))(x)  # noqa: E731
    assert compare(mlp, mlp, X, torch_call=call, jax_call=call, dtypes=("float64",)).agrees
    other = eqx.nn.MLP(4, 3, 8, 2, jax.nn.silu, key=jax.random.key(0))
    assert not compare(mlp, other, X, torch_call=call, jax_call=call, dtypes=("float64",)).agrees


def test_what_needs_pytorch_says_so() -> None:
    with pytest.raises(ValueError, match="buffers=True takes a step of training in PyTorch"):
        compare(LinenModel(), NnxModel(), X, buffers=True)
    with pytest.raises(ValueError, match="blind spots need the PyTorch module"):
        _ = compare(LinenModel(), NnxModel(), X, dtypes=("float64",)).blind


@pytest.mark.slow
def test_it_needs_no_pytorch() -> None:
    program = """
import sys
sys.modules["torch"] = None
import flax.linen as nn, numpy as np
from flax import nnx
from parity_tests import compare
print(compare(nn.Dense(3), nnx.Linear(4, 3, rngs=nnx.Rngs(0)), np.ones((2, 4)), dtypes=("float64",)).agrees)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "True", done.stderr
