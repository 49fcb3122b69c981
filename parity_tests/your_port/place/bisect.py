"""Find where two programs part, and the likely mistake.

If the forward passes differ, both run once more with every intermediate tensor recorded (see `taps`). Then JAX runs
again, and each of its tensors, once recorded, is replaced by PyTorch's: a tensor that still differs is computed wrongly
from right ones, and does not inherit an error. The first of these that matters is the place. If only the gradients
differ, they are compared from the outputs back.
"""

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import takewhile
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

Calls = list[list[np.ndarray]]
"""A tensor call by call, of PyTorch and of PyTorch in float64."""
OUTPUT = -1
"""In the place of the number of a call."""


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
    """The first that differs: an intermediate, an output, or the `gradient of` an input or a weight."""
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
    search = Search(case, variant, dtype, numbers, run_both(case, variant, numbers, dtype, record=True))
    deadline = time.process_time() + seconds
    if search.differs("", search.runs.jax):
        return search.in_forward_pass(deadline)
    phase = Phase.BACKWARD if first.is_gradient else Phase.FORWARD
    words = f"{first.difference}, and only in the compiled program: without `jax.jit` it agrees"
    compiled = Divergence(case.name, variant.name, dtype, phase, first.tensor, words)
    return search.in_backward_pass(deadline) or compiled


@dataclass(frozen=True, eq=False)
class Seen:
    """A tensor of JAX that is computed from PyTorch's, beside PyTorch's."""

    name: str
    call: int
    place: str
    """JAX's path of the submodule that computes it; "" is the program."""
    measured: Measurement
    in_jax: Any
    truth: Any


@dataclass(frozen=True)
class Search:
    """The runs of one variant, with PyTorch's intermediate tensors, and the search in them."""

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
    def trace(self) -> Trace:
        """The intermediate tensors of JAX."""
        return self.run(()).trace

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """The names of JAX's submodules and taps, with PyTorch's."""
        given = {input_of(path) for path in self.trace.parents}
        mine = [name for name in {**self.trace.parents, **self.trace.parts} if name not in given]
        theirs = self.runs.truth.trace
        return match_names(mine, [*{**theirs.parents, **theirs.parts}], self.case.jax.paths)

    @cached_property
    def partners(self) -> dict[str, tuple[set[str], Calls]]:
        """The tensors of JAX, each with PyTorch's names in all layers of a stack, and with its calls in JAX's form.

        Where a submodule returns another structure in JAX, a tensor's partner is the next one that has its form.
        """
        found: dict[str, tuple[set[str], Calls]] = {}
        given = {input_of(name): [input_of(other) for other in others] for name, others in self.names.items()}
        for mine, theirs in {**given, **self.names}.items():
            parts = self.trace.parts.get(mine, [])
            ends = [part.removeprefix(theirs[0]) for part in self.runs.truth.trace.parts.get(theirs[0], [])]
            for i, part in enumerate(parts):
                for end in ends[i : i + 1] if len(ends) == len(parts) else [*ends[i:], *ends[:i]]:
                    names = {other + end for other in theirs}
                    like, wish = self.trace.tensors[part], wanted_layout(self.case.layouts, part, *names)
                    calls = [align(run.trace.calls(names), like, wish) for run in self.runs[1:]]
                    if all(calls):
                        found.setdefault(part, (names, calls))
        return found

    @cached_property
    def wanted(self) -> dict[str, Calls]:
        """PyTorch's tensors, and those of PyTorch in float64, in the form and under the names of JAX's."""
        return {part: calls for part, (_, calls) in self.partners.items()}

    def owner(self, name: str) -> str:
        """The submodule of both sides in which another one is called; "" is the program."""
        return self._shared(self.trace.parents.get(name, ""))

    def _shared(self, name: str) -> str:
        """The submodule itself, or the next around it that both sides have."""
        return name if name == "" or name in self.names else self.owner(name)

    def inputs(self, name: str) -> list[str]:
        """The tensors that a submodule is given, as far as PyTorch has them."""
        return self.results(input_of(name))

    def results(self, name: str) -> list[str]:
        """The tensors that a submodule returns, as far as PyTorch has them."""
        return [part for part in self.trace.parts.get(name, ()) if part in self.wanted]

    def run(self, forced: Collection[str]) -> Run:
        """Run JAX forward with these tensors replaced by PyTorch's in float64."""
        with recording({name: self.wanted[name][1] for name in forced}) as trace:
            run = run_jax(self.case, self.variant, self.numbers, self.dtype, {})
        return replace(run, trace=trace)

    def differs(self, name: str, alone: Run) -> bool:
        """Whether a submodule's result differs from PyTorch's; "" is the whole program."""
        seen = self._recorded(alone, self.results(name)) if name else self._outputs(alone)
        return any(x.measured.failed for x in seen)

    def _recorded(self, alone: Run, names: Collection[str]) -> Iterator[Seen]:
        """Yield tensors that PyTorch has too, in the order of the computation."""
        narrow = bool(self.case.inside) and self.dtype == "float64"  # then a dtype is no difference
        for name, call in alone.trace.events:
            if name in names and call < len(self.wanted[name][0]):
                in_jax, (in_torch, truth) = alone.trace.tensors[name][call], (side[call] for side in self.wanted[name])
                same_dtype = in_jax.astype(truth.dtype) if narrow else in_jax
                measured = self.judge.measure(name, same_dtype, in_torch, truth)
                yield Seen(name, call, self._shared(alone.trace.makers[name]), measured, in_jax, truth)

    def _outputs(self, alone: Run) -> Iterator[Seen]:
        for name in dict.fromkeys([*self.runs.torch.outputs(), *alone.outputs()]):
            in_jax, in_torch, truth = (run.tensors.get(name) for run in (alone, *self.runs[1:]))
            yield Seen(name, OUTPUT, "", self.judge.measure(name, in_jax, in_torch, truth), in_jax, truth)

    # The forward pass

    def in_forward_pass(self, deadline: float) -> Divergence:
        """Find the submodule in which the forward passes part, and the mistake."""
        faults, agreed = self._first_faults()
        first, module = faults[0], self._module(faults[0])
        others = dict.fromkeys(self._module(fault) for fault in faults[1:] if fault.place)
        alike = tuple(other for other in others if other != module and kind_of(other) == kind_of(module))
        return Divergence(
            *(self.case.name, self.variant.name, self.dtype, Phase.FORWARD),
            tensor=self._label(first),
            difference=first.measured.difference,
            agreed=tuple(agreed),
            symptoms=describe(first.in_jax, first.truth),
            found=self._explain(deadline, first.place, module),
            module=module,
            in_jax=first.place,
            alike=alike,
        )

    def _first_faults(self) -> tuple[list[Seen], list[str]]:
        """Return what differs though it is computed from PyTorch's tensors, and the names of what agrees before it.

        A submodule that PyTorch cuts out elsewhere seems to be wrong too. But where JAX's own values are left in its
        place, nothing else differs more than before: then the next kind is taken.
        """
        seen = self._seen(self.wanted)
        if not any(x.measured.failed for x in seen):
            seen = self._seen(())
        faults, own = [x for x in seen if x.measured.failed], set[str]()
        while faults[0].call != OUTPUT and len({kind_of(x.name) for x in faults}) > 1:
            own |= {x.name for x in faults if kind_of(x.name) == kind_of(faults[0].name)}
            again = self._seen(self.wanted.keys() - own)
            left = [x for x in again if x.measured.failed and x.name not in own]
            before = {(x.name, x.call): x.measured.error for x in faults}
            if not left or any(x.measured.error > 1.01 * before.get((x.name, x.call), 0.0) for x in left):
                break
            seen, faults = again, left
        earlier = takewhile(lambda x: x is not faults[0], seen)
        results = (x for x in earlier if not x.measured.failed and not x.name.startswith(input_of("")))
        return faults, [self._label(x) for x in results]

    def _seen(self, forced: Collection[str]) -> list[Seen]:
        alone = self.run(forced)
        return [*self._recorded(alone, self.wanted), *self._outputs(alone)]

    def _explain(self, deadline: float, place: str | None = None, module: str = "") -> Found:
        """Search for a known mistake: in JAX's and PyTorch's submodule, or without a place in the gradients."""
        if self.case.torch.golden is not None:
            return Found()
        from parity_tests.your_port.cause.find import find_causes, find_gradient_causes  # they need torch

        if place is None:
            return find_gradient_causes(self, deadline)
        return find_causes(self, place, module, deadline)

    def _module(self, fault: Seen) -> str:
        """PyTorch's path of the submodule in which a fault is."""
        if not self.trace.parents:
            with jax.enable_x64(self.dtype == "float64"):
                function, given = as_function(self.case, self.variant, self.numbers, self.dtype)
                values = compute_values(function, *given)
            return find_missing(self.runs.torch.trace, self.runs.truth.trace, values, self.judge)
        others = self.names.get(fault.place, [""])
        return others[fault.call] if fault.call < len(others) else others[0]

    def _label(self, seen: Seen) -> str:
        """PyTorch's name of a tensor, with the number of the call if there are several."""
        if seen.call == OUTPUT:
            return seen.name
        calls, names = len(self.wanted[seen.name][0]), self.partners[seen.name][0]
        in_order = [name for name in self.runs.truth.trace.tensors if name in names]
        return in_order[seen.call] if len(names) == calls else in_order[0] + f"[{seen.call}]" * (calls > 1)

    # The backward pass

    def in_backward_pass(self, deadline: float) -> Divergence | None:
        """Find the first gradient that differs, from the outputs back: that of the last weight is the first."""
        agreed, gradients = [*self.runs.torch.outputs()], [run.gradients() for run in self.runs]
        for name in [*{**gradients[1], **gradients[0]}][::-1]:
            in_jax, in_torch, truth = (side.get(name) for side in gradients)
            measured = self.judge.measure(f"gradient of {name}", in_jax, in_torch, truth)
            if measured.failed:
                return Divergence(
                    *(self.case.name, self.variant.name, self.dtype, Phase.BACKWARD),
                    *(measured.tensor, measured.difference),
                    agreed=tuple(agreed),
                    symptoms=describe(in_jax, truth),
                    found=self._explain(deadline),
                    module=name.rpartition(".")[0],
                )
            agreed.append(measured.tensor)
        return None
