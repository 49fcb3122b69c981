"""Run both sides, and measure how far apart they are and how far they may be.

Errors are measured by tensor: e(x) = max|x − truth| / max|truth|, where the truth is the PyTorch side in float64 on the
same rounded inputs and weights. (By element, two correct float64 gradients at scores of ±1e4 differ by 100 %.) With u
the unit roundoff:

    float64     e(jax) ≤ 1e-12 + 16 u max|score|
    narrower    e(jax) ≤ 2 e(torch) + c u

An adaptive case adds 16 u a in float64, where a = e(torch in float32) / u(float32) is how much the tensor amplifies
rounding. So the gradient of a bias before a batch norm, which is zero except for rounding, is no failure.

There the errors are means over a few draws of weights and directions: in a single one PyTorch's error may be small by
chance, and about one draw in ten then missed the bound. Where the truth is 0 the errors are absolute. Shapes and dtypes
must be equal, and NaN and the infinities must stand in the same places.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from parity_tests.your_port.measure.case import Case, Variant
from parity_tests.your_port.measure.jax_side import Transform, run_jax
from parity_tests.your_port.measure.numbers import Numbers, Run, is_floating, make_numbers
from parity_tests.your_port.place.taps import recording

NO_DIGITS = 0.1
"""An error of PyTorch's own that leaves no digit: the tensor is zero except for rounding."""
DRAWS = 8
"""The draws of weights and directions over which errors below float64 are averaged."""


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
    torch_error: float = 0.0
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
    """The runs of one variant: JAX, PyTorch, and PyTorch in float64 on the same rounded numbers."""

    jax: Run
    torch: Run
    truth: Run


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
    narrow = "float32" if dtype == "float64" and (case.inside or case.adaptive) else dtype
    torch_run = truth = run_torch_side(case, variant, numbers, dtype, narrow, record)
    if narrow != "float64":
        truth = run_torch_side(case, variant, numbers, dtype, "float64", record)
    with recording() if record else nullcontext() as trace:
        given = numbers if jax_numbers is None else jax_numbers
        jax_run = run_jax(case, variant, given, dtype, given.directions(torch_run), transform)
    return Runs(replace(jax_run, trace=trace), torch_run, truth)


def run_torch_side(case: Case, variant: Variant, numbers: Numbers, of: str, dtype: str, record: bool = False) -> Run:
    """Run PyTorch in `dtype` on numbers rounded to the dtype `of`, or read that run from its record."""
    if case.torch.golden is not None:
        return case.torch.golden.run(variant.name, of, dtype)
    from parity_tests.your_port.measure.torch_side import run_torch  # which a machine that has a record need not have

    with recording() if record else nullcontext() as trace:
        run = run_torch(case, variant, numbers, dtype)
    return replace(run, trace=trace)


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
        self, tensor: str, in_jax: np.ndarray | None, in_torch: np.ndarray | None, truth: np.ndarray | None
    ) -> Measurement:
        """Measure one tensor of JAX against PyTorch's; `truth` is PyTorch's in float64."""
        mismatch, error, bound, torch_error = "", 0.0, 0.0, 0.0
        if in_jax is None or in_torch is None or truth is None:
            mismatch = "" if in_jax is in_torch is truth else "only one side has it"
        else:
            like = truth if self.dtype == "float64" else in_torch
            mismatch = _different_form(in_jax, like) or _different_extremes(in_jax, truth)
            if not mismatch:
                absolute = tensor in self.variant.vanishing
                error, torch_error = (relative_error(x, truth, absolute) for x in (in_jax, in_torch))
                bound = self._bound(torch_error, truth)
        return Measurement(self.case.name, self.variant.name, self.dtype, tensor, error, bound, torch_error, mismatch)

    def _bound(self, torch_error: float, truth: np.ndarray) -> float:
        if not is_floating(truth):
            return 0.0
        if self.dtype == "float64" and not self.case.inside:
            bound = 1e-12 if self.case.bound is None else self.case.bound
            amplified = torch_error / unit_roundoff("float32") if self.case.adaptive else 0.0
            highest = self.max_score + (amplified if np.isfinite(amplified) else 0.0)
            return bound + 16 * unit_roundoff("float64") * highest
        u = unit_roundoff(self.case.inside if self.dtype == "float64" else self.dtype)
        if self.case.adaptive and torch_error > NO_DIGITS:
            return 16 * torch_error
        factor = self.case.factor if self.variant.factor is None else self.variant.factor
        return 2 * torch_error + factor * u


def compare_runs(case: Case, variant: Variant, dtype: str, runs: Runs) -> list[Measurement]:
    """Measure every tensor of the runs."""
    judge = Judge(case, variant, dtype, runs.truth.max_score)
    names = sorted(runs.torch.tensors.keys() | runs.jax.tensors.keys())
    return [judge.measure(name, *(run.tensors.get(name) for run in runs)) for name in names]


def name_of_draw(variant: str, draw: int) -> str:
    """Name the draws of a variant; the first has the variant's own name."""
    return f"{variant} {draw}" if draw else variant


def compare_variant(case: Case, variant: Variant, dtype: str, transform: Transform = jax.jit) -> list[Measurement]:
    """Run both sides and measure every tensor; below float64 for several draws of weights and directions."""
    by_draw = []
    draws = case.torch.golden.draws(dtype) if case.torch.golden is not None else DRAWS
    for draw in range(1 if dtype == "float64" else draws):
        drawn = replace(variant, name=name_of_draw(variant.name, draw))
        numbers = make_numbers(case, drawn, dtype)
        if draw and not numbers.weights and not numbers.differentiated:
            break  # nothing is drawn
        by_draw.append(compare_runs(case, variant, dtype, run_both(case, drawn, numbers, dtype, transform=transform)))
    return [mean_of_draws(measured) for measured in zip(*by_draw, strict=True)]


def mean_of_draws(measured: tuple[Measurement, ...]) -> Measurement:
    """Return one tensor's mean error and bound over the draws, and what makes it incomparable in any of them."""
    mismatch = next((m.mismatch for m in measured if m.mismatch), "")
    error, bound, torch_error = (
        float(np.mean(values)) for values in zip(*((m.error, m.bound, m.torch_error) for m in measured), strict=True)
    )
    return replace(measured[0], error=error, bound=bound, torch_error=torch_error, mismatch=mismatch)


def compare_case(case: Case, dtype: str) -> list[Measurement]:
    """Compare all variants of a case that have this dtype."""
    variants = [variant for variant in case.variants if dtype in variant.dtypes]
    return [measurement for variant in variants for measurement in compare_variant(case, variant, dtype)]


def relative_error(x: np.ndarray, truth: np.ndarray, absolute: bool = False) -> float:
    """Compute max|x − truth| / max|truth| over finite entries, absolute where that is 0; or count wrong ids."""
    if not is_floating(truth):
        return float(np.sum(x != truth))
    finite = np.isfinite(truth.astype(np.float64))
    x, truth = x.astype(np.float64)[finite], truth.astype(np.float64)[finite]
    if truth.size == 0:
        return 0.0
    scale = float(np.abs(truth).max())
    return float(np.abs(x - truth).max()) / (1.0 if absolute or scale == 0 else scale)


def _different_form(in_jax: np.ndarray, in_torch: np.ndarray) -> str:
    """Compare shapes and dtypes. All integers count as one dtype: PyTorch's are int64, JAX's int32 without x64."""
    if in_jax.shape != in_torch.shape:
        return f"shape {list(in_jax.shape)} in JAX, {list(in_torch.shape)} in PyTorch"
    both_integers = in_jax.dtype.kind == in_torch.dtype.kind == "i"
    if in_jax.dtype != in_torch.dtype and not both_integers:
        return f"dtype {in_jax.dtype} in JAX, {in_torch.dtype} in PyTorch"
    return ""


def _different_extremes(in_jax: np.ndarray, truth: np.ndarray) -> str:
    if not is_floating(in_jax):
        return ""
    in_jax, truth = in_jax.astype(np.float64), truth.astype(np.float64)
    for name, test in (("NaN", np.isnan), ("inf", np.isposinf), ("−inf", np.isneginf)):
        found, expected = test(in_jax), test(truth)
        if not np.array_equal(found, expected):
            return f"{name} in {found.sum()} places in JAX, in {expected.sum()} in PyTorch, not the same ones"
    return ""
