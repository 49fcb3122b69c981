"""What a comparison in bfloat16 says of its outputs: the errors of both, logits, and where PyTorch itself is lost."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from parity_tests.your_port.compare import compare
from parity_tests.your_port.measure.precision import Precision

ROWS, WIDTH = 29, 12
IDS = np.random.default_rng(0).integers(0, ROWS, (7, 9))


class Language(torch.nn.Module):
    """A language model without attention; its middle may lose all digits of 16 bits."""

    def __init__(self, far: float = 0.0) -> None:
        super().__init__()
        self.embed, self.middle = torch.nn.Embedding(ROWS, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.norm, self.head, self.far = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, ROWS, bias=False), far

    def forward(self, ids: Any) -> Any:
        x = self.middle(self.embed(ids)).tanh()
        return self.head(self.norm((x + self.far) - self.far))


def port(far: float = 0.0, narrow: bool = False) -> Any:
    def run(w: Any, ids: Any) -> Any:
        x = jnp.tanh(w["embed.weight"][ids] @ w["middle.weight"].T + w["middle.bias"])
        x = jax.lax.optimization_barrier(x + far) - far
        x = x.astype(jnp.float8_e4m3fn).astype(x.dtype) if narrow else x
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return ((x - mean) * jax.lax.rsqrt(var + 1e-5) * w["norm.weight"] + w["norm.bias"]) @ w["head.weight"].T

    return run


def test_logits_have_a_divergence_and_best_tokens() -> None:
    report = compare(Language(), port(), IDS, dtypes=("bfloat16",), gradients=False)
    assert report.agrees, report
    (found,) = report.precision
    assert found.dtype == "bfloat16"
    assert 0.3 < found.ratio < 2
    for side in (found.jax, found.torch):
        assert 1e-4 < side.error < 0.05
        assert 0 < side.divergence < 1e-2
        assert 0.8 < side.best <= 1
    assert f"  precision: in bfloat16 result is off by {found.jax.error:.2g} in JAX" in str(report)
    record = json.loads(report.to_json())["precision"]
    assert record == [{**json.loads(json.dumps(record[0])), "tensor": "result", "lost_at": ""}]


@pytest.mark.usefixtures("verdict_alone")
def test_an_infinite_divergence_is_a_null_of_the_record() -> None:
    def masked(w: Any, ids: Any) -> Any:
        return jnp.where(jnp.arange(ROWS) > 0, port()(w, ids), -jnp.inf)

    report = compare(Language(), masked, IDS, dtypes=("bfloat16",), gradients=False)
    assert report.precision[0].jax.divergence == np.inf
    assert json.loads(report.to_json())["precision"][0]["jax"]["divergence"] is None


@pytest.mark.usefixtures("verdict_alone")
def test_a_port_with_too_few_digits_is_many_times_worse() -> None:
    report = compare(Language(), port(narrow=True), IDS, dtypes=("bfloat16",), gradients=False)
    assert report.precision[0].ratio > 4
    assert not report


def test_where_pytorch_itself_is_lost_is_said() -> None:
    report = compare(Language(1000.0), port(1000.0), IDS, dtypes=("bfloat16",), gradients=False)
    (found,) = report.precision
    assert found.torch.error > 0.3
    assert "; it shows nothing: PyTorch itself is lost at input of norm" in str(report)


def test_wide_dtypes_and_other_outputs_have_no_such_line() -> None:
    report = compare(torch.nn.Tanh(), jnp.tanh, np.ones((2, 3)), dtypes=("float64",))
    assert report.precision == ()
    narrow = compare(torch.nn.Tanh(), jnp.tanh, np.linspace(-1, 1, 12).reshape(3, 4), dtypes=("bfloat16",))
    (found,) = narrow.precision
    assert isinstance(found, Precision)
    assert found.jax.best is None
    assert "best tokens" not in str(narrow)


@pytest.mark.parametrize("value", [0.0, np.inf])
def test_an_output_without_a_size_is_left_out(value: float) -> None:
    x = np.full((2, 3), 2.0)
    report = compare(lambda x: x * 0 + value, lambda x: x * 0 + value, x, dtypes=("bfloat16",), gradients=False)
    assert report.agrees, report
