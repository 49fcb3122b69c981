"""The proof: every public name in every dtype, planted faults, the weights' round trip, the imports."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import jax
import jaxtyping
import numpy as np
import pytest

import jax_attn
import torch_ref
from jax_attn.weights import from_torch, to_torch
from parity_tests.case import DTYPES, Case
from parity_tests.cases import CASES, WITHOUT_CASE, public_names
from parity_tests.cases.models import jax_translator, torch_translator, translator_options
from parity_tests.faults.fault import Fault
from parity_tests.faults.in_jax import JAX_FAULTS
from parity_tests.faults.in_torch import TORCH_FAULTS
from parity_tests.jax_side import forget_programs


@pytest.fixture(autouse=True)
def _clean_process() -> Iterator[None]:
    """A process has room for so many compiled programs, and a planted fault must not outlive its test in one.

    Annotations are not checked here: a refusal has to be the library's own, as a user meets it.
    """
    forget_programs()
    checked = not jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", not checked)
    forget_programs()


def _runs() -> Iterator[object]:
    for dtype in DTYPES:
        for case in (case for case in CASES if dtype in case.dtypes):
            marks = [pytest.mark.slow] if dtype in case.slow_dtypes else []
            yield pytest.param(case, dtype, id=f"{case.name}-{dtype}", marks=marks)


@pytest.mark.parametrize(("case", "dtype"), list(_runs()))
def test_both_sides_agree(case: Case, dtype: str, parity: Callable[..., None]) -> None:
    parity(case, dtype)


def test_every_public_name_has_a_case_or_a_reason() -> None:
    covered = {case.public_name for case in CASES}
    assert covered | WITHOUT_CASE.keys() == public_names()
    assert not covered & WITHOUT_CASE.keys()
    assert all(WITHOUT_CASE.values())
    assert jax_attn.MLPAttention is jax_attn.AdditiveAttention
    assert torch_ref.MLPAttention is torch_ref.AdditiveAttention


def test_every_case_runs_in_float64() -> None:
    """All but the one whose softmax is narrower, as `twin_differences` says."""
    without = {case.name for case in CASES if "float64" not in case.dtypes}
    assert without == {"DotProductAttention (jax.nn.dot_product_attention)"}


def test_names_are_unique_and_a_looser_bound_has_a_reason() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        assert len({variant.name for variant in case.variants}) == len(case.variants), case.name
        assert case.factor == 8 or case.reason, case.name
        assert case.reason or all(variant.factor is None for variant in case.variants), case.name


# The comparison that sees those in JAX sees those in PyTorch: one of them is enough where time counts.
IN_TORCH = [TORCH_FAULTS[0], *(pytest.param(fault, marks=pytest.mark.slow) for fault in TORCH_FAULTS[1:])]


@pytest.mark.parametrize("fault", [*JAX_FAULTS, *IN_TORCH], ids=lambda fault: f"{fault.side}: {fault.name}")
def test_a_planted_fault_is_caught(fault: Fault) -> None:
    assert fault.is_caught()


# Weights


def _translators() -> tuple[dict[str, np.ndarray], object]:
    options = translator_options(bidirectional=True, bridge=True)
    tokens = np.zeros((2, 3), np.int32)
    model = torch_translator(options, None)
    parameters = jax.jit(jax_translator(options, np.float32).init)(jax.random.key(0), tokens, tokens)
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}, parameters


def test_weights_go_there_and_back_bit_for_bit() -> None:
    state_dict, parameters = _translators()
    jax.tree.map(np.testing.assert_array_equal, from_torch(to_torch(parameters), parameters), parameters)
    returned = to_torch(from_torch(state_dict, parameters))
    assert returned.keys() == state_dict.keys()
    for name, array in state_dict.items():
        assert returned[name].dtype == array.dtype
        np.testing.assert_array_equal(returned[name], array)


def test_every_weight_is_accounted_for() -> None:
    state_dict, parameters = _translators()
    name = "decoder.rnn.weight_hh_l0"
    with pytest.raises(KeyError, match=name):
        from_torch({key: value for key, value in state_dict.items() if key != name}, parameters)
    with pytest.raises(KeyError, match=r"decoder\.extra"):
        from_torch({**state_dict, "decoder.extra": np.zeros(1, np.float32)}, parameters)
    with pytest.raises(ValueError, match=name):
        from_torch({**state_dict, name: state_dict[name].T}, parameters)
    with pytest.raises(TypeError, match=name):
        from_torch({**state_dict, name: state_dict[name].astype(np.float64)}, parameters)


# Imports


@pytest.mark.parametrize(
    ("package", "foreign"), [("jax_attn", ("torch", "torch_ref", "train")), ("torch_ref", ("jax", "flax", "jax_attn"))]
)
def test_neither_side_imports_the_other(package: str, foreign: tuple[str, ...]) -> None:
    """All of it, file by file, in a process of its own."""
    program = (
        "import importlib, pkgutil, sys\n"
        f"import {package}\n"
        f"for module in pkgutil.walk_packages({package}.__path__, '{package}.'):\n"
        "    if not module.name.endswith(('_test', 'conftest')):\n"
        "        importlib.import_module(module.name)\n"
        f"print([name for name in {foreign!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
