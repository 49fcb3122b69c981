"""Inputs of different dtypes: both libraries give results of the dtype to which the inputs they are made of promote.

The context is made of queries, keys and values, the weights of queries and keys alone; parameters do not count. The
values are those of float64 on the same rounded numbers, within the rounding of the narrowest dtype that takes part.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_attn
from parity_tests.this_library.properties.subjects import SIZES, SUBJECTS
from parity_tests.your_port.measure.case import Variant
from parity_tests.your_port.measure.jax_side import run_jax
from parity_tests.your_port.measure.numbers import given_numbers
from parity_tests.your_port.measure.torch_side import run_torch

FUNCTIONS = (
    *("dot_score", "scaled_dot_score", "gaussian_score", "additive_score", "bilinear_score"),
    *("attend", "attention"),
)
MODULES = ("DotProductAttention", "GaussianAttention", "BilinearAttention", "AdditiveAttention", "MultiHeadAttention")
MIXES = (
    ("bfloat16", "float32", "float32"),
    ("float32", "bfloat16", "float32"),
    ("float32", "float32", "bfloat16"),
    ("float32", "float64", "bfloat16"),
    ("float16", "bfloat16", "float16"),  # float32 is the narrowest that holds both
)
RUNS = [pytest.param(mix, marks=pytest.mark.slow) if mix in MIXES[1:3] else mix for mix in MIXES]
PLACES = (("queries", "query", "scores"), ("keys", "key"), ("values", "value", "w_v", "weight"))
"""The inputs that have the first, the second and the third dtype of a mix."""
PARTS = {
    "scores": ("queries", "keys", "w_v", "weight"),
    "weights": ("scores", "query", "key", "queries", "keys"),
    "context": ("scores", "values", "query", "key", "value", "queries", "keys"),
}
"""Result -> the inputs that it is made of, whichever of them there are."""


@pytest.mark.parametrize("mix", RUNS, ids=" ".join)
@pytest.mark.parametrize("name", [*FUNCTIONS, *MODULES])
def test_results_have_the_dtype_of_what_they_are_made_of(name: str, mix: tuple[str, ...]) -> None:
    subject, rng = SUBJECTS[name], np.random.default_rng(0)
    dtypes = {part: dtype for dtype, parts in zip(mix, PLACES, strict=True) for part in parts if part in subject.inputs}
    inputs = {part: rng.normal(size=subject.shape(subject.inputs[part], 5)).astype(dtypes[part]) for part in dtypes}
    inputs |= {"valid_lens": np.array([5, 2, 0], np.int32)} if subject.hides else {}
    shapes = subject.weight_shapes.items()
    weights = {key: (rng.normal(size=shape) / 2).astype(mix[0]) for key, shape in shapes}
    numbers = given_numbers(subject.case, inputs, weights, lambda name, shape: np.ones(shape), None)
    run: Any = (subject.case, Variant(" ".join(mix), inputs), numbers)
    exact = run_torch(*run, "float64").outputs()
    rounding = max(float(jnp.finfo(dtype).eps) for dtype in dtypes.values())
    for outputs in (run_jax(*run, "float64", {}).outputs(), run_torch(*run, None).outputs()):
        for (flat, found), result in zip(outputs.items(), subject.results, strict=True):
            with jax.enable_x64(True):
                expected = jnp.result_type(*(dtypes[part] for part in PARTS[result] if part in dtypes))
            assert found.dtype == expected, result
            error = np.abs(found.astype(np.float64) - exact[flat]).max()
            assert error <= 4 * rounding * np.abs(exact[flat]).max(), result


@pytest.mark.parametrize("name", MODULES)
def test_a_prepared_memory_gives_the_dtypes_of_the_call(name: str) -> None:
    subject = SUBJECTS[name]
    assert subject.build is not None
    module = subject.build(jax_attn, param_dtype=jnp.float32)
    dtypes = {"queries": jnp.bfloat16, "keys": jnp.float32, "values": jnp.bfloat16, "valid_lens": jnp.int32}
    arrays = [jax.ShapeDtypeStruct(subject.shape(subject.inputs[part], 5), dtype) for part, dtype in dtypes.items()]
    parameters = jax.eval_shape(module.init, jax.random.key(0), *arrays)

    def in_two_steps(module: Any, queries: Any, keys: Any, values: Any, lens: Any) -> Any:
        return module.attend(queries, module.prepare(keys, values, lens, query_size=SIZES["D"]))

    two_steps = jax.eval_shape(lambda *args: module.apply(*args, method=in_two_steps), parameters, *arrays)
    assert two_steps == jax.eval_shape(module.apply, parameters, *arrays)
