"""Two programs disagree: which tensor is the first that does, and what is the likely mistake?

Both are run once more with every intermediate tensor recorded (see `taps`), and the tensors are looked through in the
order in which they were computed: values from the inputs on, then gradients from the outputs back. The first that
differs by more than its bound stands between what is known to be right and what is known to be wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from parity_tests.case import Case, Variant
from parity_tests.compare import Judge, compare_runs
from parity_tests.diagnosis.symptoms import describe
from parity_tests.diagnosis.taps import Trace, recording
from parity_tests.diagnosis.traps import find_traps
from parity_tests.jax_side import run_jax
from parity_tests.numbers import Run, is_floating, make_numbers
from parity_tests.torch_side import run_torch

Phase = Literal["forward", "backward"]


@dataclass(frozen=True)
class Divergence:
    """Where two programs part."""

    case: str
    variant: str
    dtype: str
    phase: Phase
    tensor: str
    """The first that differs: an intermediate, an output, or `gradient of` one of them or of an input or weight."""
    difference: str
    """By how much, or in what."""
    agreed: tuple[str, ...]
    """What had been looked at before, and was the same."""
    symptoms: tuple[str, ...]
    """What the difference looks like."""
    traps: tuple[str, ...]
    """Known mistakes that fit: with each made on purpose, or undone, the two agree."""

    def __str__(self) -> str:
        last = f"the last that agrees is {self.agreed[-1]}" if self.agreed else "nothing before it could be compared"
        lines = [
            f"{self.case} | {self.variant} | {self.dtype}: the {self.phase} pass parts at {self.tensor}: "
            f"{self.difference}; {last}",
            *(f"  looks like: {symptom}" for symptom in self.symptoms),
            *(f"  explained by: {trap}" for trap in self.traps),
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class _Pair:
    """One tensor of both sides, and PyTorch's in float64."""

    name: str
    ours: np.ndarray | None
    twin: np.ndarray | None
    truth: np.ndarray | None


def find_divergence(case: Case, variant: Variant | None = None, dtype: str = "float64") -> Divergence | None:
    """The first tensor in which a case's two programs differ; None if they agree.

    Args:
        case: of the registry, or anybody's.
        variant: one of the case's; by default the first that disagrees.
        dtype: float64 unless the two are the same there and differ in a narrower one.
    """
    for candidate in case.variants if variant is None else (variant,):
        if dtype in candidate.dtypes:
            found = _in_variant(case, candidate, dtype)
            if found is not None:
                return found
    return None


def _in_variant(case: Case, variant: Variant, dtype: str) -> Divergence | None:
    numbers = make_numbers(case, variant, dtype)
    twin = run_torch(case, variant, numbers, dtype, dtype)
    truth = twin if dtype == "float64" else run_torch(case, variant, numbers, "float64", dtype)
    ours = run_jax(case, variant, numbers, dtype, twin)
    if not any(measurement.failed for measurement in compare_runs(case, variant, dtype, ours, twin, truth)):
        return None
    traces = [Trace(), Trace(), Trace()]
    with recording() as traces[0]:
        run_jax(case, variant, numbers, dtype, twin)
    with recording() as traces[1]:
        run_torch(case, variant, numbers, dtype, dtype)
    with recording() as traces[2]:
        run_torch(case, variant, numbers, "float64", dtype)
    judge = Judge(case, variant, dtype, truth.max_score)
    agreed: list[str] = []
    for phase, pair in _in_order(traces, (ours, twin, truth)):
        measured = judge.measure(pair.name, pair.ours, pair.twin, pair.truth)
        if measured.failed:
            return Divergence(
                case.name,
                variant.name,
                dtype,
                phase,
                pair.name,
                measured.mismatch or f"error {measured.error:.3g}, bound {measured.bound:.3g}",
                tuple(agreed),
                describe(pair.ours, pair.truth),
                find_traps(case, variant, numbers, dtype) if phase == "forward" else (),
            )
        agreed.append(pair.name)
    raise AssertionError("unreachable: the outputs are among what was looked at")


def _in_order(traces: list[Trace], runs: tuple[Run, Run, Run]) -> Iterator[tuple[Phase, _Pair]]:
    """Everything that both sides have, in the order of its computation."""
    values = [trace.tensors for trace in traces]
    recorded = [name for name in values[1] if name in values[0]]
    for name in recorded:
        yield from (("forward", pair) for pair in _pair(name, *(side[name] for side in values)))
    outputs = [name for name in _names(runs) if not name.startswith("gradient of ")]
    for name in outputs:
        yield "forward", _Pair(name, *(run.tensors.get(name) for run in runs))
    gradients = [trace.gradients for trace in traces]
    for name in reversed(recorded):
        if all(name in side for side in gradients):
            pairs = _pair(f"gradient of {name}", *(side[name] for side in gradients))
            yield from (("backward", pair) for pair in reversed(pairs))
    for name in _names(runs):
        if name not in outputs:
            yield "backward", _Pair(name, *(run.tensors.get(name) for run in runs))


def _names(runs: tuple[Run, Run, Run]) -> list[str]:
    """Of all sides, in PyTorch's order."""
    return list(dict.fromkeys([*runs[1].tensors, *runs[0].tensors]))


def _pair(name: str, ours: list[np.ndarray], twin: list[np.ndarray], truth: list[np.ndarray]) -> list[_Pair]:
    """Call by call where both sides call as often. One call for all time steps is held against a call a step."""
    if len(ours) == len(twin):
        suffixes = [""] if len(ours) == 1 else [f"[{call}]" for call in range(len(ours))]
        return [_Pair(name + suffix, *arrays) for suffix, *arrays in zip(suffixes, ours, twin, truth, strict=True)]
    if len(ours) == 1:
        for axis in range(ours[0].ndim):
            stacked = _stack(twin, axis)
            if stacked is not None and stacked.shape == ours[0].shape:
                return [_Pair(name, ours[0], stacked, _stack(truth, axis))]
    return []


def _stack(calls: list[np.ndarray], axis: int) -> np.ndarray | None:
    same = all(call.shape == calls[0].shape for call in calls) and axis <= calls[0].ndim
    return np.stack(calls, axis) if same and is_floating(calls[0]) else None
