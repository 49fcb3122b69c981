"""Find the first tensor in which two programs differ, and the likely mistake.

Both run once more with every intermediate tensor recorded (see `parity_tests.taps`). The tensors are compared in the
order of their computation: values from the inputs on, then gradients from the outputs back. The first that differs by
more than its bound lies between what is known to be right and what is known to be wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from parity_tests.case import Case, Variant
from parity_tests.comparison import Judge, Runs, compare_runs, run_both
from parity_tests.diagnosis.symptoms import describe, report
from parity_tests.numbers import Numbers, is_floating, make_numbers

Phase = Literal["forward", "backward"]


@dataclass(frozen=True)
class Divergence:
    """Where two programs differ first."""

    case: str
    variant: str
    dtype: str
    phase: Phase
    tensor: str
    """The first that differs: an intermediate, an output, or the `gradient of` one of them, of an input or a weight."""
    difference: str
    """By how much, or in what."""
    agreed: tuple[str, ...]
    """The tensors that were compared before it, and agree."""
    symptoms: tuple[str, ...]
    """What the difference looks like."""
    traps: tuple[str, ...]
    """Known mistakes that fit: with each made on purpose, or undone, the two agree."""

    def __str__(self) -> str:
        last = f"the last that agrees is {self.agreed[-1]}" if self.agreed else "nothing before it could be compared"
        where = f"{self.case} | {self.variant} | {self.dtype}: the {self.phase} pass differs at {self.tensor}"
        return report(f"{where}: {self.difference}; {last}", self.symptoms, self.traps)


Tensor = tuple[Phase, str, list[Any]]
"""Phase, name, and the tensor of JAX, of PyTorch and of PyTorch in float64."""


def find_divergence(case: Case, variant: Variant | None = None, dtype: str = "float64") -> Divergence | None:
    """Find the first tensor in which a case's two programs differ; None if they agree.

    Args:
        case: one of the registry, or your own.
        variant: one of the case's; by default the first that disagrees.
        dtype: float64, unless the two agree there and differ in a narrower one.
    """
    variants = case.variants if variant is None else (variant,)
    found = (_find_in_variant(case, candidate, dtype) for candidate in variants if dtype in candidate.dtypes)
    return next((divergence for divergence in found if divergence is not None), None)


def _find_in_variant(case: Case, variant: Variant, dtype: str) -> Divergence | None:
    numbers = make_numbers(case, variant, dtype)
    runs = run_both(case, variant, numbers, dtype)
    if not any(measurement.failed for measurement in compare_runs(case, variant, dtype, runs)):
        return None
    traces = [run.trace for run in run_both(case, variant, numbers, dtype, record=True)]
    judge, agreed = Judge(case, variant, dtype, runs.truth.max_score), list[str]()
    for phase, name, (in_jax, in_torch, truth) in _in_order(traces, runs):
        measured = judge.measure(name, in_jax, in_torch, truth)
        if measured.failed:
            difference = measured.mismatch or f"error {measured.error:.3g}, bound {measured.bound:.3g}"
            traps = _traps(case, variant, numbers, dtype) if phase == "forward" else ()
            found = (phase, name, difference, tuple(agreed), describe(in_jax, truth), traps)
            return Divergence(case.name, variant.name, dtype, *found)
        agreed.append(name)
    raise AssertionError("unreachable: the outputs are among the tensors that were compared")


def _traps(case: Case, variant: Variant, numbers: Numbers, dtype: str) -> tuple[str, ...]:
    """Try known mistakes, unless PyTorch's side is a record, which cannot run on other numbers."""
    if case.torch.golden is not None:
        return ()
    from parity_tests.diagnosis.traps import find_traps  # it needs PyTorch

    return find_traps(case, variant, numbers, dtype)


def _in_order(traces: list[Any], runs: Runs) -> Iterator[Tensor]:
    """Yield everything that both sides have, in the order of its computation."""
    values, gradients = [trace.tensors for trace in traces], [trace.gradients for trace in traces]
    recorded = [name for name in values[1] if name in values[0]]
    for name in recorded:
        yield from (("forward", *pair) for pair in _calls(name, *(side[name] for side in values)))
    outputs = dict.fromkeys([*runs.torch.outputs(), *runs.jax.outputs()])
    for name in outputs:
        yield "forward", name, [run.tensors.get(name) for run in runs]
    for name in reversed(recorded):
        if all(name in side for side in gradients):
            calls = _calls(f"gradient of {name}", *(side[name] for side in gradients))
            yield from (("backward", *pair) for pair in reversed(calls))
    for name in dict.fromkeys([*runs.torch.tensors, *runs.jax.tensors]):
        if name not in outputs:
            yield "backward", name, [run.tensors.get(name) for run in runs]


def _calls(
    name: str, in_jax: list[np.ndarray], in_torch: list[np.ndarray], truth: list[np.ndarray]
) -> list[tuple[str, list[Any]]]:
    """Pair call by call where both sides call as often; one call for all time steps with the stacked calls."""
    if len(in_jax) == len(in_torch):
        suffixes = [""] if len(in_jax) == 1 else [f"[{call}]" for call in range(len(in_jax))]
        return [(name + suffix, arrays) for suffix, *arrays in zip(suffixes, in_jax, in_torch, truth, strict=True)]
    if len(in_jax) == 1:
        for axis in range(in_jax[0].ndim):
            stacked = _stack(in_torch, axis)
            if stacked is not None and stacked.shape == in_jax[0].shape:
                return [(name, [in_jax[0], stacked, _stack(truth, axis)])]
    return []


def _stack(calls: list[np.ndarray], axis: int) -> np.ndarray | None:
    same = all(call.shape == calls[0].shape for call in calls) and axis <= calls[0].ndim
    return np.stack(calls, axis) if same and is_floating(calls[0]) else None
