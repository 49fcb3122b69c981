"""Find where two programs part.

If the forward passes differ, both run once more with every intermediate tensor recorded (see `measure.taps`). Then JAX
runs again, and each of its tensors, once recorded, is replaced by PyTorch's: a tensor that still differs is computed
wrongly from right ones, and does not inherit an error. The first of these is the place; after them come the outputs,
and the gradients from the outputs back.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from parity_tests.your_port.measure.draw import Draw
from parity_tests.your_port.measure.errors import relative_error
from parity_tests.your_port.measure.jax_side import run_jax
from parity_tests.your_port.measure.judge import Judge, Measurement, Runs
from parity_tests.your_port.measure.numbers import Run
from parity_tests.your_port.measure.op_by_op import without_jit
from parity_tests.your_port.measure.taps import Tensor, input_of, recording
from parity_tests.your_port.place.pairing import align, kind_of, match_names, parts_of
from parity_tests.your_port.place.values import compute_values, find_missing
from parity_tests.your_port.weights.layouts import wanted_layout


@dataclass(frozen=True, eq=False)
class Partner:
    """The tensor of PyTorch that one of JAX is held against."""

    name: str
    """PyTorch's, with the number of the call if there are several."""
    inside: tuple[str, ...]
    """PyTorch's submodules whose code computes it."""
    in_torch: Any
    truth: Any
    """PyTorch's in float64; both are in JAX's form."""


@dataclass(frozen=True, eq=False)
class Compared:
    """A tensor of JAX that is computed from PyTorch's, beside its partner."""

    tensor: Tensor
    partner: Partner
    measured: Measurement


@dataclass(frozen=True)
class Search:
    """The search in the runs of a draw, with the intermediate tensors of both."""

    draw: Draw

    @cached_property
    def runs(self) -> Runs:
        """The runs, PyTorch's with its intermediate tensors, JAX's as where its own are recorded."""
        narrow, truth = (self.draw.in_torch(dtype, record=True) for dtype in (self.draw.narrow, "float64"))
        return Runs(self.draw.in_jax(without_jit), narrow, truth)

    @cached_property
    def judge(self) -> Judge:
        """What measures its tensors."""
        return self.draw.judge(self.runs.truth)

    @cached_property
    def trace(self) -> list[Tensor]:
        """The intermediate tensors of JAX."""
        return self.run(()).trace

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """The names of JAX's submodules and taps, with PyTorch's; a loop over a stack has those of all layers."""
        in_jax = dict.fromkeys(name for x in self.trace for name in (*x.inside, x.of) if not x.is_input)
        in_torch = dict.fromkeys(name for x in self.runs.truth.trace for name in (*x.inside, x.of))
        return match_names(list(in_jax), list(in_torch), self.draw.case.jax.paths)

    @cached_property
    def partners(self) -> dict[str, list[Partner]]:
        """The partners of JAX's tensors, call by call.

        Where a submodule returns another structure in JAX, a tensor's partner is the next one that has its form.
        """
        found = {}
        given = {input_of(name): [input_of(other) for other in others] for name, others in self.names.items()}
        for name, others in {**given, **self.names}.items():
            in_torch, truth = (parts_of(run.trace, others) for run in self.runs[1:])
            theirs = list(zip(in_torch, truth, strict=True))
            for i, calls in enumerate(parts_of(self.trace, [name])):
                tried = (self._in_form_of(calls, *part) for part in [*theirs[i:], *theirs[:i]])
                if partners := next(filter(None, tried), None):
                    found[calls[0].name] = partners
        return found

    def _in_form_of(self, calls: list[Tensor], in_torch: list[Tensor], truth: list[Tensor]) -> list[Partner]:
        """Bring a tensor of PyTorch into the form of one of JAX; [] if it has another."""
        names = list(dict.fromkeys(x.name for x in truth))
        wish = wanted_layout(self.draw.case.layouts, calls[0].name, *names)
        sides = [align([x.value for x in side], [x.value for x in calls], wish) for side in (in_torch, truth)]
        found = []
        for i, values in enumerate(zip(*sides, strict=True) if all(sides) else ()):
            one = truth[i if len(truth) == len(calls) else 0]
            name = one.name if len(names) >= len(calls) else f"{one.name}[{i}]"
            found.append(Partner(name, one.inside, *values))
        return found

    def results(self, name: str) -> list[str]:
        """Return the names of the tensors that JAX's submodule returns, as far as PyTorch has them."""
        names = (calls[0].name for calls in parts_of(self.trace, [name]))
        return [name for name in names if name in self.partners]

    def inputs(self, name: str) -> list[str]:
        """Return the names of those that it is given."""
        return self.results(input_of(name))

    def run(self, forced: Collection[str]) -> Run:
        """Run JAX forward with these tensors replaced by PyTorch's in float64."""
        values = {name: [x.truth for x in self.partners[name]] for name in forced}
        draw = self.draw
        with recording(values, in_python=not draw.traced()[0].has_long_loops) as trace:
            run = run_jax(draw.case, draw.variant, draw.numbers, draw.dtype, {}, transform=_as_it_is)
        return replace(run, trace=trace)

    def compare_all(self) -> list[Compared]:
        """Measure the intermediate tensors, if outputs differ, and then the outputs and gradients."""
        results = self._results()
        if not any(x.measured.failed for x in results if not x.measured.is_gradient):
            return results
        seen = self.compare(self.partners)
        while names := self._mispaired(seen) or self._unread(seen):
            for name in names:
                del self.partners[name]
            seen = self.compare(self.partners)
        return [*seen, *results]

    def _mispaired(self, seen: Sequence[Compared]) -> list[str]:
        """Return the names of the first tensor that differs and of its kind, if only the names are those of PyTorch's.

        Then a later tensor agrees in JAX's own run, and no longer where PyTorch's values stand in place of these.
        So it is where a submodule of JAX is given something else, or where JAX applies a scale earlier.
        """
        first = next((x.tensor.name for x in seen if x.measured.failed), "")
        kind = [name for name in self.partners if kind_of(name) == kind_of(first)]
        own = self.compare(())
        differing = [place for place, x in enumerate(own) if x.tensor.name == first and x.measured.failed]
        later = own[differing[0] :] if differing else []
        right = {id(x.partner) for x in later if not x.measured.failed and x.tensor.name not in kind}
        if not right:
            return []
        return kind if any(x.measured.failed and id(x.partner) in right for x in self.compare(kind)) else []

    def _unread(self, seen: Sequence[Compared]) -> list[str]:
        """Return the names of the tensors before the first that differs where something reads it.

        What differs in padded frames alone may be read by nothing: with PyTorch's values in its place, all outputs
        stay as they are.
        """
        differing = list(dict.fromkeys(x.tensor.name for x in seen if x.measured.failed))
        close, own = 1e-9 if self.judge.rule == "float64" else 1e-4, self.runs.jax.outputs

        def is_read(count: int) -> bool:
            forced = self.run(differing[:count]).outputs
            return any(x is not None and relative_error(x, own[name]) > close for name, x in forced.items())

        if not differing or is_read(1):
            return []
        return differing[: bisect_left(range(1, len(differing) + 1), True, key=is_read)]

    def compare(self, forced: Collection[str]) -> list[Compared]:
        """Run JAX with these tensors replaced; measure all that PyTorch has too, in the order of the computation."""
        found = []
        left = {name: iter(partners) for name, partners in self.partners.items()}
        narrow = bool(self.draw.case.inside) and self.draw.dtype == "float64"  # then a dtype is no difference
        for tensor in self.run(forced).trace if forced else self.trace:
            if partner := next(left.get(tensor.name, iter(())), None):
                in_jax = tensor.value.astype(partner.truth.dtype) if narrow else tensor.value
                measured = self.judge.measure(partner.name, in_jax, partner.in_torch, partner.truth)
                found.append(Compared(tensor, partner, measured))
        return found

    def _results(self) -> list[Compared]:
        """Measure the outputs, and the gradients from the outputs back: that of the last weight is the first."""
        in_jax, in_torch, _ = self.runs
        outputs, gradients = {**in_torch.outputs, **in_jax.outputs}, {**in_torch.gradients, **in_jax.gradients}
        return [*(self._result(name, False) for name in outputs), *(self._result(n, True) for n in [*gradients][::-1])]

    def _result(self, name: str, is_gradient: bool) -> Compared:
        x, y, truth = ((run.gradients if is_gradient else run.outputs).get(name) for run in self.runs)
        measured = self.judge.measure(name, x, y, truth, is_gradient=is_gradient)
        inside = (name.rpartition(".")[0],) if is_gradient else ()
        return Compared(Tensor(measured.tensor, False, "", (), x), Partner(measured.tensor, inside, y, truth), measured)

    def place(self, fault: Compared) -> tuple[str, ...]:
        """JAX's submodules whose code computes a tensor, from the outermost, as far as PyTorch has them."""
        return tuple(name for name in fault.tensor.inside if name in self.names)

    def module(self, fault: Compared) -> str:
        """PyTorch's path of the submodule in which a fault is."""
        if place := self.place(fault):
            layers = self.names[place[-1]]
            return next((layer for layer in layers if layer in fault.partner.inside), layers[0])
        if fault.measured.is_gradient:
            return fault.partner.inside[-1]
        if any(x.inside for x in self.trace):
            return ""
        return find_missing(
            self.runs.torch.trace, self.runs.truth.trace, compute_values(self.draw, np.asarray)[1], self.judge
        )


def _as_it_is(program: Any) -> Any:
    """Do not compile a program: where its loops are compiled, they hold the callbacks of one recording."""
    return program
