"""The harness as somebody else uses it: the documentation's own example, in a pytest of its own."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from parity_tests import (
    Case,
    JaxSide,
    Variant,
    compare,
    compare_training,
    jax_function,
    torch_function,
    torch_module,
)
from parity_tests.your_port.measure.numbers import make_numbers
from parity_tests.your_port.measure.tables import as_table, summarize

ROOT = Path(__file__).parents[2]
EXAMPLE = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", (ROOT / "docs/parity.md").read_text("utf-8"), re.DOTALL))
CONFTEST = 'pytest_plugins = ["parity_tests.your_port.plugin"]  # a clone is not always installed\n'


@pytest.fixture
def record_property() -> Callable[[str, object], None]:
    """Leave what fails here on purpose out of the table at the end of the tests."""
    return lambda name, value: None


def mended() -> str:
    """Return the example with another port, which has the bias, under another name."""
    text = EXAMPLE["gru_test.py"].replace("test_gru_cell", "test_mended")
    text = re.sub(r"    cell = .*", "    from jax_attn import gru_step\n\n    cell = port(gru_step)", text)
    text = re.sub(r"jax_call=.*", "name='Mended'))", text)
    port = """
def port(gru_step):
    def call(weights, x, h):
        projected = x @ weights["weight_ih"].T + weights["bias_ih"]
        return gru_step(h, projected, weights["weight_hh"].T, weights["bias_hh"])[1]

    return call
"""
    return text + port


@pytest.mark.slow  # runs pytest in a process of its own
@pytest.mark.skipif(nnx.GRUCell(1, 1, rngs=nnx.Rngs(0)).dense_h.bias is not None, reason="this version has the bias")
def test_the_missing_hidden_bias_of_nnx_is_found_and_named_and_a_port_with_the_bias_passes(tmp_path: Path) -> None:
    settings = "[pytest]\npython_files = *_test.py\n"
    files = {**EXAMPLE, "conftest.py": CONFTEST, "mended_test.py": mended(), "pytest.ini": settings}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--junitxml=out/junit.xml",
        ".",
    ]
    compiling = {name: value for name, value in os.environ.items() if name.startswith(("JAX_", "XLA_"))}
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "COLUMNS": "160", **compiling}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    verdict = done.stdout[done.stdout.index("GRUCell DIFFERS") :].splitlines()
    assert verdict[1].startswith("  worst: gradient of bias_hh, float64: error ")
    cause = "  cause: bias_hh is missing in JAX (explains outputs and gradients on fresh draws)"
    assert cause in verdict[:10]
    (record,) = (tmp_path / "out").glob("parity-*.json")
    assert cause.strip() in json.loads(record.read_text("utf-8"))["lines"][3]
    assert "test_gru_cell" in record.name
    assert record.with_suffix(".md").read_text("utf-8").startswith("### GRUCell: differs")
    assert re.search(r"GRUCell\s+float64.*FAILED", done.stdout)
    assert re.search(r"Mended\s+float64.*agrees", done.stdout)
    assert re.search(r"Mended\s+float32.*agrees", done.stdout)


def test_pytest_finds_the_plugin_where_the_package_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (place,) = project["entry-points"]["pytest11"].values()
    command = [sys.executable, "-c", f"import {place}, sys; print([x for x in ('jax', 'torch') if x in sys.modules])"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.usefixtures("place_alone")
def test_a_failure_begins_with_what_matters(parity: Callable[..., None]) -> None:
    def parts(inputs: Any, _: Any) -> Any:
        return [inputs["x"] * factor for factor in range(1, 9)]

    variant = Variant("random", {"x": np.arange(3.0)})
    case = Case("parts", (variant,), torch_function(parts), jax_function(lambda x, _: [2 * y for y in parts(x, _)]))
    with pytest.raises(pytest.fail.Exception) as failure:
        parity(case, "float64")
    lines = str(failure.value).splitlines()
    assert lines[0] == "parts | random | float64"
    assert lines[1].startswith("  first difference: the forward pass at 0")
    assert lines[-1] == "… and 6 more"
    assert len(lines) < 10


X = np.arange(3.0)


def squared(factor: float) -> Any:
    return compare(torch.square, lambda x: factor * x * x, X, dtypes=("float64",))


def test_a_dtype_that_does_not_exist_or_was_not_run_is_an_error(parity: Callable[..., None]) -> None:
    same = torch_function(lambda inputs, _: inputs["x"]), jax_function(lambda inputs, _: inputs["x"])
    case = Case("same", (Variant("random", {"x": X}),), *same)
    with pytest.raises(ValueError, match=r"some of .*; got flaot32"):
        parity(case, "float64", "flaot32")
    report = squared(1.0)
    parity(report, "float64")
    with pytest.raises(ValueError, match="square was not run in float32"):
        parity(report, "float32")
    with pytest.raises(TypeError, match="parity takes a report, such as that of compare, or a Case; got True"):
        parity(report.agrees)


def test_a_report_is_judged_in_the_dtypes_that_are_asked_for(parity: Callable[..., None]) -> None:
    """A port that is wrong by 1e-8 differs in float64 alone."""
    report = compare(torch.square, lambda x: (1 + 1e-8) * x * x, X)
    parity(report, "float32")
    with pytest.raises(pytest.fail.Exception, match="square DIFFERS in 2 of 2 tensors"):
        parity(report)


def test_what_only_jit_makes_wrong_is_judged_and_a_name_is_no_markup(parity: Callable[..., None]) -> None:
    report = compare(
        torch.square,
        lambda x: jnp.square(x) + isinstance(x, jax.core.Tracer),
        X,
        dtypes=("float64",),
        gradients=False,
        name="m[/b]",
    )
    with pytest.raises(pytest.fail.Exception, match=r"m\[/b\] DIFFERS in 1 of 1 tensors"):
        parity(report)
    table = as_table([summarize([m]) for m in report.measurements if m.dtype == "float64"])
    assert list(table.columns[0].cells) == [r"m\[/b]"]


def test_a_training_is_judged_too(parity: Callable[..., None]) -> None:
    def start(weights: Any) -> Any:
        model = torch.nn.Linear(2, 1)
        model.load_state_dict(weights)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(batch: Any) -> Any:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            return {}

        return model, optimizer, step

    def jax_start(weights: Any, rate: float) -> Any:
        def loss(params: Any, batch: Any) -> Any:
            return (batch @ params["weight"].T + params["bias"]).sum()

        def step(params: Any, state: Any, batch: Any) -> Any:
            moved = jax.tree.map(lambda x, g: x - rate * g, params, jax.grad(loss)(params, batch))
            return moved, state, {}

        return jax.tree.map(jnp.asarray, weights), (), step

    weights = torch.nn.Linear(2, 1).state_dict()
    right, wrong = (
        compare_training(start, partial(jax_start, rate=rate), weights, [np.ones((3, 2))] * 2, 2) for rate in (0.1, 0.2)
    )
    parity(right, "float64")
    with pytest.raises(pytest.fail.Exception, match="the trainings part at step 1"):
        parity(wrong)
    with pytest.raises(ValueError, match="re-synchronised was not run in float32"):
        parity(right, "float32")
    facts = json.loads(wrong.record.to_json())
    assert facts["verdict"] == "differs"
    assert [x["tensor"] for x in facts["tensors"] if x["failed"]] == ["parameters of weight, step 1"]
    assert "### re-synchronised: differs" in wrong.record.to_markdown()


@pytest.mark.slow  # runs pytest in a process of its own
def test_a_test_that_asks_for_parity_and_never_calls_it_fails(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST, "utf-8")
    text = """
import pytest
def test_forgets(parity): pass
def test_skips(parity): pytest.skip("no model")
def test_fails(parity): assert False
def test_calls(parity):
    with pytest.raises(TypeError): parity(None)
"""
    (tmp_path / "test_port.py").write_text(text, "utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-rf", "."]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert "2 failed, 1 passed, 1 skipped" in done.stdout
    assert "test_forgets - Failed: the test asks for the fixture `parity` and never calls it" in done.stdout


def test_of_a_case_that_fails_everything_is_written_too(
    parity: Callable[..., None], request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request.config.option, "parity_files", str(tmp_path / "new"))
    variant = Variant("random", {"x": np.arange(3.0)})
    case = Case("doubled", (variant,), torch_function(lambda i, _: i["x"]), jax_function(lambda i, _: 2 * i["x"]))
    with pytest.raises(pytest.fail.Exception) as failure:
        parity(case, "float64")
    assert request.node.user_properties == []
    (file,) = (tmp_path / "new").glob("*.json")
    record = json.loads(file.read_text("utf-8"))
    assert record["lines"] == str(failure.value).splitlines()
    assert (record["verdict"], record["first_place"]["tensor"]) == ("differs", "result")


@pytest.mark.usefixtures("place_alone")
def test_a_failure_is_explained_by_the_variant_that_failed(parity: Callable[..., None]) -> None:
    """In float32 the median of the draws decides, so that one bad draw of another variant explains nothing."""

    class Scale(torch.nn.Module):
        def __init__(self, bad_weights: tuple[float, ...]) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    def jax_scale(weights: Any, inputs: Any, options: Any) -> Any:
        bad = options["bad_weights"] == () or jnp.all(weights["weight"] == jnp.asarray(options["bad_weights"]))
        return inputs["x"] * weights["weight"] + jnp.where(bad, 1e-3, 0.0).astype(inputs["x"].dtype)

    torch_side = torch_module(lambda options, inputs: Scale(**options))
    right = Variant("right", {"x": np.arange(3.0)}, {"bad_weights": ()})
    case = Case("scale", (right,), torch_side, JaxSide(jax_scale))
    first_draw = make_numbers(case, right, "float32").weights["weight"]
    wrong = Variant("wrong", {"x": np.arange(3.0)}, {"bad_weights": ()})
    case = replace(case, variants=(replace(right, options={"bad_weights": tuple(first_draw)}), wrong))
    with pytest.raises(pytest.fail.Exception) as failure:
        parity(case, "float32")
    assert str(failure.value).startswith("scale | wrong | float32\n  first difference: the forward pass at ")
