"""Programs that are wrong only when they are compiled: one of the compiler's own, and one that is planted."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.interpreters import mlir

from jax_attn.compiler import faults_of
from parity_tests import compare_compiled
from parity_tests.your_port.command import main

X = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)

wrong_if_compiled = jax.extend.core.Primitive("wrong_if_compiled")
wrong_if_compiled.def_impl(lambda x: x)
wrong_if_compiled.def_abstract_eval(lambda x: x)
mlir.register_lowering(wrong_if_compiled, mlir.lower_fun(lambda x: x * 1.001, multiple_results=False))


@pytest.mark.slow
def test_functions_and_modules_agree_with_their_own_operations() -> None:
    attention = nnx.MultiHeadAttention(2, 8, rngs=nnx.Rngs(0), decode=False)
    network = eqx.nn.MLP(5, 2, 16, 2, key=jax.random.key(0))
    states = np.random.default_rng(1).normal(size=(2, 7, 8)).astype(np.float32)
    for program, inputs in (
        (attention, states),
        (network, X[0]),
        (jax.nn.relu, X),
        (jax.nn.softmax, {"x": X, "axis": -1}),
    ):
        report = compare_compiled(program, inputs)
        assert report, str(report)
        assert {m.variant for m in report.measurements} == {"outputs", "outputs and gradients"}
        assert any(m.bound > 0 for m in report.measurements)


def test_dropout_integers_and_16_bits_agree() -> None:
    def program(x: Any, key: Any) -> Any:
        kept = jax.random.bernoulli(key, 0.5, x.shape)
        y = jnp.where(kept, x, 0).astype(jnp.bfloat16) @ jnp.ones((5, 9), jnp.bfloat16)
        return {"ids": y.argmax(-1), "none": None, "infinite": jnp.where(x > 0, x, -jnp.inf), "y": y}

    report = compare_compiled(program, (X, jax.random.key(0)), gradients=False)
    assert report, str(report)
    assert {m.tensor: m.dtype for m in report.measurements} == {
        "ids": "int32",
        "infinite": "float32",
        "y": "bfloat16",
    }


def test_what_a_mask_fills_in_hides_no_rounding() -> None:
    def program(x: Any) -> Any:
        masked = jnp.where(x > 0, x, jnp.finfo(x.dtype).min)
        return jax.nn.softmax(masked - masked.max(), axis=-1)

    report = compare_compiled(program, X)
    assert report, str(report)
    assert min(m.bound for m in report.measurements) > 9 * 2.0**-24  # moved results stay finite


@pytest.mark.slow
def test_a_long_loop_is_compared() -> None:
    def program(x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ jnp.eye(5) + x), c.sum()), x, length=300)

    assert compare_compiled(program, X)


def test_the_line_that_is_compiled_wrongly_is_named() -> None:
    def program(x: Any) -> Any:
        y = jnp.tanh(x) * 2
        z = wrong_if_compiled.bind(y)  # the line
        return {"right": y + 1, "wrong": jnp.exp(z).sum(-1)}

    report = compare_compiled(program, X, gradients=False)
    assert [m.tensor for m in report.failed] == ["wrong"]
    line = program.__code__.co_firstlineno + 2
    first = f"in the compiled program alone, wrong_if_compiled in compiled_test.py:{line}, operation 3 of 5"
    assert f"  first difference: {first}" in str(report).splitlines()
    assert report.fault is None


def test_a_wrong_gradient_is_seen() -> None:
    @jax.custom_vjp
    def same(x: Any) -> Any:
        return x * 1.0

    same.defvjp(lambda x: (x * 1.0, None), lambda _, g: (wrong_if_compiled.bind(g),))
    report = compare_compiled(same, X)
    assert [(m.variant, m.tensor) for m in report.failed] == [("outputs and gradients", "gradient of inputs.0")]


def test_complex_numbers_are_compared_by_their_sizes() -> None:
    assert compare_compiled(lambda x: x * jnp.exp(1j * x), X)
    report = compare_compiled(lambda x: jnp.exp(1j * wrong_if_compiled.bind(x)), X, gradients=False)
    assert [m.tensor for m in report.failed] == ["result"]
    assert report.failed[0].error < 1  # no count of unequal numbers


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(TypeError, match="program must be a function or a module that can be called; got int"):
        compare_compiled(3, X)
    with pytest.raises(ValueError, match="neither the program nor its inputs hold an array"):
        compare_compiled(lambda: 3)
    with pytest.raises(ValueError, match="returns no array, so that there is nothing to compare"):
        compare_compiled(lambda x: None, X)


@pytest.fixture
def build(tmp_path: Path) -> Callable[[str], str]:
    def write(body: str) -> str:
        file = tmp_path / "port.py"
        file.write_text(f"import jax.numpy as jnp, numpy as np\ndef build():\n    return {body}\n")
        return f"{file}:build"

    return write


@pytest.mark.slow
def test_the_command_compares_a_compiled_program(build: Callable[[str], str], capsys: Any, tmp_path: Path) -> None:
    json = tmp_path / "report.json"
    assert main(["--compiled", build("jnp.tanh, np.ones((3, 4), np.float32)"), "--json", str(json)]) == 0
    assert capsys.readouterr().out.startswith("tanh, compiled, agrees with its own operations (float32)")
    assert '"verdict": "agrees"' in json.read_text()
    assert main(["--compiled", build("jnp.tanh")], isolated=False) == 2
    assert "must return (function or module, inputs)" in capsys.readouterr().err


FAULTY = """
import jax, jax.numpy as jnp, numpy as np, torch
from parity_tests import compare, compare_compiled

def in_torch(x):
    return ((torch.eye(3, dtype=x.dtype) @ x[..., None])[..., 0] ** 2).sum(-1)

def in_jax(x):
    return jax.vmap(lambda row: jnp.sum((jnp.eye(3, dtype=x.dtype) @ row) ** 2))(x)

X = np.random.default_rng(0).normal(size=(40_000, 3))
print(compare_compiled(in_jax, X.astype(np.float32)), compare(in_torch, in_jax, X[:20_000]), sep="\\n")
"""


@pytest.mark.slow
def test_the_compilers_own_fault_is_named() -> None:
    """At 20,000 rows the compiled outputs are wrong in float64, and those that come with gradients are right."""
    if not faults_of(version("jaxlib")):
        pytest.skip("this version of jaxlib has no known fault")
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS")}
    run = subprocess.run([sys.executable, "-c", FAULTY], capture_output=True, text=True, check=True, env=environment)
    cause = "  cause: the compiler: jaxlib 0.10.2 computes some sums over small axes wrongly on a CPU (https://"
    lines = run.stdout.splitlines()
    assert lines[0] == "in_jax, compiled, DIFFERS in 1 of 1 tensors with its own operations (float32)"
    assert lines[3] == "in_torch DIFFERS in 1 of 2 tensors (1 output, 1 gradient; float64 and float32)"
    assert lines[4].startswith("  worst: result, float64 outputs alone: error 0.")
    assert [lines[i][: len(cause)] for i in (2, 5)] == [cause, cause]
