"""The proof: every public name in every dtype, planted faults, the weights' round trip, the imports."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import jax
import numpy as np
import pytest

import jax_attn
import torch_ref
from jax_attn.weights import from_torch, to_torch
from parity_tests.this_library.cases import CASES, WITHOUT_CASE
from parity_tests.this_library.cases.masking import EXTREME, RAGGED
from parity_tests.this_library.cases.models import jax_translator, torch_translator, translator_options
from parity_tests.this_library.faults import CASE_FAULTS, Fault, plant_table
from parity_tests.your_port.measure.case import DTYPES, Case
from parity_tests.your_port.measure.jax_side import forget_programs_of

MASKED = (RAGGED.name, EXTREME.name)
QUICK: dict[str, dict[str, tuple[str, ...]]] = {
    "float32": {
        "masked_softmax": MASKED,
        "attend": MASKED,
        "additive_score": ("several keys", "scaled up", "many pairs", "many pairs, scaled up"),
        "lstm_step": ("a batch", "gates saturated"),
        "masked_cross_entropy": ("tokens, ragged", "smoothed", "logits of ±1e4"),
    },
    "bfloat16": {"DotProductAttention": MASKED},
}
"""What the quick run compares below float64 too: cases of each kind of arithmetic, and their variants."""


def _runs() -> Iterator[object]:
    """Each case and dtype; the quick variants and the slow ones apart."""
    for dtype in DTYPES:
        for case in CASES:
            chosen = [case.find_variant(name) for name in QUICK.get(dtype, {}).get(case.name, ())]
            quick = {v.name for v in (chosen if dtype in QUICK else case.variants) if not v.slow}
            for slow in (False, True):
                variants = tuple(v for v in case.variants if (v.name not in quick) is slow and dtype in v.dtypes)
                marks = [pytest.mark.slow] if slow else []
                name = f"{case.name}-{dtype}{'-slow variants' if slow else ''}"
                if variants:
                    yield pytest.param(replace(case, variants=variants), dtype, id=name, marks=marks)


@pytest.mark.parametrize(("case", "dtype"), list(_runs()))
def test_both_sides_agree(case: Case, dtype: str, parity: Callable[..., None], request: pytest.FixtureRequest) -> None:
    """Compile below float64 as users do: there the bound is one for the rounding, which optimisations change."""
    if dtype != "float64":
        request.getfixturevalue("full_compilation")
    parity(case, dtype)
    forget_programs_of(case)


def test_every_public_name_has_a_case_or_a_reason() -> None:
    covered = {case.name.partition(" (")[0] for case in CASES}  # such as one more of the same function
    assert covered | WITHOUT_CASE.keys() == set(jax_attn.__all__)
    assert not covered & WITHOUT_CASE.keys()
    assert all(WITHOUT_CASE.values())
    assert jax_attn.MLPAttention is jax_attn.AdditiveAttention
    assert torch_ref.MLPAttention is torch_ref.AdditiveAttention


def test_every_case_runs_in_float64() -> None:
    assert all(any("float64" in variant.dtypes for variant in case.variants) for case in CASES)


def test_names_are_unique_and_a_looser_bound_has_a_reason() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        assert len({variant.name for variant in case.variants}) == len(case.variants), case.name
        assert case.factor == 8 or case.reason, case.name


# Planted faults


@pytest.mark.parametrize(
    "fault", [pytest.param(x, marks=[pytest.mark.slow] if x.slow else [], id=x.name) for x in CASE_FAULTS]
)
def test_a_planted_fault_is_caught(fault: Fault) -> None:
    assert fault.is_caught()


CONTROLS = {fault.comparison: fault for fault in CASE_FAULTS}


@pytest.mark.slow
@pytest.mark.parametrize("fault", CONTROLS.values(), ids=lambda fault: " | ".join(fault.comparison))
def test_without_a_fault_the_same_comparison_passes(fault: Fault) -> None:
    failures = fault.failures()
    assert not failures, "\n".join(map(str, failures))


IN_THE_TABLE = ("attend", "lstm_step")
"""The cases in which the quick run plants the table."""


@pytest.mark.parametrize(
    "case", [pytest.param(x, marks=[] if x.name in IN_THE_TABLE else [pytest.mark.slow], id=x.name) for x in CASES]
)
def test_each_mistake_of_the_table_is_caught_where_it_changes_anything(case: Case) -> None:
    found = list(plant_table(case))
    assert [mistake.words for mistake, caught in found if not caught] == []
    assert len(found) > 3 or case.name not in IN_THE_TABLE


# Weights


def test_weights_go_there_and_back_bit_for_bit() -> None:
    options, tokens = translator_options(bidirectional=True, bridge=True), np.zeros((2, 3), np.int32)
    state_dict = {name: tensor.numpy() for name, tensor in torch_translator(options, None).state_dict().items()}
    shapes = jax.eval_shape(jax_translator(options, np.float32).init, jax.random.key(0), tokens, tokens)
    returned = to_torch(from_torch(state_dict, shapes))
    assert returned.keys() == state_dict.keys()
    for name, array in state_dict.items():
        assert returned[name].dtype == array.dtype
        np.testing.assert_array_equal(returned[name], array)


# Imports


@pytest.mark.parametrize(
    ("package", "beside", "foreign"),
    [
        ("jax_attn", "jax_attn", ("torch", "torch_ref", "train")),
        ("torch_ref", "book.torch", ("jax", "flax", "jax_attn")),
    ],
)
def test_neither_side_imports_the_other(package: str, beside: str, foreign: tuple[str, ...]) -> None:
    """All of it, file by file, in a process of its own."""
    program = (
        f"import importlib, pkgutil, sys, {package}, {beside}\n"
        f"for module in pkgutil.walk_packages({package}.__path__, '{package}.'):\n"
        "    if not module.name.endswith(('_test', 'conftest')):\n"
        "        importlib.import_module(module.name)\n"
        f"print([name for name in {foreign!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
