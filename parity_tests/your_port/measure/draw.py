"""Run both programs of a case on the same numbers, each once, and measure every tensor."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from parity_tests.your_port.measure.case import Case, Variant
from parity_tests.your_port.measure.jax_side import Transform, run_jax, trace_jax
from parity_tests.your_port.measure.judge import Judge, Measurement, Runs, median_of_draws
from parity_tests.your_port.measure.numbers import Numbers, Run, make_numbers
from parity_tests.your_port.measure.op_by_op import Program
from parity_tests.your_port.measure.taps import Tensor, recording

DRAWS = 8
"""The draws of weights and directions below float64: in one alone PyTorch's error may be small by chance."""


@dataclass(frozen=True, eq=False)
class Draw:
    """A draw of a variant's numbers in one dtype, and the runs of both programs on it.

    Each run is made when it is first asked for, and kept. Draws with the same `kept` share their runs. So a case that
    puts weights into other places, or has another bound, need not run PyTorch again.
    """

    case: Case
    variant: Variant
    dtype: str
    kept: dict[Any, Any] = field(default_factory=dict)
    """What was run, by the variant's name, the dtype, the side, and how it ran."""
    given: Numbers | None = None
    """Other numbers than those that are drawn for the variant."""

    def _once(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        key = (self.variant.name, self.dtype, *key)
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    def on(self, numbers: Numbers) -> "Draw":
        """Return the same programs on other numbers."""
        return replace(self, given=numbers, kept={})

    def beside(self, case: Case) -> "Draw":
        """Return another case, whose PyTorch side is another, on the same numbers."""
        return replace(self, case=case, given=self.numbers, kept={})

    @property
    def numbers(self) -> Numbers:
        """What both sides are given."""
        return self.given or self._once(("numbers",), lambda: make_numbers(self.case, self.variant, self.dtype))

    @property
    def narrow(self) -> str:
        """The dtype in which PyTorch shows how much rounding matters."""
        return "float32" if self.dtype == "float64" else self.dtype

    def in_torch(self, dtype: str = "float64", record: bool = False) -> Run:
        """Run PyTorch in a dtype, or read that run from its record; to `record` adds the intermediate tensors."""

        def run() -> Run:
            if self.case.torch.golden is not None:
                return self.case.torch.golden.run(self.variant.name, self.dtype, dtype, record)
            # Where there is a record, PyTorch may be missing.
            from parity_tests.your_port.measure.torch_side import run_torch

            with recording() if record else nullcontext(list[Tensor]()) as trace:
                return replace(run_torch(self.case, self.variant, self.numbers, dtype), trace=trace)

        return self._once(("torch", dtype, record), run)

    def in_jax(self, transform: Transform = jax.jit, gradients: bool = True) -> Run:
        """Run JAX, with the gradients along the directions of PyTorch's outputs or without any."""

        def run() -> Run:
            directions = self.numbers.directions(self.in_torch()) if gradients else {}
            return run_jax(self.case, self.variant, self.numbers, self.dtype, directions, transform)

        return self._once((self.case.jax, transform, gradients), run)

    def traced(self) -> tuple[Program, Any]:
        """Trace the JAX side; return its program, and the shapes of its results."""
        key = (self.variant.name, self.dtype, self.case.jax, "traced")
        traced: tuple[Program, Any] = self.kept.get(key) or trace_jax(self.case, self.variant, self.numbers, self.dtype)
        if not traced[0].tables:  # which would stay with it: see `enable_x64`
            self.kept[key] = traced
        return traced

    def runs(self, transform: Transform = jax.jit) -> Runs:
        """Run both sides."""
        return self.against(self.in_jax(transform))

    def against(self, run: Run) -> Runs:
        """Put a run in JAX's place."""
        return Runs(run, self.in_torch(self.narrow), self.in_torch())

    def measure(self, transform: Transform = jax.jit) -> list[Measurement]:
        """Run both sides, and measure every tensor."""
        return self.compare(self.runs(transform))

    def compare(self, runs: Runs) -> list[Measurement]:
        """Measure every tensor of these runs, in the order of their names."""
        return sorted(self.judge(runs.truth).compare(runs), key=lambda m: m.tensor)

    def judge(self, truth: Run) -> Judge:
        """Return what measures a tensor, by the rule of the case."""
        return Judge(self.case, self.variant, self.dtype, truth)

    def measure_draws(self, alone: bool = False) -> list[Measurement]:
        """Measure every tensor; where float32 or less is in play, in several draws, of which the median counts.

        If outputs are also to be computed `alone`, by a program without gradients, these measurements have the dtype
        `float64 outputs alone`.
        """
        by_draw = [draw.measure() + (draw._measure_alone() if alone else []) for draw in self.redrawn()]
        of_variant = (median_of_draws(measured) for measured in zip(*by_draw, strict=True))
        return [replace(m, variant=self.variant.name) for m in of_variant]

    def redrawn(self) -> Iterator["Draw"]:
        """Yield this draw and, where float32 or less is in play, others of weights and directions."""
        golden = self.case.torch.golden
        exact = self.dtype == "float64" and not self.case.inside
        yield self
        for number in range(1, 1 if exact else DRAWS if golden is None else golden.draws(self.dtype)):
            variant = replace(self.variant, name=f"{self.variant.name} {number}")
            draw = Draw(self.case, variant, self.dtype)
            if not draw.numbers.weights and not draw.numbers.differentiated:
                return  # nothing is drawn
            yield draw

    def _measure_alone(self) -> list[Measurement]:
        if not self.in_jax().gradients:
            return []
        runs = self.against(self.in_jax(gradients=False))
        measured = self.compare(Runs(*(replace(run, gradients={}) for run in runs)))
        return [replace(m, dtype=f"{self.dtype} outputs alone") for m in measured]

    def fitting(self) -> "Draw":
        """Return the draw with the rule that fits its runs in float64: float32's where a side computes in float32."""
        if self.case.inside or self.dtype != "float64":
            return self
        inside = self.narrowest_in_jax or "float32" * self.in_torch().is_narrow_inside
        return replace(self, case=replace(self.case, inside=inside))

    @property
    def narrowest_in_jax(self) -> str:
        """The narrowest floating dtype below float64 in which JAX computes a part of its run; "" if there is none."""
        found = self.traced()[0].dtypes
        return next((name for name in ("float16", "bfloat16", "float32") if jnp.dtype(name) in found), "")


def compare_case(case: Case, dtype: str) -> list[Measurement]:
    """Compare all variants of a case that have this dtype."""
    draws = (Draw(case, variant, dtype) for variant in case.variants if dtype in variant.dtypes)
    return [measurement for draw in draws for measurement in draw.measure_draws()]
