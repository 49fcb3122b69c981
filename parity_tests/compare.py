"""How far apart the two sides are, and how far they may be.

Errors are measured by tensor: e(x) = max|x − o| / max|o|. (By element, two correct float64 gradients at scores of ±1e4
differ by 100 %.) With u the unit roundoff:

    float64     max|jax − torch| ≤ (1e-12 + 16 u max|score|) max|torch|
    narrower    e_jax ≤ 2 e_torch + c u, where o is torch_ref in float64 on the same rounded inputs and weights

Where o is 0 the errors are absolute. Shapes and dtypes are equal, and NaN and the infinities stand in the same places.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from parity_tests.case import Case, Variant
from parity_tests.jax_side import run_jax
from parity_tests.numbers import Run, is_floating, make_numbers
from parity_tests.torch_side import run_torch


@dataclass(frozen=True)
class Measurement:
    """One tensor of one variant: its error and its bound, or what makes them meaningless."""

    case: str
    variant: str
    dtype: str
    tensor: str
    error: float
    """Of JAX, against PyTorch in float64."""
    bound: float
    twin_error: float = 0.0
    """Of PyTorch, against itself in float64."""
    mismatch: str = ""

    @property
    def of_gradient(self) -> bool:
        return self.tensor.startswith("gradient of ")

    @property
    def failed(self) -> bool:
        return bool(self.mismatch) or not self.error <= self.bound

    def __str__(self) -> str:
        what = self.mismatch or f"error {self.error:.3g} exceeds {self.bound:.3g}"
        return f"{self.case} | {self.variant} | {self.dtype} | {self.tensor}: {what}"


def unit_roundoff(dtype: str) -> float:
    """u: half the distance from 1 to the next number."""
    return float(jnp.finfo(dtype).eps) / 2


@dataclass(frozen=True)
class Judge:
    """What a bound depends on besides the tensor itself, for one variant in one dtype."""

    case: Case
    variant: Variant
    dtype: str
    max_score: float
    """max|score|, which counts in float64."""

    def measure(
        self, tensor: str, ours: np.ndarray | None, twin: np.ndarray | None, truth: np.ndarray | None
    ) -> Measurement:
        """One tensor of JAX's against PyTorch's, where `truth` is PyTorch's in float64."""
        mismatch, error, bound, twin_error = "", 0.0, 0.0, 0.0
        if ours is None or twin is None or truth is None:
            mismatch = "" if ours is twin is truth else "one side alone has it"
        else:
            mismatch = _different_form(ours, twin) or _different_extremes(ours, truth)
            if not mismatch:
                absolute = tensor in self.variant.vanishing
                error, twin_error = (_error(x, truth, absolute) for x in (ours, twin))
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


def compare_variant(case: Case, variant: Variant, dtype: str) -> list[Measurement]:
    """Both sides run, and every tensor of theirs measured."""
    numbers = make_numbers(case, variant, dtype)
    torch_run = run_torch(case, variant, numbers, dtype, dtype)
    oracle = torch_run if dtype == "float64" else run_torch(case, variant, numbers, "float64", dtype)
    jax_run = run_jax(case, variant, numbers, dtype, torch_run)
    return compare_runs(case, variant, dtype, jax_run, torch_run, oracle)


def compare_runs(
    case: Case, variant: Variant, dtype: str, jax_run: Run, torch_run: Run, oracle: Run
) -> list[Measurement]:
    """Every tensor of two runs measured; the oracle is PyTorch's in float64."""
    judge = Judge(case, variant, dtype, oracle.max_score)
    names = sorted(torch_run.tensors.keys() | jax_run.tensors.keys())
    return [judge.measure(name, *(run.tensors.get(name) for run in (jax_run, torch_run, oracle))) for name in names]


def compare_case(case: Case, dtype: str) -> list[Measurement]:
    """All variants of a case."""
    variants = [variant for variant in case.variants if dtype in variant.dtypes]
    return [measurement for variant in variants for measurement in compare_variant(case, variant, dtype)]


def _error(x: np.ndarray, truth: np.ndarray, absolute: bool) -> float:
    if not is_floating(truth):  # ids, masks
        return float(np.sum(x != truth))
    return relative_error(x, truth, absolute)


def relative_error(x: np.ndarray, truth: np.ndarray, absolute: bool = False) -> float:
    """max|x − o| / max|o| over what is finite in o; absolute where o is 0."""
    finite = np.isfinite(truth.astype(np.float64))
    x, truth = x.astype(np.float64)[finite], truth.astype(np.float64)[finite]
    if truth.size == 0:
        return 0.0
    scale = float(np.abs(truth).max())
    return float(np.abs(x - truth).max()) / (1.0 if absolute or scale == 0 else scale)


def _different_form(ours: np.ndarray, twin: np.ndarray) -> str:
    """Shape and dtype. Of integers the kind: PyTorch counts in int64, JAX in int32 unless x64 is on."""
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
    for name, found, expected in (
        ("NaN", np.isnan(ours), np.isnan(truth)),
        ("inf", np.isposinf(ours), np.isposinf(truth)),
        ("−inf", np.isneginf(ours), np.isneginf(truth)),
    ):
        if not np.array_equal(found, expected):
            return f"{name} in {found.sum()} places in JAX, in {expected.sum()} in PyTorch, not the same ones"
    return ""
