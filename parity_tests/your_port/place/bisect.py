"""Find where two programs part, and the likely mistake.

Both run once more with every intermediate tensor recorded (see `taps`). If the forward passes differ, the submodules of
JAX run again on what PyTorch's were given: a submodule that only inherits an error agrees then. The search ends in the
innermost submodule whose result, replaced by PyTorch's, makes the rest agree. If only the gradients differ, they are
compared from the outputs back.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from parity_tests.your_port.cause.cause import Cause, Found, in_words
from parity_tests.your_port.cause.symptoms import describe, report
from parity_tests.your_port.measure.case import DTYPES, Case, Variant
from parity_tests.your_port.measure.comparison import Judge, Measurement, Runs, compare_runs, run_both
from parity_tests.your_port.measure.jax_side import run_jax
from parity_tests.your_port.measure.numbers import Numbers, make_numbers, options_in
from parity_tests.your_port.measure.tree import flatten
from parity_tests.your_port.place.pairing import align_together, kind_of, match_names
from parity_tests.your_port.place.taps import Trace, recording
from parity_tests.your_port.place.values import compute_values, find_missing
from parity_tests.your_port.weights.layouts import CHANNELS_LAST, wanted_layout

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
    found: Found
    """What the search for a known mistake found."""
    module: str = ""
    """PyTorch's path of the submodule in which they part; empty: the program's own code."""
    in_jax: str = ""
    """Its path in JAX."""
    alike: tuple[str, ...] = ()
    """The other submodules of the same kind that part too."""

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
    runs = run_both(case, variant, numbers, dtype)
    measured = compare_runs(case, variant, dtype, runs)
    if not any(measurement.failed for measurement in measured):
        return None
    recorded = run_both(case, variant, numbers, dtype, record=True)
    search = Search(case, variant, dtype, numbers, recorded, Judge(case, variant, dtype, runs.truth.max_score))
    if any(not m.is_gradient and m.failed for m in compare_runs(case, variant, dtype, recorded)):
        return search.in_forward_pass(time.process_time() + seconds)
    return search.in_backward_pass(time.process_time() + seconds) or _in_compiled_program(runs, measured)


def _in_compiled_program(runs: Runs, measured: list[Measurement]) -> Divergence:
    first = next(measurement for measurement in measured if measurement.failed)
    symptoms = describe(runs.jax.tensors.get(first.tensor), runs.truth.tensors.get(first.tensor))
    where = (first.case, first.variant, first.dtype, "backward" if first.is_gradient else "forward", first.tensor)
    words = f"{difference(first)}, and only in the compiled program: without `jax.jit` it agrees"
    return Divergence(*where, words, (), symptoms, Found())  # type: ignore[arg-type]


def difference(measured: Measurement) -> str:
    """Say by how much, or in what."""
    return measured.mismatch or f"error {measured.error:.3g}, bound {measured.bound:.3g}"


@dataclass(frozen=True)
class Alone:
    """A run of JAX in which some tensors were replaced by PyTorch's."""

    trace: Trace
    outputs: dict[str, Any]


@dataclass(frozen=True)
class Search:
    """The recorded runs of one variant, and the search in them."""

    case: Case
    variant: Variant
    dtype: str
    numbers: Numbers
    runs: Runs
    judge: Judge

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """The names of JAX's submodules and taps, with PyTorch's."""
        traces = {"jax": self._trace(0), "torch": self._trace(1)}
        names = {side: _in_order(trace) for side, trace in traces.items()}
        shapes = {
            side + name: sorted(
                size for part in parts_of(traces[side], name)[:1] for size in traces[side].tensors[part][0].shape
            )
            for side in names
            for name in names[side]
        }
        return match_names(names["jax"], names["torch"], self.case.jax.paths, shapes)

    def _trace(self, side: int) -> Trace:
        trace = self.runs[side].trace
        assert trace is not None, "the runs were not recorded"
        return trace

    @cached_property
    def wanted(self) -> dict[str, tuple[list[np.ndarray], list[np.ndarray]]]:
        """PyTorch's tensors, and those of PyTorch in float64, in the form and under the names of JAX's."""
        found = {}
        for name, others in self.names.items():
            for prefix in ("input of ", ""):
                for part, pair in self._pair(prefix + name, [prefix + other for other in others]):
                    found[part] = pair
        return found

    def _pair(self, name: str, others: list[str], kind: str = "tensors") -> Iterator[tuple[str, Any]]:
        """Yield the tensors of a submodule that have a partner: that of the same name or place, or an equal one."""
        in_jax, in_torch, truth = (getattr(self._trace(side), kind) for side in range(3))
        mine, theirs = parts_of(self._trace(0), name), parts_of(self._trace(1), others[0])
        for place, part in enumerate(part for part in mine if part in in_jax):
            suffix = part.removeprefix(name)
            order = sorted(theirs, key=lambda other: (other != others[0] + suffix, theirs.index(other) != place))
            forms = []
            for other in (other for other in order if other in in_torch):
                stack = [other.replace(others[0], layer, 1) for layer in others]
                calls = [[x for layer in stack for x in side.get(layer, [])] for side in (in_torch, truth)]
                last = wanted_layout(self.case.layouts, part, name, other, others[0]) in CHANNELS_LAST
                both = align_together(calls, in_jax[part], last)
                forms += [] if both is None else [(both[0], both[1])]
            equal = (pair for pair in forms if not self._first_wrong(part, in_jax[part], pair))
            if forms:
                yield part, next(equal, forms[0])

    @cached_property
    def misshapen(self) -> dict[str, list[np.ndarray]]:
        """PyTorch's results that have no form of JAX's, under JAX's names: those of submodules with one result."""
        found = {}
        for name, others in self.names.items():
            parts = [parts_of(self._trace(side), part) for side, part in enumerate((name, others[0]))]
            if [len(side) for side in parts] == [1, 1] and len(others) == 1 and parts[0][0] not in self.wanted:
                in_jax, truth = (self._trace(side).tensors[part[0]] for side, part in zip((0, 2), parts, strict=True))
                if len(in_jax) == len(truth):
                    found[parts[0][0]] = truth
        return found

    def _first_wrong(self, name: str, in_jax: Sequence[np.ndarray], pair: Any) -> tuple[int, Measurement] | None:
        """Return the first call that differs, and how."""
        for call, arrays in enumerate(zip(in_jax, *pair, strict=False)):
            measured = self.judge.measure(name, *arrays)
            if measured.failed:
                return call, measured
        return None

    # The forward pass

    def in_forward_pass(self, deadline: float) -> Divergence:
        """Find the submodule in which the forward passes part, and the mistake."""
        place = self.locate("")
        alone = self.run(self.inputs(place))
        name, call, measured, in_jax, truth = next(self.wrong_within(place, alone))
        alike = [n for n in self.names if kind_of(n) == kind_of(place) and n != place]
        parting = self.run([part for n in alike for part in self.inputs(n)]) if place and alike else alone
        divergence = Divergence(
            *(self.case.name, self.variant.name, self.dtype, "forward", self.label(name, call), difference(measured)),
            agreed=tuple(self.agreed_before(place, name, call)),
            symptoms=describe(in_jax, truth),
            found=Found(),
            module=self._module(name if name in self.misshapen else place),
            in_jax=place,
            alike=tuple(n for n in alike if place and self.differs(n, parting)),
        )
        is_plain = measured.mismatch.startswith("dtype") or name in self.misshapen  # that needs no explanation
        return divergence if is_plain else replace(divergence, found=self._explain(place, divergence.module, deadline))

    def _explain(self, place: str, module: str, deadline: float) -> Found:
        if self.case.torch.golden is not None:
            return Found()
        from parity_tests.your_port.cause.find import find_causes  # it needs torch

        return find_causes(self, place, module, deadline)

    def _module(self, place: str) -> str:
        """PyTorch's path of the submodule."""
        return self.names[place][0] if self._is_submodule(place) else "" if place else self._by_values()

    def locate(self, parent: str) -> str:
        """Return the innermost submodule inside of `parent` whose result makes all the difference to `parent`'s."""
        children = self.children(parent)
        if not children:
            return parent
        alone = self.run([*self.inputs(parent), *(part for child in children for part in self.inputs(child))])
        failing = [child for child in children if self.differs(child, alone)]
        kinds = [
            [child for child in failing if kind_of(child) == kind] for kind in dict.fromkeys(map(kind_of, failing))
        ]
        for group in [failing, *kinds, children] if failing else []:
            healed = self.run([*self.inputs(parent), *(part for child in group for part in self.results(child))])
            if not self.differs(parent, healed):
                return self.locate(next(child for child in group if child in failing))
        return parent

    def children(self, parent: str) -> list[str]:
        """The submodules and taps of both sides that are called inside of `parent`, in the order of their calls."""
        names = (name for name in _in_order(self._trace(0)) if name in self.names)
        return [name for name in names if name != parent == self.owner(name)]

    def owner(self, name: str) -> str:
        """The submodule of both sides in which another one or a tap is called; "" is the program."""
        above = self._trace(0).parents.get(name, "")
        return above if above == "" or above in self.names else self.owner(above)

    def inputs(self, name: str) -> list[str]:
        """The tensors that a submodule is given, as far as PyTorch has them."""
        return self.results(f"input of {name}")

    def results(self, name: str) -> list[str]:
        """The tensors that a submodule returns, as far as PyTorch has them."""
        return [part for part in parts_of(self._trace(0), name) if part in self.wanted]

    def run(self, forced: Sequence[str]) -> Alone:
        """Run JAX forward with these tensors replaced by PyTorch's in float64."""
        with recording({name: self.wanted[name][1] for name in forced}) as trace:
            run = run_jax(self.case, self.variant, self.numbers, self.dtype, {})
        return Alone(trace, run.tensors)

    def differs(self, name: str, alone: Alone) -> bool:
        """Whether a submodule's result differs from PyTorch's; "" is the whole program."""
        return any(True for _ in self.wrong_results(name, alone))

    def wrong_results(self, name: str, alone: Alone) -> Iterator[tuple[str, int, Measurement, Any, Any]]:
        """Yield a submodule's results that differ: name, call, measurement, JAX's and PyTorch's."""
        if name:
            for part in self.results(name):
                yield from self._wrong(part, alone)
            return
        for output in dict.fromkeys([*self.runs.torch.outputs(), *alone.outputs]):
            arrays = (alone.outputs.get(output), *(run.tensors.get(output) for run in self.runs[1:]))
            measured = self.judge.measure(output, *arrays)
            if measured.failed:
                yield output, 0, measured, arrays[0], arrays[2]

    def _wrong(self, part: str, alone: Alone) -> Iterator[tuple[str, int, Measurement, Any, Any]]:
        in_jax = alone.trace.tensors.get(part, [])
        found = self._first_wrong(part, in_jax, self.wanted[part])
        if found is not None:
            yield part, *found, in_jax[found[0]], self.wanted[part][1][found[0]]

    def wrong_within(self, place: str, alone: Alone) -> Iterator[tuple[str, int, Measurement, Any, Any]]:
        """Yield what differs inside of a submodule, in the order of the computation, and then its results."""
        inside = {part for child in self.children(place) for part in (*self.inputs(child), *self.results(child))}
        shaped = {part for child in self.children(place) for part in parts_of(self._trace(0), child)} & {
            *self.misshapen
        }
        first: list[tuple[str, int, Measurement, Any, Any]] = []
        """A result of another shape: what it is if nothing after it agrees, until something differs."""
        for part, call in alone.trace.events:
            if part in shaped and not first:
                arrays = (alone.trace.tensors[part][call], *[self.misshapen[part][call]] * 2)
                first = [(part, call, self.judge.measure(part, *arrays), arrays[0], arrays[2])]
            elif part in inside and call < len(self.wanted[part][1]):
                arrays = (alone.trace.tensors[part][call], *(side[call] for side in self.wanted[part]))
                measured = self.judge.measure(part, *arrays)
                if measured.failed:
                    yield from first
                    yield part, call, measured, arrays[0], arrays[2]
                elif not part.startswith("input of "):
                    first = []
        yield from first
        yield from self.wrong_results(place, alone)

    def agreed_before(self, place: str, name: str, call: int) -> Iterator[str]:
        """Yield the results that agree in the plain run and come before the one that differs."""
        plain = Alone(self._trace(0), self.runs.jax.outputs())
        given = {part for submodule in self.names for part in self.inputs(submodule)}
        for part, i in plain.trace.events:
            if (part, i) == (name, call):
                return
            if part in self.wanted and part not in given and i < len(self.wanted[part][1]):
                measured = self.judge.measure(part, plain.trace.tensors[part][i], *(s[i] for s in self.wanted[part]))
                if not measured.failed:
                    yield self.label(part, i)
        if not place:
            for output in self.runs.torch.outputs():
                if output == name:
                    return
                arrays = (run.tensors.get(output) for run in self.runs)
                if not self.judge.measure(output, *arrays).failed:
                    yield output

    def label(self, part: str, call: int) -> str:
        """PyTorch's name of a tensor, with the number of the call if there are several."""
        calls = self._trace(0).tensors.get(part, ())
        return self._torch_name(part) + (f"[{call}]" if len(calls) > 1 else "")

    def _torch_name(self, part: str) -> str:
        prefix = "input of " if part.startswith("input of ") else ""
        bare = part.removeprefix(prefix)
        owner = max((name for name in self.names if bare == name or bare.startswith(name + ".")), key=len, default=bare)
        return prefix + self.names.get(owner, [owner])[0] + bare.removeprefix(owner)

    def _by_values(self) -> str:
        """Where JAX has no submodules: the first submodule of PyTorch whose result JAX does not compute."""
        if any(self._is_submodule(name) for name in self.names):
            return ""
        with jax.enable_x64(self.dtype == "float64"):
            options = options_in(self.variant, jnp.dtype(self.dtype))
            inputs = self.numbers.rebuild(self.numbers.inputs)
            arrays, static = flatten(inputs)
            call = lambda weights, arrays: self.case.jax.call(weights, static(arrays), options)  # noqa: E731
            values = compute_values(call, *jax.device_put(({**self.numbers.buffers, **self.numbers.weights}, arrays)))
        return find_missing(self._trace(2), values)

    def _is_submodule(self, place: str) -> bool:
        return bool(place) and any(
            f"input of {other}" in (*self._trace(1).parents, *self._trace(1).tensors) for other in self.names[place]
        )

    # The backward pass

    def in_backward_pass(self, deadline: float) -> Divergence | None:
        """Find the first gradient that differs, from the outputs back."""
        agreed = [self.label(part, call) for part, call in self._trace(0).events if part in self.wanted]
        agreed = [name for name in agreed if not name.startswith("input of ")] + list(self.runs.torch.outputs())
        for name, place, (in_jax, in_torch, truth) in self._gradients():
            measured = self.judge.measure(name, in_jax, in_torch, truth)
            if measured.failed:
                return Divergence(
                    *(self.case.name, self.variant.name, self.dtype, "backward", name, difference(measured)),
                    agreed=tuple(agreed),
                    symptoms=describe(in_jax, truth),
                    found=self._explain_gradients(deadline),
                    module=place,
                )
            agreed.append(name)
        return None

    def _explain_gradients(self, deadline: float) -> Found:
        if self.case.torch.golden is not None:
            return Found()
        from parity_tests.your_port.cause.find import find_gradient_causes  # it needs torch

        return find_gradient_causes(self, deadline)

    def _gradients(self) -> Iterator[tuple[str, str, list[Any]]]:
        """Yield the gradients of both sides: of intermediate tensors from the last to the first, then of the rest.

        With each comes PyTorch's path of the submodule that works with the tensor.
        """
        pairs = {
            part: (self.names.get(self.owner(name), [""])[0], pair)
            for name, others in self.names.items()
            for part, pair in self._pair(name, others, "gradients")
        }
        for part, call in reversed(self._trace(0).events):
            if part in pairs and call < len(pairs[part][1][0]):
                place, sides = pairs[part]
                arrays = [self._trace(0).gradients[part][call], *(side[call] for side in sides)]
                yield f"gradient of {self.label(part, call)}", place, arrays
        for name in dict.fromkeys([*self.runs.torch.tensors, *self.runs.jax.tensors]):
            if name not in self.runs.torch.outputs():
                place = name.removeprefix("gradient of ").rpartition(".")[0]
                yield name, place, [run.tensors.get(name) for run in self.runs]


def parts_of(trace: Trace, name: str) -> list[str]:
    """The names of a submodule's tensors."""
    return trace.parts.get(name, [name] if name in trace.tensors else [])


def _in_order(trace: Trace) -> list[str]:
    """The names of submodules and taps, in the order of their first results."""
    whole = {part: name for name, parts in trace.parts.items() for part in parts}
    names = dict.fromkeys(whole.get(part, part) for part, _ in trace.events) if trace.events else whole or trace.tensors
    return [name for name in names if not name.startswith("input of ")]
