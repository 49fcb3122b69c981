"""Run both sides, and measure how far apart they are and how far they may be.

The truth is the PyTorch side in float64 on the same rounded inputs and weights. Each entry's error is measured beside
the entries of about its own size (see `errors`), and may grow with how much rounding matters there, which PyTorch shows
by its own error e in a narrower dtype. With u the unit roundoff:

    float64     |jax − truth| ≤ (1e-12 + 16 u max|score|) size + 256 u e / u(float32), where e is PyTorch's in float32
    narrower    |jax − truth| ≤ c u size + 2 e, in the median of a few draws of weights and directions

Where the truth itself is no more than the rounding of float64, such as the gradient of a bias before a batch norm, no
digit means anything: JAX's may be 16 e in narrower dtypes, and the measurement says `only_rounding`. By chance e itself
may be 0 there, so in float64 a gradient may also be off by 16 u max(1, max|score|) min(1, the run's largest gradient).
Of whole numbers the wrong ones are counted: in narrower dtypes JAX may have twice as many as PyTorch and one in 1000.
Shapes and dtypes must be equal, and NaN and the infinities must stand in the same places.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import jax
import numpy as np

from parity_tests.your_port.measure.case import Case, Variant
from parity_tests.your_port.measure.errors import (
    DECADES,
    DECADES_OF_FLOAT32,
    differing_extremes,
    is_floating,
    neighbours,
    relative_error,
    unit_roundoff,
)
from parity_tests.your_port.measure.jax_side import Transform, narrow_inside, run_jax, without_jit
from parity_tests.your_port.measure.numbers import Numbers, Run, make_numbers, name_of_draw
from parity_tests.your_port.measure.taps import Tensor, recording

DRAWS = 8
"""The draws of weights and directions below float64: in one alone PyTorch's error may be small by chance."""
ALONE = "outputs alone"
"""The end of the dtype of a measurement of the program that computes no gradients."""
LUCK = 256
"""In float64, for the same reason: a single entry's error in float32 is this much too small once in 300 times."""


@dataclass(frozen=True)
class Measurement:
    """One tensor of one variant: the error and the bound of its worst entry, or what makes the two incomparable."""

    case: str
    variant: str
    dtype: str
    tensor: str
    error: float
    """JAX's, against PyTorch in float64."""
    bound: float
    torch_error: float = 0.0
    """PyTorch's, against itself in float64; in float64 that of its run in float32."""
    mismatch: str = ""
    rule: str = "float64"
    """The dtype by whose rule it was judged: a run in float64 with a narrower part inside has that one's."""
    only_rounding: bool = False
    """Whether it is zero except for rounding in PyTorch, and within the bound in JAX."""

    @property
    def is_gradient(self) -> bool:
        return self.tensor.startswith("gradient of ")

    @property
    def run_dtype(self) -> str:
        """The dtype of the run, with jit or without."""
        return self.dtype.partition(" ")[0]

    @property
    def failed(self) -> bool:
        return bool(self.mismatch) or not self.error <= self.bound

    @property
    def share(self) -> float:
        """The share of its bound that the error takes; more than 1 is a failure, and mere rounding takes none."""
        if self.mismatch:
            return np.inf
        return 0.0 if self.only_rounding else self.error / self.bound if self.bound else float(self.error > 0)

    @property
    def difference(self) -> str:
        """By how much the two differ, or in what."""
        rule = f" of {self.rule}" if self.rule != self.run_dtype else ""
        return self.mismatch or f"error {self.error:.3g}, bound{rule} {self.bound:.3g}"

    def __str__(self) -> str:
        return f"{self.case} | {self.variant} | {self.dtype} | {self.tensor}: {self.difference}"


class Judged:
    """What has measurements; it is true where all of them are within their bounds: `assert compare(…)`."""

    measurements: tuple[Measurement, ...]

    @property
    def failed(self) -> list[Measurement]:
        """The tensors outside of their bounds."""
        return [m for m in self.measurements if m.failed]

    @property
    def agrees(self) -> bool:
        """Whether every tensor stays within its bound."""
        return not self.failed

    def __bool__(self) -> bool:
        return self.agrees


class Runs(NamedTuple):
    """The runs of one variant: JAX, PyTorch in the narrower dtype, and in float64 on the same rounded numbers."""

    jax: Run
    torch: Run
    truth: Run


def run_both(
    case: Case,
    variant: Variant,
    numbers: Numbers,
    dtype: str,
    *,
    transform: Transform = jax.jit,
    record: bool = False,
) -> Runs:
    """Run both sides on the same numbers.

    To `record` adds PyTorch's intermediate tensors, and runs JAX operation by operation, as where its own are recorded.
    """
    narrow = "float32" if dtype == "float64" else dtype
    torch_run, truth = (run_torch_side(case, variant, numbers, dtype, side, record) for side in (narrow, "float64"))
    way = without_jit if record else transform
    return Runs(run_jax(case, variant, numbers, dtype, numbers.directions(truth), way), torch_run, truth)


def run_torch_side(case: Case, variant: Variant, numbers: Numbers, of: str, dtype: str, record: bool = False) -> Run:
    """Run PyTorch in `dtype` on numbers rounded to the dtype `of`, or read that run from its record."""
    if case.torch.golden is not None:
        return case.torch.golden.run(variant.name, of, dtype, record)
    from parity_tests.your_port.measure.torch_side import run_torch  # which a machine that has a record need not have

    with recording() if record else nullcontext(list[Tensor]()) as trace:
        run = run_torch(case, variant, numbers, dtype)
    return replace(run, trace=trace)


def fitting(case: Case, variant: Variant, numbers: Numbers) -> Case:
    """Return the case with the rule that fits its runs in float64: float32's where either side computes in float32."""
    if case.inside:
        return case
    in_torch = run_torch_side(case, variant, numbers, "float64", "float64").is_narrow_inside
    return replace(case, inside=narrow_inside(case, variant, numbers) or "float32" * in_torch)


@dataclass(frozen=True)
class Judge:
    """Measures the tensors of one variant in one dtype."""

    case: Case
    variant: Variant
    dtype: str
    truth: Run
    """PyTorch in float64, whose scores and gradients say how much rounding there is where nothing else is left."""

    @property
    def rule(self) -> str:
        return self.case.inside or "float64" if self.dtype == "float64" else self.dtype

    @cached_property
    def rounding_of_gradients(self) -> float:
        """16 u max|score| of the largest gradient, which counts at most as 1; any gradient may have it as its error.

        A score counts at least as 1: where terms of about 1 cancel, such as in the gradient of a bias before a batch
        norm, their rounding is left, whether there is a softmax or not.
        """
        sizes = (np.abs(x[np.isfinite(x)]).max(initial=0.0) for x in self.truth.gradients().values() if x is not None)
        return 16 * unit_roundoff("float64") * max(1.0, self.truth.max_score) * min(1.0, max(sizes, default=0.0))

    def measure(
        self, tensor: str, in_jax: np.ndarray | None, in_torch: np.ndarray | None, truth: np.ndarray | None
    ) -> Measurement:
        """Measure one tensor of JAX against PyTorch's; `truth` is PyTorch's in float64."""
        found = Measurement(self.case.name, self.variant.name, self.dtype, tensor, 0.0, 0.0, rule=self.rule)
        if in_jax is None or in_torch is None or truth is None:
            return replace(found, mismatch="" if in_jax is in_torch is truth else "only one side has it")
        like = truth if self.dtype == "float64" else in_torch
        if mismatch := _different_form(in_jax, like) or differing_extremes(in_jax, truth):
            return replace(found, mismatch=mismatch)
        if not is_floating(truth):
            own = 0.0 if self.rule == "float64" else relative_error(in_torch, truth)  # where rounding is a tie
            most = 0.0 if self.rule == "float64" else 2 * own + truth.size // 1000
            return replace(found, error=relative_error(in_jax, truth), bound=most, torch_error=own)
        finite = np.isfinite(truth.astype(np.float64))
        in_torch = in_torch if in_torch.shape == truth.shape else truth
        arrays = (x.astype(np.float64)[finite] for x in (in_jax, in_torch, truth))
        with np.errstate(over="ignore"):  # beside finfo.min, and of numbers that are nearly 0
            return self._worst(found, *arrays) if finite.any() else found

    def _worst(self, found: Measurement, in_jax: np.ndarray, in_torch: np.ndarray, truth: np.ndarray) -> Measurement:
        """Measure the worst entry, if possible one that is more than rounding."""
        wide = self.rule == "float64"
        noise = np.abs(in_torch - truth)
        sizes, noise, own = neighbours(
            truth, np.where(np.isfinite(noise), noise, 0.0), DECADES if wide else DECADES_OF_FLOAT32
        )
        narrow = "float32" if self.dtype == "float64" else self.dtype
        in_float64 = LUCK * unit_roundoff("float64") / unit_roundoff(narrow) * noise
        of_gradients = self.rounding_of_gradients if found.is_gradient else 0.0
        is_rounding = np.maximum(in_float64, LUCK * of_gradients) > own
        if wide:
            relative = 1e-12 if self.case.bound is None else self.case.bound
            relative += 16 * unit_roundoff("float64") * self.truth.max_score
            bounds = relative * sizes + in_float64 + of_gradients
        else:
            rounding = self.case.factor * unit_roundoff(self.rule) * sizes
            # Terms that cancel leave the rounding of what was before, and that is not the same in two libraries.
            bounds = rounding + np.where(noise > rounding, 4, 2) * noise
            of_gradients *= unit_roundoff(self.rule) / unit_roundoff("float64")
            bounds = np.where(is_rounding, np.maximum(16 * noise, of_gradients) + bounds, bounds)
        errors = np.abs(in_jax - truth)
        shares = errors / bounds
        passed = is_rounding & (shares <= 1)
        i = int(np.argmax(np.where(passed, shares - 2, shares)))
        error, bound, torch_error = (float(x[i] / sizes[i]) for x in (errors, bounds, noise))
        return replace(found, error=error, bound=bound, torch_error=torch_error, only_rounding=bool(passed[i]))


def compare_runs(case: Case, variant: Variant, dtype: str, runs: Runs) -> list[Measurement]:
    """Measure every tensor of the runs."""
    judge = Judge(case, variant, dtype, runs.truth)
    names = sorted(runs.torch.tensors.keys() | runs.jax.tensors.keys())
    return [judge.measure(name, *(run.tensors.get(name) for run in runs)) for name in names]


def compare_variant(
    case: Case, variant: Variant, dtype: str, transform: Transform = jax.jit, alone: bool = False
) -> list[Measurement]:
    """Run both sides and measure every tensor; below float64 for several draws of weights and directions.

    If outputs are also to be computed `alone`, by a program without gradients, these measurements have the dtype
    `float64 outputs alone`.
    """
    by_draw = []
    draws = case.torch.golden.draws(dtype) if case.torch.golden is not None else DRAWS
    for draw in range(1 if dtype == "float64" else draws):
        drawn = replace(variant, name=name_of_draw(variant.name, draw))
        numbers = make_numbers(case, drawn, dtype)
        if draw and not numbers.weights and not numbers.differentiated:
            break  # nothing is drawn
        runs = run_both(case, drawn, numbers, dtype, transform=transform)
        measured = compare_runs(case, variant, dtype, runs)
        if alone and runs.jax.gradients():
            judge, by_itself = (
                Judge(case, variant, dtype, runs.truth),
                run_jax(case, drawn, numbers, dtype, {}, transform),
            )
            for name, x in by_itself.tensors.items():
                found = judge.measure(name, x, runs.torch.tensors.get(name), runs.truth.tensors.get(name))
                measured.append(replace(found, dtype=f"{dtype} {ALONE}"))
        by_draw.append(measured)
    return [median_of_draws(measured) for measured in zip(*by_draw, strict=True)]


def median_of_draws(measured: Sequence[Measurement]) -> Measurement:
    """Return the measurement of the median draw of a tensor, or one that makes it incomparable."""
    in_order = sorted(measured, key=lambda m: m.share)
    return in_order[-1 if in_order[-1].mismatch else len(in_order) // 2]


def compare_case(case: Case, dtype: str) -> list[Measurement]:
    """Compare all variants of a case that have this dtype."""
    variants = [variant for variant in case.variants if dtype in variant.dtypes]
    return [measurement for variant in variants for measurement in compare_variant(case, variant, dtype)]


def _different_form(in_jax: np.ndarray, in_torch: np.ndarray) -> str:
    """Compare shapes and dtypes. All integers count as one dtype: PyTorch's are int64, JAX's int32 without x64."""
    if in_jax.shape != in_torch.shape:
        return f"shape {list(in_jax.shape)} in JAX, {list(in_torch.shape)} in PyTorch"
    both_integers = in_jax.dtype.kind == in_torch.dtype.kind == "i"
    if in_jax.dtype != in_torch.dtype and not both_integers:
        return f"dtype {in_jax.dtype} in JAX, {in_torch.dtype} in PyTorch"
    return ""
