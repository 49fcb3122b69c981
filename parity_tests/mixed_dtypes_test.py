"""Inputs of different dtypes: both libraries give results of the dtype to which the inputs they are made of promote.

The context is made of queries, keys and values, the weights of queries and keys alone; parameters do not count. The
values are those of float64 on the same rounded numbers, within the rounding of the narrowest dtype that takes part.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_attn
from parity_tests.case import Variant
from parity_tests.jax_side import run_jax
from parity_tests.numbers import given_numbers
from parity_tests.properties.subjects import SIZES, SUBJECTS, Subject
from parity_tests.torch_side import run_torch

pytestmark = pytest.mark.usefixtures("quick_compilation")

MIXES = (
    ("bfloat16", "float32", "float32"),
    ("float32", "bfloat16", "float32"),
    ("float32", "float32", "bfloat16"),
    ("bfloat16", "bfloat16", "float32"),
    ("float32", "float64", "bfloat16"),
    ("float16", "bfloat16", "float16"),  # float32 is the narrowest that holds both
)
SCORES = ("dot_score", "scaled_dot_score", "gaussian_score", "additive_score", "bilinear_score")
MODULES = ("DotProductAttention", "GaussianAttention", "BilinearAttention", "AdditiveAttention", "MultiHeadAttention")
PARTS = {
    "scores": ("queries", "keys", "w_v", "weight"),
    "weights": ("scores", "query", "key", "queries", "keys"),
    "context": ("scores", "values", "query", "key", "value", "queries", "keys"),
}
"""Result -> the inputs that it is made of, whichever of them there are."""


def draw_inputs(subject: Subject, dtypes: Mapping[str, str]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    inputs = {name: rng.normal(size=subject.shape(letters, 5)) for name, letters in subject.inputs.items()}
    rounded = {name: x.astype(jnp.dtype(dtypes[name])) for name, x in inputs.items() if name in dtypes}
    return rounded | ({"valid_lens": np.array([5, 2, 0], np.int32)} if subject.hides else {})


def check(name: str, dtypes: Mapping[str, str], parameter_dtype: str = "float32") -> None:
    """Check dtypes by the rule, and values against float64, on both sides."""
    subject, inputs = SUBJECTS[name], draw_inputs(SUBJECTS[name], dtypes)
    rng = np.random.default_rng(1)
    shapes = subject.weight_shapes.items()
    weights = {key: (rng.normal(size=shape) / 2).astype(jnp.dtype(parameter_dtype)) for key, shape in shapes}
    case, variant = subject.case, Variant(f"{sorted(dtypes.items())}", inputs)
    numbers = given_numbers(case, inputs, weights, lambda name, shape: np.ones(shape), None)
    exact = run_torch(case, variant, numbers, "float64").outputs()
    rounding = max(float(jnp.finfo(dtype).eps) for dtype in dtypes.values())
    for run in (run_jax(case, variant, numbers, "float64", {}), run_torch(case, variant, numbers, None)):
        for flat, found in run.outputs().items():
            result = next(iter(subject.results)) if flat == "result" else flat
            with jax.enable_x64(True):
                expected = jnp.result_type(*(dtypes[part] for part in PARTS[result] if part in dtypes))
            assert found.dtype == expected, f"{result}: {found.dtype}, not {expected}"
            error = np.abs(found.astype(np.float64) - exact[flat]).max()
            assert error <= 4 * rounding * np.abs(exact[flat]).max(), f"{result}: off by {error:.3g}"


@pytest.mark.parametrize("name", SCORES)
def test_scores(name: str) -> None:
    extra = next((part for part in ("w_v", "weight") if part in SUBJECTS[name].inputs), None)
    for queries, keys, parameter in MIXES if extra else MIXES[1:]:
        check(name, {"queries": queries, "keys": keys} | ({extra: parameter} if extra else {}))


def test_attend_and_attention() -> None:
    for first, second, third in MIXES:
        check("attention", {"query": first, "key": second, "value": third})
        check("attend", {"scores": first, "values": third})


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    for queries, keys, values in MIXES:
        check(name, {"queries": queries, "keys": keys, "values": values})
    half = "bfloat16"
    check(name, {"queries": half, "keys": "float32", "values": half}, parameter_dtype=half)


@pytest.mark.parametrize("name", MODULES)
def test_a_prepared_memory_gives_the_dtypes_of_the_call(name: str) -> None:
    subject = SUBJECTS[name]
    inputs = draw_inputs(subject, {"queries": "bfloat16", "keys": "float32", "values": "bfloat16"})
    assert subject.build is not None
    module = subject.build(jax_attn, param_dtype=jnp.float32)
    arguments = [jnp.asarray(x) for x in inputs.values()]
    parameters = jax.eval_shape(module.init, jax.random.key(0), *arguments)

    def in_two_steps(module: Any, queries: Any, keys: Any, values: Any, lens: Any) -> Any:
        return module.attend(queries, module.prepare(keys, values, lens, query_size=SIZES["D"]))

    def two_steps(parameters: Any, *arguments: Any) -> Any:
        return module.apply(parameters, *arguments, method=in_two_steps)

    at_once = jax.eval_shape(module.apply, parameters, *arguments)
    assert jax.eval_shape(two_steps, parameters, *arguments) == at_once
