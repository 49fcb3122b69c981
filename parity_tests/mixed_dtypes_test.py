"""Inputs of different dtypes: both libraries give results of the dtype to which the inputs they are made of promote.

The context is made of queries, keys and values, the weights of queries and keys alone; parameters do not count. The
values are those of float64 on the same rounded numbers, within the rounding of the narrowest dtype that takes part.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jax_attn
import torch_ref
from jax_attn.weights import from_torch, to_numpy
from parity_tests.properties.answers import TORCH_DTYPES, weight_shapes
from parity_tests.properties.subjects import SIZES, SUBJECTS, Subject

MIXES = (
    ("bfloat16", "float32", "float32"),
    ("float32", "bfloat16", "float32"),
    ("float32", "float32", "bfloat16"),
    ("bfloat16", "bfloat16", "float32"),
    ("float32", "float64", "bfloat16"),
    ("float16", "bfloat16", "float16"),  # float32 is the narrowest that holds both
)
LENS = np.array([5, 2, 0], np.int32)
SCORES = ("dot_score", "scaled_dot_score", "gaussian_score", "additive_score", "bilinear_score")
MODULES = (
    "DotProductAttention",
    "GaussianAttention",
    "BilinearAttention",
    "AdditiveAttention",
    "MultiHeadAttention",
)
MADE_OF = {
    "scores": ("queries", "keys", "w_v", "weight"),
    "weights": ("scores", "query", "key", "queries", "keys"),
    "context": ("scores", "values", "query", "key", "value", "queries", "keys"),
}
"""Result -> the inputs that it is made of, whichever of them there are."""


def numbers(subject: Subject, dtypes: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Inputs as their dtypes hold them."""
    rng = np.random.default_rng(0)
    inputs = {name: rng.normal(size=subject.shape(letters, 5)) for name, letters in subject.inputs.items()}
    rounded = {name: x.astype(jnp.dtype(dtypes[name])) for name, x in inputs.items() if name in dtypes}
    return rounded | ({"valid_lens": LENS} if subject.hides else {})


def run_jax(subject: Subject, inputs: Mapping[str, Any], parameter_dtype: str) -> dict[str, np.ndarray]:
    weights = weights_of(subject, parameter_dtype)
    with jax.enable_x64(True):
        arrays = {name: jnp.asarray(x) for name, x in inputs.items()}
        if subject.jax_module is None:
            found = jax.jit(lambda arrays: subject.call(jax_attn, None, arrays))(arrays)
        else:
            module = subject.jax_module(jnp.dtype(parameter_dtype))
            parameters = from_torch(weights, jax.eval_shape(module.init, jax.random.key(0), **arrays))
            found = jax.jit(module.apply)(parameters, **arrays)
        return named(subject, jax.tree.map(np.asarray, found))


def run_torch(subject: Subject, inputs: Mapping[str, Any], parameter_dtype: str) -> dict[str, np.ndarray]:
    module = None
    if subject.torch_module is not None:
        module = subject.torch_module().to(TORCH_DTYPES[parameter_dtype])
        weights = weights_of(subject, parameter_dtype)
        module.load_state_dict({name: torch.tensor(x.astype(np.float64)) for name, x in weights.items()})
    tensors = {name: tensor(x) for name, x in inputs.items()}
    with torch.no_grad():
        found = subject.call(torch_ref, module, tensors)
    return named(subject, jax.tree.map(to_numpy, found))


def tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype == np.int32:
        return torch.tensor(array)
    return torch.tensor(array.astype(np.float64)).to(TORCH_DTYPES[str(array.dtype)])


def weights_of(subject: Subject, dtype: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = weight_shapes(subject.name)
    return {name: (rng.normal(size=shape) / 2).astype(jnp.dtype(dtype)) for name, shape in shapes.items()}


def named(subject: Subject, found: Any) -> dict[str, np.ndarray]:
    return dict(zip(subject.results, found if isinstance(found, tuple) else (found,), strict=True))


def check(name: str, dtypes: Mapping[str, str], parameter_dtype: str = "float32") -> None:
    """Dtypes by the rule, values as in float64, on both sides."""
    subject, inputs = SUBJECTS[name], numbers(SUBJECTS[name], dtypes)
    wide = {key: x if x.dtype == np.int32 else x.astype(np.float64) for key, x in inputs.items()}
    exact = run_torch(subject, wide, parameter_dtype)
    rounding = max(float(jnp.finfo(dtype).eps) for dtype in dtypes.values())
    runs: list[Callable[..., dict[str, np.ndarray]]] = [run_jax, run_torch]
    for run in runs:
        for result, found in run(subject, inputs, parameter_dtype).items():
            with jax.enable_x64(True):
                expected = jnp.result_type(*(dtypes[part] for part in MADE_OF[result] if part in dtypes))
            assert found.dtype == expected, f"{run.__name__}, {result}: {found.dtype}, not {expected}"
            error = np.abs(found.astype(np.float64) - exact[result]).max()
            assert error <= 4 * rounding * np.abs(exact[result]).max(), f"{run.__name__}, {result}: off by {error:.3g}"


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
    inputs = numbers(subject, {"queries": "bfloat16", "keys": "float32", "values": "bfloat16"})
    assert subject.jax_module is not None
    module = subject.jax_module(jnp.float32)
    arguments = [jnp.asarray(x) for x in inputs.values()]
    parameters = jax.eval_shape(module.init, jax.random.key(0), *arguments)

    def in_two_steps(module: Any, queries: Any, keys: Any, values: Any, lens: Any) -> Any:
        return module.attend(queries, module.prepare(keys, values, lens, query_size=SIZES["D"]))

    def two_steps(parameters: Any, *arguments: Any) -> Any:
        return module.apply(parameters, *arguments, method=in_two_steps)

    at_once = jax.eval_shape(module.apply, parameters, *arguments)
    assert jax.eval_shape(two_steps, parameters, *arguments) == at_once
