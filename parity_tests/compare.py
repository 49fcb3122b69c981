"""Run both sides, and measure how far apart they are and how far they may be.

Errors are measured by tensor: e(x) = max|x − o| / max|o|. (By element, two correct float64 gradients at scores of ±1e4
differ by 100 %.) With u the unit roundoff:

    float64     max|jax − torch| ≤ (1e-12 + 16 u max|score|) max|torch|
    narrower    e_jax ≤ 2 e_torch + c u, where o is torch_ref in float64 on the same rounded inputs and weights

Where o is 0 the errors are absolute. Shapes and dtypes must be equal, and NaN and the infinities must stand in the same
places.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from parity_tests.case import Case, Variant
from parity_tests.jax_side import Transform, run_jax
from parity_tests.numbers import Numbers, Run, is_floating, make_numbers
from parity_tests.taps import recording
from parity_tests.torch_side import run_torch


@dataclass(frozen=True)
class Measurement:
    """One tensor of one variant: its error and its bound, or what makes the two incomparable."""

    case: str
    variant: str
    dtype: str
    tensor: str
    error: float
    """JAX's, against PyTorch in float64."""
    bound: float
    twin_error: float = 0.0
    """PyTorch's, against itself in float64."""
    mismatch: str = ""

    @property
    def is_gradient(self) -> bool:
        return self.tensor.startswith("gradient of ")

    @property
    def failed(self) -> bool:
        return bool(self.mismatch) or not self.error <= self.bound

    def __str__(self) -> str:
        what = self.mismatch or f"error {self.error:.3g} exceeds {self.bound:.3g}"
        return f"{self.case} | {self.variant} | {self.dtype} | {self.tensor}: {what}"


class Runs(NamedTuple):
    """The runs of one variant: JAX, PyTorch, and PyTorch in float64 on the same numbers."""

    jax: Run
    torch: Run
    oracle: Run


def run_both(
    case: Case,
    variant: Variant,
    numbers: Numbers,
    dtype: str,
    *,
    jax_numbers: Numbers | None = None,
    transform: Transform = jax.jit,
    record: bool = False,
) -> Runs:
    """Run both sides on the same numbers; `jax_numbers` gives JAX others, `record` adds the intermediate tensors."""
    with recording() if record else nullcontext() as trace:
        torch_run = run_torch(case, variant, numbers, dtype)
    torch_run = oracle = replace(torch_run, trace=trace)
    if dtype != "float64":
        with recording() if record else nullcontext() as trace:
            oracle = run_torch(case, variant, numbers, "float64")
        oracle = replace(oracle, trace=trace)
    with recording() if record else nullcontext() as trace:
        given = numbers if jax_numbers is None else jax_numbers
        jax_run = run_jax(case, variant, given, dtype, given.directions(torch_run), transform)
    return Runs(replace(jax_run, trace=trace), torch_run, oracle)


def unit_roundoff(dtype: str) -> float:
    """u: half the distance from 1 to the next number."""
    return float(jnp.finfo(dtype).eps) / 2


@dataclass(frozen=True)
class Judge:
    """Measures the tensors of one variant in one dtype."""

    case: Case
    variant: Variant
    dtype: str
    max_score: float
    """max|score|, which widens the bound in float64."""

    def measure(
        self, tensor: str, ours: np.ndarray | None, twin: np.ndarray | None, truth: np.ndarray | None
    ) -> Measurement:
        """Measure one tensor of JAX against PyTorch's; `truth` is PyTorch's in float64."""
        mismatch, error, bound, twin_error = "", 0.0, 0.0, 0.0
        if ours is None or twin is None or truth is None:
            mismatch = "" if ours is twin is truth else "only one side has it"
        else:
            mismatch = _different_form(ours, twin) or _different_extremes(ours, truth)
            if not mismatch:
                absolute = tensor in self.variant.vanishing
                error, twin_error = (relative_error(x, truth, absolute) for x in (ours, twin))
                bound = self._bound(twin_error, truth)
        return Measurement(self.case.name, self.variant.name, self.dtype, tensor, error, bound, twin_error, mismatch)

    def _bound(self, twin_error: float, truth: np.ndarray) -> float:
        if not is_floating(truth):
            return 0.0
        u = unit_roundoff(self.dtype)
        if self.dtype == "float64":
            return 1e-12 + 16 * u * self.max_score
        factor = self.case.factor if self.variant.factor is None else self.variant.factor
        return 2 * twin_error + factor * u


def compare_runs(case: Case, variant: Variant, dtype: str, runs: Runs) -> list[Measurement]:
    """Measure every tensor of the runs."""
    judge = Judge(case, variant, dtype, runs.oracle.max_score)
    names = sorted(runs.torch.tensors.keys() | runs.jax.tensors.keys())
    return [judge.measure(name, *(run.tensors.get(name) for run in runs)) for name in names]


def compare_variant(case: Case, variant: Variant, dtype: str, transform: Transform = jax.jit) -> list[Measurement]:
    """Run both sides and measure every tensor."""
    runs = run_both(case, variant, make_numbers(case, variant, dtype), dtype, transform=transform)
    return compare_runs(case, variant, dtype, runs)


def compare_case(case: Case, dtype: str) -> list[Measurement]:
    """Compare all variants of a case that have this dtype."""
    variants = [variant for variant in case.variants if dtype in variant.dtypes]
    return [measurement for variant in variants for measurement in compare_variant(case, variant, dtype)]


def relative_error(x: np.ndarray, truth: np.ndarray, absolute: bool = False) -> float:
    """max|x − o| / max|o| over the finite entries of o, absolute where o is 0; the number of wrong ids or booleans."""
    if not is_floating(truth):
        return float(np.sum(x != truth))
    finite = np.isfinite(truth.astype(np.float64))
    x, truth = x.astype(np.float64)[finite], truth.astype(np.float64)[finite]
    if truth.size == 0:
        return 0.0
    scale = float(np.abs(truth).max())
    return float(np.abs(x - truth).max()) / (1.0 if absolute or scale == 0 else scale)


def _different_form(ours: np.ndarray, twin: np.ndarray) -> str:
    """Compare shapes and dtypes. All integers count as one dtype: PyTorch's are int64, JAX's int32 without x64."""
    if ours.shape != twin.shape:
        return f"shape {list(ours.shape)} in JAX, {list(twin.shape)} in PyTorch"
    both_integers = ours.dtype.kind == twin.dtype.kind == "i"
    if ours.dtype != twin.dtype and not both_integers:
        return f"dtype {ours.dtype} in JAX, {twin.dtype} in PyTorch"
    return ""


def _different_extremes(ours: np.ndarray, truth: np.ndarray) -> str:
    if not is_floating(ours):
        return ""
    ours, truth = ours.astype(np.float64), truth.astype(np.float64)
    for name, test in (("NaN", np.isnan), ("inf", np.isposinf), ("−inf", np.isneginf)):
        found, expected = test(ours), test(truth)
        if not np.array_equal(found, expected):
            return f"{name} in {found.sum()} places in JAX, in {expected.sum()} in PyTorch, not the same ones"
    return ""
