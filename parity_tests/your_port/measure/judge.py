"""Judge how far apart two programs' tensors are, and how far they may be.

The truth is the PyTorch side in float64 on the same rounded inputs and weights. Each entry's error is measured beside
the entries of about its own size (see `errors`), and may grow with how much rounding matters there, which PyTorch shows
by its own error e in a narrower dtype. With u the unit roundoff:

    float64     |jax − truth| ≤ (1e-12 + 16 u max|score|) size + 256 u e / u(float32), where e is PyTorch's in float32
    narrower    |jax − truth| ≤ c u size + 2 e (4 e if e > c u size), in the median of draws of weights and directions

Where the truth itself is no more than the rounding of float64, such as the gradient of a bias before a batch norm, no
digit means anything: JAX's may be 16 e in narrower dtypes, and the measurement says `only_rounding`. By chance e itself
may be 0 there, so in float64 a gradient may also be off by 16 u max(1, max|score|) min(1, the run's largest gradient).
Of whole numbers the wrong ones are counted: in narrower dtypes JAX may have twice as many as PyTorch and one in 1000.
Shapes and dtypes must be equal, except that PyTorch may end in float32 where JAX stays in float64. NaN and the
infinities must stand in the same places.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from parity_tests.your_port.measure.arrays import is_floating
from parity_tests.your_port.measure.case import Case, Variant
from parity_tests.your_port.measure.errors import (
    DECADES,
    DECADES_OF_FLOAT32,
    differing_extremes,
    neighbours,
    relative_error,
    unit_roundoff,
)
from parity_tests.your_port.measure.numbers import Run, gradient_of

LUCK = 256
"""In float64, where there is one draw: a single entry's error in float32 is this much too small once in 300 times."""


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
    is_gradient: bool = False

    @property
    def run_dtype(self) -> str:
        """The dtype of the run, with jit or without."""
        return self.dtype.partition(" ")[0]

    @property
    def failed(self) -> bool:
        return bool(self.mismatch) or not self.error <= self.bound or self.error == np.inf

    @property
    def share(self) -> float:
        """The share of its bound that the error takes; more than 1 is a failure, and mere rounding takes none."""
        if self.mismatch:
            return np.inf
        return 0.0 if self.only_rounding else float(_shares(np.asarray(self.error), np.asarray(self.bound)))

    @property
    def difference(self) -> str:
        """By how much the two differ, or in what."""
        rule = f" of {self.rule}" if self.rule != self.run_dtype else ""
        return self.mismatch or f"error {self.error:.3g}, bound{rule} {self.bound:.3g}"

    def __str__(self) -> str:
        return f"{self.case} | {self.variant} | {self.dtype} | {self.tensor}: {self.difference}"


class Runs(NamedTuple):
    """The runs of one variant: JAX, PyTorch in the narrower dtype, and in float64 on the same rounded numbers."""

    jax: Run
    torch: Run
    truth: Run


@dataclass(frozen=True)
class Judge:
    """Measures the tensors of one variant in one dtype."""

    case: Case
    variant: Variant
    dtype: str
    truth: Run
    """PyTorch in float64, whose scores and gradients say how much rounding there is where nothing else is left."""
    sides: tuple[str, str] = ("JAX", "PyTorch")
    """What the two are called."""

    @property
    def rule(self) -> str:
        return self.case.inside or "float64" if self.dtype == "float64" else self.dtype

    @cached_property
    def rounding_of_gradients(self) -> float:
        """16 u max|score| of the largest gradient, which counts at most as 1; any gradient may have it as its error.

        A score counts at least as 1: where terms of about 1 cancel, such as in the gradient of a bias before a batch
        norm, their rounding is left, whether there is a softmax or not.
        """
        sizes = (np.abs(x[np.isfinite(x)]).max(initial=0.0) for x in self.truth.gradients.values() if x is not None)
        return 16 * unit_roundoff("float64") * max(1.0, self.truth.max_score) * min(1.0, max(sizes, default=0.0))

    def measure(
        self,
        name: str,
        in_jax: np.ndarray | None,
        in_torch: np.ndarray | None,
        truth: np.ndarray | None,
        *,
        is_gradient: bool = False,
    ) -> Measurement:
        """Measure one tensor of JAX against PyTorch's; `truth` is PyTorch's in float64."""
        tensor, where = gradient_of(name) if is_gradient else name, (self.case.name, self.variant.name, self.dtype)
        found = Measurement(*where, tensor, 0.0, 0.0, rule=self.rule, is_gradient=is_gradient)
        if in_jax is None or in_torch is None or truth is None:
            return replace(found, mismatch="" if in_jax is in_torch is truth else "only one side has it")
        like = truth if self.dtype == "float64" else in_torch
        if mismatch := self._different_form(in_jax, like) or differing_extremes(in_jax, truth, self.sides):
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

    def compare(self, runs: Runs) -> list[Measurement]:
        """Measure every tensor of these runs: outputs, then gradients, in the order of their names."""
        found = list[Measurement]()
        for is_gradient in (False, True):
            sides = [run.gradients if is_gradient else run.outputs for run in runs]
            names = sorted({name for side in sides for name in side})
            found += (self.measure(n, *(side.get(n) for side in sides), is_gradient=is_gradient) for n in names)
        return found

    def _different_form(self, in_jax: np.ndarray, in_torch: np.ndarray) -> str:
        """Compare shapes and dtypes. All integers count as one dtype: PyTorch's are int64, JAX's int32 without x64."""
        one, other = self.sides
        if in_jax.shape != in_torch.shape:
            return f"shape {list(in_jax.shape)} in {one}, {list(in_torch.shape)} in {other}"
        both_integers = in_jax.dtype.kind == in_torch.dtype.kind == "i"
        is_cast = is_cast_from(in_jax, in_torch) or (self.case.inside and is_cast_from(in_torch, in_jax))
        if in_jax.dtype != in_torch.dtype and not both_integers and not is_cast:
            return f"dtype {in_jax.dtype} in {one}, {in_torch.dtype} in {other}"
        return ""

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
        shares = _shares(errors, bounds)
        passed = is_rounding & (shares <= 1)
        i = int(np.argmax(np.where(passed, shares - 2, shares)))
        error, bound, torch_error = (float(x[i] / sizes[i]) for x in (errors, bounds, noise))
        return replace(found, error=error, bound=bound, torch_error=torch_error, only_rounding=bool(passed[i]))


def _shares(errors: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Divide errors by their bounds; no error takes nothing of a bound of 0, and what has no share counts as wrong."""
    with np.errstate(over="ignore", invalid="ignore"):
        shares = np.divide(errors, bounds, out=np.where(errors == 0, 0.0, np.inf), where=bounds != 0)
    return np.where(np.isnan(shares), np.inf, shares)


def median_of_draws(measured: Sequence[Measurement]) -> Measurement:
    """Return the measurement of the median draw of a tensor, or one that makes it incomparable."""
    in_order = sorted(measured, key=lambda m: m.share)
    return in_order[-1 if in_order[-1].mismatch else len(in_order) // 2]


def is_cast_from(wide: np.ndarray, x: np.ndarray) -> bool:
    """Whether a program casts its result to float32, whatever comes in, and the other one does not."""
    return wide.dtype == np.float64 and x.dtype == np.float32
