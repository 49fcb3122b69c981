"""Inputs of different dtypes: both libraries give results of the dtype to which the inputs they are made of promote.

The context is made of queries, keys and values, the weights of queries and keys alone; parameters do not count. The
values are those of float64 on the same rounded numbers, within the rounding of the narrowest dtype that takes part.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from parity_tests.this_library.cases import find_case
from parity_tests.your_port.measure.arrays import flatten
from parity_tests.your_port.measure.case import make_weights
from parity_tests.your_port.measure.jax_side import run_jax
from parity_tests.your_port.measure.numbers import Numbers
from parity_tests.your_port.measure.torch_side import run_torch
from parity_tests.your_port.measure.width import enable_x64

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
    "result": ("queries", "keys", "w_v", "weight"),
    "weights": ("scores", "query", "key", "queries", "keys"),
    "context": ("scores", "values", "query", "key", "value", "queries", "keys"),
}
"""Result -> the inputs that it is made of, whichever of them there are."""


@pytest.mark.parametrize("mix", RUNS, ids=" ".join)
@pytest.mark.parametrize("name", [*FUNCTIONS, *MODULES])
def test_results_have_the_dtype_of_what_they_are_made_of(name: str, mix: tuple[str, ...]) -> None:
    """Over a prepared memory too, which the modules' cases attend to."""
    case = find_case(name)
    variant = case.find_variant("several keys" if name.endswith("score") else "ragged lengths")
    module = variant.options.get("name") and case.torch.build(variant.options, variant.inputs)
    parameters = dict(module.named_parameters()) if module else {}
    drawn = make_weights(case, variant, {key: tuple(x.shape) for key, x in parameters.items()})
    dtypes = {part: dtype for dtype, parts in zip(mix, PLACES, strict=True) for part in parts if part in variant.inputs}
    inputs = {**variant.inputs, **{part: variant.inputs[part].astype(dtype) for part, dtype in dtypes.items()}}
    weights = {key: x.astype(mix[0]) for key, x in drawn.items()}
    run: Any = (case, variant, Numbers(*flatten(inputs), weights, (), lambda name, shape: np.ones(shape)))
    exact = run_torch(*run, "float64").outputs
    rounding = max(float(jnp.finfo(dtype).eps) for dtype in dtypes.values())
    for outputs in (run_jax(*run, "float64", {}).outputs, run_torch(*run, None).outputs):
        for result, found in outputs.items():
            parts = PARTS[result.partition(" ")[0]]
            with enable_x64(True):
                expected = jnp.result_type(*(dtypes[part] for part in parts if part in dtypes))
            assert found.dtype == expected, result
            if "after dropout" not in result:  # which stands for any function, and has a step
                error = np.abs(found.astype(np.float64) - exact[result]).max()
                assert error <= 4 * rounding * np.abs(exact[result]).max(), result
