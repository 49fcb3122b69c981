"""Find where two programs part, and the likely mistake.

Both run once more with every intermediate tensor recorded (see `taps`). If the forward passes differ, JAX runs again,
and each of its tensors, once recorded, is replaced by PyTorch's: a tensor that still differs is computed wrongly from
right ones, and does not inherit an error. The first of these that matters is the place. If only the gradients differ,
they are compared from the outputs back.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

import jax
import numpy as np

from parity_tests.your_port.cause.cause import Cause, Found, in_words
from parity_tests.your_port.cause.symptoms import describe, report
from parity_tests.your_port.measure.case import DTYPES, Case, Variant
from parity_tests.your_port.measure.comparison import Judge, Measurement, Runs, compare_runs, fitting, run_both
from parity_tests.your_port.measure.jax_side import as_function, run_jax
from parity_tests.your_port.measure.numbers import Numbers, Run, make_numbers
from parity_tests.your_port.place.pairing import align, kind_of, match_names
from parity_tests.your_port.place.taps import Trace, input_of, recording
from parity_tests.your_port.place.values import compute_values, find_missing
from parity_tests.your_port.weights.layouts import wanted_layout


class Phase(StrEnum):
    """The pass in which two programs part."""

    FORWARD = "forward"
    BACKWARD = "backward"


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
    agreed: tuple[str, ...] = ()
    """The tensors that were compared before it, and agree."""
    symptoms: tuple[str, ...] = ()
    """What the difference looks like."""
    found: Found = field(default_factory=Found)
    """What the search for a known mistake found."""
    module: str = ""
    """PyTorch's path of the submodule in which they part; empty: the program's own code."""
    in_jax: str = ""
    """Its path in JAX."""
    alike: tuple[str, ...] = ()
    """PyTorch's paths of the other submodules of the same kind that part too."""

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The known mistakes that fit: with one of them made on purpose, the two agree."""
        return self.found.causes

    def __str__(self) -> str:
        last = f"the last that agrees is {self.agreed[-1]}" if self.agreed else "nothing before it could be compared"
        where = f"{self.case} | {self.variant} | {self.dtype}: the {self.phase} pass differs at {self.tensor}"
        if self.module:
            path = f" ({self.in_jax} in JAX)" if self.in_jax not in ("", self.module) else ""
            others = f" and {len(self.alike)} other{'s' * (len(self.alike) > 1)} of its kind" if self.alike else ""
            where += f", inside of {self.module}{path}{others}"
        known = self.found.causes or self.found.stopped_after is not None
        causes = (in_words(self.found),) if known else ()
        return report(f"{where}: {self.difference}; {last}", self.symptoms, causes)


def find_divergence(
    case: Case, variant: Variant | None = None, dtype: str | None = None, seconds: float = 60.0
) -> Divergence | None:
    """Find the first tensor in which a case's two programs differ; None if they agree.

    Args:
        case: one of the registry, or your own.
        variant: one of the case's; by default the first that disagrees.
        dtype: by default the widest that the case has inputs for. Another, if the two agree there.
        seconds: of computing time that the search for causes may take.

    Raises:
        ValueError: if no variant has that dtype.
    """
    variants = case.variants if variant is None else (variant,)
    widest = next((name for name in DTYPES if any(name in candidate.dtypes for candidate in variants)), "float64")
    chosen = [candidate for candidate in variants if (dtype or widest) in candidate.dtypes]
    if not chosen:
        raise ValueError(f"{case.name} has no inputs in {dtype}; its variants must have it in `dtypes`")
    found = (_find_in_variant(case, candidate, dtype or widest, seconds) for candidate in chosen)
    return next((divergence for divergence in found if divergence is not None), None)


def _find_in_variant(case: Case, variant: Variant, dtype: str, seconds: float) -> Divergence | None:
    numbers = make_numbers(case, variant, dtype)
    if dtype == "float64":
        case = fitting(case, variant, numbers)
    measured = compare_runs(case, variant, dtype, run_both(case, variant, numbers, dtype))
    first = next((m for m in measured if m.failed), None)
    if first is None:
        return None
    recorded = run_both(case, variant, numbers, dtype, record=True)
    search = Search(case, variant, dtype, numbers, recorded)
    if any(not m.is_gradient and m.failed for m in compare_runs(case, variant, dtype, recorded)):
        return search.in_forward_pass(time.process_time() + seconds)
    phase = Phase.BACKWARD if first.is_gradient else Phase.FORWARD
    words = f"{first.difference}, and only in the compiled program: without `jax.jit` it agrees"
    compiled = Divergence(case.name, variant.name, dtype, phase, first.tensor, words)
    return search.in_backward_pass(time.process_time() + seconds) or compiled


@dataclass(frozen=True)
class Fault:
    """A tensor of JAX that differs although it is computed from PyTorch's."""

    name: str
    call: int
    place: str
    """JAX's path of the submodule that computes it; "" is the program."""
    measured: Measurement
    in_jax: Any
    truth: Any
    cure: str = ""
    """The tensor that shows it, and that keeps JAX's value to see whether it matters; "" for an output."""
    agreed: tuple[str, ...] = ()
    """The results before it that agree."""


@dataclass(frozen=True)
class Search:
    """The recorded runs of one variant, and the search in them."""

    case: Case
    variant: Variant
    dtype: str
    numbers: Numbers
    runs: Runs

    @cached_property
    def judge(self) -> Judge:
        """What measures its tensors."""
        return Judge(self.case, self.variant, self.dtype, self.runs.truth)

    @cached_property
    def traces(self) -> list[Trace]:
        """Those of JAX, of PyTorch, and of PyTorch in float64."""
        return [run.trace for run in self.runs]

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """The names of JAX's submodules and taps, with PyTorch's."""
        in_jax, in_torch, _ = self.traces
        given = {input_of(path) for path in in_jax.parents}
        mine = [name for name in {**in_jax.parents, **in_jax.parts} if name not in given]
        return match_names(mine, [*{**in_torch.parents, **in_torch.parts}], self.case.jax.paths)

    @cached_property
    def in_both(self) -> set[str]:
        """PyTorch's submodules that JAX has too."""
        return {other for others in self.names.values() for other in others}

    @cached_property
    def partners(self) -> dict[str, set[str]]:
        """The tensors of JAX, with those of PyTorch in all layers of a stack.

        Of a submodule that returns another structure in JAX, a tensor's partner is an equal one, or that at its place.
        """
        found: dict[str, set[str]] = {}
        for name, others in self.names.items():
            for mine, theirs in ((input_of(name), [input_of(other) for other in others]), (name, others)):
                parts, ends = self._parts(0, mine), [part.removeprefix(theirs[0]) for part in self._parts(1, theirs[0])]
                same = ends == [part.removeprefix(mine) for part in parts]
                for place, part in enumerate(parts):
                    order = ends[place : place + 1] if same else [*ends[place:], *ends[:place]]
                    formed = {end: self._formed(part, {other + end for other in theirs}) for end in order}
                    fitting = [end for end in order if formed[end]]
                    if fitting:
                        best = min(fitting, key=lambda end: self._differs(part, formed[end]))
                        found[part] = {other + best for other in theirs}
        return found

    def _parts(self, side: int, name: str) -> list[str]:
        return self.traces[side].parts.get(name, [])

    def _formed(self, part: str, names: set[str], kind: str = "tensors") -> list[list[np.ndarray]]:
        """Bring tensors of PyTorch, and of PyTorch in float64, into the form of one of JAX; [] if they have none."""
        like, wish = self.traces[0].calls({part}, kind), wanted_layout(self.case.layouts, part, *names)
        formed = [align(trace.calls(names, kind), like, wish) for trace in self.traces[1:]]
        return formed if all(formed) else []

    def _differs(self, part: str, pair: Sequence[Sequence[np.ndarray]], trace: Trace | None = None) -> bool:
        calls = (trace or self.traces[0]).tensors.get(part, [])
        return any(self._measure(part, *arrays).failed for arrays in zip(calls, *pair, strict=False))

    def _measure(self, part: str, in_jax: np.ndarray, in_torch: np.ndarray, truth: np.ndarray) -> Measurement:
        """Measure an intermediate tensor; its dtype is no difference where a part is to be computed in float32."""
        meant = bool(self.case.inside) and self.dtype == "float64"
        return self.judge.measure(part, in_jax.astype(truth.dtype) if meant else in_jax, in_torch, truth)

    @cached_property
    def wanted(self) -> dict[str, list[list[np.ndarray]]]:
        """PyTorch's tensors, and those of PyTorch in float64, in the form and under the names of JAX's."""
        return {part: self._formed(part, names) for part, names in self.partners.items()}

    @cached_property
    def misshapen(self) -> dict[str, list[np.ndarray]]:
        """PyTorch's results that have no form of JAX's, under JAX's names: those of submodules with one result."""
        found = {}
        for name, others in self.names.items():
            parts = self._parts(0, name)
            truth = self.traces[2].calls({*others})
            if parts == [name] and name not in self.wanted and len(truth) == len(self.traces[0].tensors[name]):
                found[name] = truth
        return found

    @cached_property
    def given(self) -> set[str]:
        """JAX's tensors that a submodule is given."""
        return {part for path in self.traces[0].parents for part in self._parts(0, input_of(path))}

    def owner(self, name: str) -> str:
        """The submodule of both sides in which another one is called; "" is the program."""
        return self._shared(self.traces[0].parents.get(name, ""))

    def _shared(self, name: str) -> str:
        """The submodule itself, or the next around it that both sides have."""
        return name if name == "" or name in self.names else self.owner(name)

    def inputs(self, name: str) -> list[str]:
        """The tensors that a submodule is given, as far as PyTorch has them."""
        return self.results(input_of(name))

    def results(self, name: str) -> list[str]:
        """The tensors that a submodule returns, as far as PyTorch has them."""
        return [part for part in self._parts(0, name) if part in self.wanted]

    def run(self, forced: Sequence[str]) -> Run:
        """Run JAX forward with these tensors replaced by PyTorch's in float64."""
        with recording({name: self.wanted[name][1] for name in forced}) as trace:
            run = run_jax(self.case, self.variant, self.numbers, self.dtype, {})
        return replace(run, trace=trace)

    def differs(self, name: str, alone: Run) -> bool:
        """Whether a submodule's result differs from PyTorch's; "" is the whole program."""
        if name == "":
            return any(measured.failed for measured, *_ in self._outputs(alone))
        return any(self._differs(part, self.wanted[part], alone.trace) for part in self.results(name))

    def _outputs(self, alone: Run) -> Iterator[tuple[Measurement, Any, Any]]:
        """Yield the measurement of each output, JAX's and PyTorch's."""
        for name in dict.fromkeys([*self.runs.torch.outputs(), *alone.tensors]):
            in_jax, in_torch, truth = (run.tensors.get(name) for run in (alone, *self.runs[1:]))
            yield self.judge.measure(name, in_jax, in_torch, truth), in_jax, truth

    # The forward pass

    def in_forward_pass(self, deadline: float) -> Divergence:
        """Find the submodule in which the forward passes part, and the mistake."""
        faults = self._first_faults()
        first, module = faults[0], self._module(faults[0])
        others = dict.fromkeys(self._module(fault) for fault in faults[1:] if fault.place)
        alike = [other for other in others if other != module and kind_of(other) == kind_of(module)]
        # another shape or dtype needs no explanation
        is_plain = first.measured.mismatch and _form(first.in_jax) != _form(first.truth)
        return Divergence(
            *(self.case.name, self.variant.name, self.dtype, Phase.FORWARD),
            tensor=self.label(first.name, first.call),
            difference=first.measured.difference,
            agreed=first.agreed,
            symptoms=describe(first.in_jax, first.truth),
            found=Found() if is_plain else self._explain(deadline, first.place, module),
            module=module,
            in_jax=first.place,
            alike=tuple(other for other in alike if {module, other} <= self.in_both),
        )

    def faults(self, forced: Sequence[str]) -> list[Fault]:
        """Find what differs in a run with these tensors replaced, in the order of the computation."""
        found, agreed, shaped = list[Fault](), list[str](), None
        for seen in self._observed(self.run(forced)):
            if seen.name in self.misshapen:
                shaped = replace(seen, agreed=tuple(agreed))
                continue
            uses_it = shaped is not None and self.owner(shaped.place) == seen.place
            if seen.measured.failed:
                fault = shaped if shaped is not None and uses_it else replace(seen, agreed=tuple(agreed))
                found.append(replace(fault, cure=seen.cure))
            elif seen.name not in self.given:
                agreed.append(self.label(seen.name, seen.call))
            shaped = None if uses_it else shaped
        return found

    def _observed(self, alone: Run) -> Iterator[Fault]:
        """Yield the tensors that PyTorch has too, in the order of the computation, and then the outputs."""
        for name, call in alone.trace.events:
            pair = [self.misshapen[name]] * 2 if name in self.misshapen else self.wanted.get(name, [[]])
            if call < len(pair[0]):
                in_jax, in_torch, truth = alone.trace.tensors[name][call], *(side[call] for side in pair)
                place = self._shared(alone.trace.makers[name])
                yield Fault(name, call, place, self._measure(name, in_jax, in_torch, truth), in_jax, truth, name)
        for measured, in_jax, truth in self._outputs(alone):
            yield Fault(measured.tensor, 0, "", measured, in_jax, truth)

    def _first_faults(self) -> list[Fault]:
        """Return the first fault and the others of its kind.

        A submodule that PyTorch cuts out elsewhere seems to be wrong too. But where JAX's own values are left in its
        place, nothing else differs more than before: then the next kind is taken.
        """
        faults = self.faults([*self.wanted]) or self.faults([])
        mine = set[str]()
        while len({kind_of(fault.cure) for fault in faults}) > 1 and faults[0].cure:
            group = [fault for fault in faults if kind_of(fault.cure) == kind_of(faults[0].cure)]
            mine |= {fault.cure for fault in group}
            left = [fault for fault in self.faults([*self.wanted.keys() - mine]) if fault.cure not in mine]
            before = {(x.name, x.call): x.measured.error for x in faults}
            if not left or any(x.measured.error > 1.01 * before.get((x.name, x.call), 0.0) for x in left):
                return group
            faults = left
        return faults

    def _explain(self, deadline: float, place: str | None = None, module: str = "") -> Found:
        """Search for a known mistake: in JAX's and PyTorch's submodule, or without a place in the gradients."""
        if self.case.torch.golden is not None:
            return Found()
        from parity_tests.your_port.cause.find import find_causes, find_gradient_causes  # they need torch

        if place is None:
            return find_gradient_causes(self, deadline)
        return find_causes(self, place, module, deadline)

    def _module(self, fault: Fault) -> str:
        """PyTorch's path of the submodule in which a fault is: perhaps one that JAX does not have."""
        others = self.names.get(fault.place, [""])
        module = others[fault.call] if fault.call < len(others) else others[0]
        if not self.traces[0].parents:
            return self._by_values()
        truth, paired = self.traces[2], self.in_both
        same = (name for name, call in truth.events if np.array_equal(truth.tensors[name][call], fault.truth))
        inner = truth.makers.get(next(same, ""), "")
        while inner and (inner in paired or not any(other.startswith(f"{inner}.") for other in paired)):
            inner = truth.parents[inner]
        return inner if inner.startswith(module) else module

    def _by_values(self) -> str:
        """Where JAX has no submodules: the first submodule of PyTorch whose result JAX does not compute."""
        with jax.enable_x64(self.dtype == "float64"):
            function, given = as_function(self.case, self.variant, self.numbers, self.dtype)
            values = compute_values(function, *given)
        return find_missing(self.traces[1], self.traces[2], values, self.judge)

    def label(self, part: str, call: int) -> str:
        """PyTorch's name of a tensor, with the number of the call if there are several."""
        calls = len(self.traces[0].tensors.get(part, ()))
        names = [name for name in self.traces[2].tensors if name in self.partners.get(part, ())] or [part]
        return names[call] if len(names) == calls else names[0] + f"[{call}]" * (calls > 1)

    # The backward pass

    def in_backward_pass(self, deadline: float) -> Divergence | None:
        """Find the first gradient that differs, from the outputs back."""
        results = [event for event in self.traces[0].events if event[0] in self.wanted and event[0] not in self.given]
        agreed = [*(self.label(*event) for event in results), *self.runs.torch.outputs()]
        for name, module, (in_jax, in_torch, truth) in self._gradients(results):
            measured = self.judge.measure(name, in_jax, in_torch, truth)
            if measured.failed:
                return Divergence(
                    *(self.case.name, self.variant.name, self.dtype, Phase.BACKWARD, name, measured.difference),
                    agreed=tuple(agreed),
                    symptoms=describe(in_jax, truth),
                    found=self._explain(deadline),
                    module=module,
                )
            agreed.append(name)
        return None

    def _gradients(self, results: Sequence[tuple[str, int]]) -> Iterator[tuple[str, str, list[Any]]]:
        """Yield the gradients of both sides: of these tensors from the last to the first, then of the rest.

        With each comes PyTorch's path of the submodule that works with the tensor.
        """
        trace = self.traces[0]
        pairs = {part: self._formed(part, self.partners[part], "gradients") for part, _ in results}
        for part, call in reversed(results):
            if call < len(trace.gradients.get(part, ())) and pairs[part]:
                maker = trace.makers[part]
                user = self.owner(maker) if part in self._parts(0, maker) else self._shared(maker)
                arrays = [trace.gradients[part][call], *(side[call] for side in pairs[part])]
                yield f"gradient of {self.label(part, call)}", self.names.get(user, [""])[0], arrays
        sides = [run.gradients() for run in self.runs]
        for name in {**sides[1], **sides[0]}:
            yield f"gradient of {name}", name.rpartition(".")[0], [side.get(name) for side in sides]


def _form(x: np.ndarray | None) -> Any:
    return None if x is None else (x.shape, x.dtype)
