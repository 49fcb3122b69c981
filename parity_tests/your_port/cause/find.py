"""Try out the known mistakes of moving a model: which one, made in PyTorch on purpose, gives JAX's numbers?

A mistake is tried first where it costs little: on the submodule in which the two programs part, called as PyTorch
called it, beside what JAX's returned for the same. Where none fits, the submodules around it are tried, and the whole
program last. What fits these numbers may fit by chance. So it is confirmed: both programs run again, on two fresh draws
of weights and inputs, PyTorch's with the mistake in it; its outputs and gradients have to be JAX's, and it has to
compute the tensor in which the two part. All mistakes of a kind that pass are named, none that fails.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import Any

import jax
import numpy as np

from parity_tests.your_port.cause.cause import Cause, Explains, Found, most_explaining, weakest
from parity_tests.your_port.cause.hypotheses import hypotheses, of_gradients
from parity_tests.your_port.cause.next_step import Steps, next_step, same_numbers
from parity_tests.your_port.cause.planting import Hypothesis, Places
from parity_tests.your_port.cause.subjects import Subject, subjects, tells_something
from parity_tests.your_port.measure.case import Case, Variant
from parity_tests.your_port.measure.comparison import Measurement, compare_runs, run_both, run_torch_side
from parity_tests.your_port.measure.errors import relative_error
from parity_tests.your_port.measure.numbers import fresh, make_numbers
from parity_tests.your_port.place.bisect import Search
from parity_tests.your_port.place.pairing import kind_of

DRAWS = (1, 2)
PRECISION = "products in less than full precision: set jax_default_matmul_precision to highest"
RANDOM = "random numbers are drawn in JAX, as by dropout or noise that is left on"


def find_causes(
    search: Search, place: Sequence[str], within: str, first: str, deadline: float, beside: Sequence[Case] = ()
) -> Found:
    """Find the mistakes that explain why a submodule's results disagree.

    Args:
        search: the runs.
        place, within: see `subjects`.
        first: JAX's name of the tensor in which the two part.
        deadline: in seconds of computing.
        beside: other cases of the two programs that a mistake has to explain too, such as a step of training.
    """
    wide = _in_float64(search)
    if wide is None:
        with jax.default_matmul_precision("highest"):
            runs = search.runs._replace(jax=search.run([]))
        measured = compare_runs(search.case, search.variant, search.dtype, runs)
        agrees = not any(m.failed for m in measured if not m.is_gradient)
        return Found((Cause(PRECISION, Explains.GIVEN_NUMBERS),) if agrees else ())
    if _is_random(wide):
        return Found((Cause(RANDOM, Explains.RANDOMNESS),))
    trial, found = _Trial(wide, place[-1] if place else "", first, deadline, beside), Found()
    for subject in subjects(wide, place, within):
        found = trial.of(subject, hypotheses(subject))
        if found.causes or found.stopped_after is not None:
            break
    if found.causes or wide.dtype != "float64":
        return found
    try:
        return found._replace(tried=trial.tried, next_step=next_step(wide))
    except Exception:  # whatever JAX raises for a program that cannot be run operation by operation
        return found._replace(tried=trial.tried)


def find_gradient_causes(search: Search, deadline: float) -> Found:
    """Find the mistakes that explain why gradients disagree where the values agree."""
    wide = _in_float64(search)
    if wide is None:
        return Found()
    program = replace(next(subjects(wide)), agrees=lambda _: True)  # the values cannot tell
    found = _Trial(wide, "", "", deadline).of(program, of_gradients(program))
    return found._replace(causes=tuple(c for c in found.causes if c.explains is Explains.OUTPUTS_AND_GRADIENTS))


def _in_float64(search: Search) -> Search | None:
    """Return the search in float64, where small mistakes are seen; None if the two agree there."""
    if search.dtype == "float64":
        return search
    variant = replace(search.variant, dtypes=("float64",))
    try:
        wide = _on(variant, replace(search, dtype="float64"))
    except Exception:  # the port does not run in float64: causes are named, but not confirmed
        return search
    return wide if any(m.failed for m in compare_runs(search.case, variant, "float64", wide.runs)) else None


def _on(variant: Variant, search: Search) -> Search:
    """Return the same search in other runs."""
    numbers = make_numbers(search.case, variant, search.dtype)
    runs = run_both(search.case, variant, numbers, search.dtype, record=True)
    return replace(search, variant=variant, numbers=numbers, runs=runs)


def _is_random(search: Search) -> bool:
    """Whether JAX's results change with the way in which it makes random bits of a key."""
    with jax.threefry_partitionable(not jax.config.jax_threefry_partitionable):  # type: ignore[attr-defined]
        other = search.run([]).outputs()
    outputs = search.runs.jax.outputs()
    return any(x is not None and relative_error(other[name], x) > 1e-6 for name, x in outputs.items())


@dataclass
class _Trial:
    """Tries mistakes until the time runs out, and confirms those that fit on fresh draws of weights and inputs."""

    search: Search
    place: str
    """Where the two part, which needs no mention."""
    first: str
    deadline: float
    beside: Sequence[Case] = ()
    tried: int = 0
    recorded: dict[str, Search] = field(default_factory=dict)
    """The searches on fresh draws, by the name of the variant."""

    def __post_init__(self) -> None:
        self.start = time.process_time()

    def of(self, subject: Subject, groups: Iterable[Iterable[Hypothesis]]) -> Found:
        """Return the causes of the first group that explain everything, or else those that explain most."""
        causes: dict[str, Cause] = {}
        for group in groups:
            for hypothesis in group:
                if time.process_time() > self.deadline:
                    return Found(most_explaining(causes.values()), self.tried, time.process_time() - self.start)
                self.tried += 1
                cause = self._confirmed(subject, hypothesis) if subject.fits(hypothesis) else None
                if cause is not None:
                    causes.setdefault(str(cause), cause)
            if any(cause.explains.everything for cause in causes.values()):
                break
        return Found(most_explaining(causes.values()), self.tried)

    @cached_property
    def _draws(self) -> list[Variant]:
        """The fresh draws on which both programs run, and in which the difference is seen."""
        given = self.search.variant
        drawn = [fresh(given, draw) for draw in DRAWS if self.search.dtype == "float64"]
        pairs = [(variant, replace(variant, inputs=given.inputs)) for variant in drawn]
        return [variant for pair in pairs for variant in list(filter(self._tells, pair))[:1]]

    def _tells(self, variant: Variant) -> bool:
        return any(m.failed for m in self._measured(self.search.case, variant))

    def _measured(self, case: Case, variant: Variant) -> list[Measurement]:
        """Run both programs and measure them; [] if one cannot run, or JAX's results tell nothing."""
        try:
            runs = run_both(case, variant, make_numbers(case, variant, "float64"), "float64")
        except Exception:  # whatever PyTorch raises for numbers or for a mistake that it does not take
            return []
        tells = all(map(tells_something, runs.jax.outputs().values()))
        return compare_runs(case, variant, "float64", runs) if tells else []

    def _confirmed(self, subject: Subject, hypothesis: Hypothesis) -> Cause | None:
        """Return what a mistake that fits explains on fresh draws; None if it does not explain them."""
        places, explains = subject.places, Explains.GIVEN_NUMBERS
        if len(self._draws) == len(DRAWS):
            for places in self._alike(subject):
                made = [self._explained(hypothesis, places, draw) for draw in self._draws]
                if None not in made:
                    if not all(self._computes_first(hypothesis, places, draw) for draw in self._draws):
                        return None
                    explains = weakest([x for x in made if x])
                    break
            else:
                if not subject.name or not all(self._fits_alone(hypothesis, subject, draw) for draw in self._draws):
                    return None
                places, explains = subject.places, Explains.SUBMODULE
        kinds = [*dict.fromkeys(map(kind_of, places))] if len(places) > 1 else [*places]
        where = kinds[0] if len(kinds) == 1 else ""
        suffix = f", in {where or ' and '.join(kinds) or 'all places'}"
        if (subject.name in ("", self.place) and kinds == [subject.places[0]]) or "{at}" in hypothesis.words:
            suffix = ""
        return Cause(hypothesis.said(where) + suffix, explains, hypothesis.line)

    def _alike(self, subject: Subject) -> list[tuple[str, ...]]:
        """Return the places of the submodule; those of its kind, and of its class, that part too; the whole program."""
        if not subject.name:
            return [subject.places]
        search, found = self.search, [subject.places]
        classes = {name: _class_of(subject, paths[0]) for name, paths in search.names.items()}
        for is_alike in (lambda name: kind_of(name) == kind_of(subject.name),
                         lambda name: classes[name] and classes[name] == classes[subject.name]):  # fmt: skip
            alike = [name for name in search.names if is_alike(name)]
            seen = search.compare([given for name in alike for given in search.inputs(name)])
            differ = {x.tensor.of for x in seen if x.measured.failed and x.tensor.is_result}
            wrong = (path for name in alike if name in differ for path in search.names[name])
            found.append(tuple(dict.fromkeys((*subject.places, *wrong))))
        return [*dict.fromkeys([*found, ("",)])]

    def _computes_first(self, hypothesis: Hypothesis, places: Places, variant: Variant) -> bool:
        """Whether PyTorch with the mistake computes the tensor of JAX in which the two part, in any order of axes.

        So a mistake that later steps hide, such as a softmax, is none. Where PyTorch computes none of this size, as
        step by step, nothing can be said.
        """
        in_jax = [x.value for x in self._recorded(variant).trace if x.name == self.first]
        if not in_jax:
            return True
        wrong = _with(hypothesis, places, self.search.case)
        with Steps() as steps:
            run_torch_side(wrong, variant, make_numbers(wrong, variant, "float64"), "float64", "float64")
        alike = (sorted((y for y in steps.values if y.size == x.size > 0), key=itemgetter(0)) for x in in_jax)
        rule = self.search.judge.rule
        return all(not ys or same_numbers(np.sort(x, axis=None), ys, rule) for x, ys in zip(in_jax, alike, strict=True))

    def _explained(self, hypothesis: Hypothesis, places: Places, variant: Variant) -> Explains | None:
        """Run both whole programs on a draw, PyTorch's with the mistake."""
        measured = self._measured(_with(hypothesis, places, self.search.case), variant)
        if not measured or any(m.failed for m in measured if not m.is_gradient):
            return None
        gradients = [m for m in measured if m.is_gradient]
        if any(m.failed for m in gradients):
            return Explains.OUTPUTS
        if any(m.failed for case in self.beside for m in self._measured(_with(hypothesis, places, case), variant)):
            return Explains.NOT_ALL_CASES
        return Explains.OUTPUTS_AND_GRADIENTS if gradients else Explains.OUTPUTS_COMPARED

    def _fits_alone(self, hypothesis: Hypothesis, subject: Subject, variant: Variant) -> bool:
        """Whether the submodule alone gives JAX's outputs on a draw: another mistake may be elsewhere."""
        other = next(subjects(self._recorded(variant), [subject.name]))
        return other.places == subject.places and not other.fits() and other.fits(hypothesis)

    def _recorded(self, variant: Variant) -> Search:
        """The search on a draw."""
        if variant.name not in self.recorded:
            self.recorded[variant.name] = _on(variant, self.search)
        return self.recorded[variant.name]


def _with(hypothesis: Hypothesis, places: Places, case: Case) -> Case:
    """Make the mistake in PyTorch's side of a case."""
    right = case.torch.call

    def call(module: Any, inputs: Any, options: Any) -> Any:
        return hypothesis.run(lambda *given: right(*given, options), places, module, inputs)

    return replace(case, torch=replace(case.torch, call=call))


def _class_of(subject: Subject, path: str) -> type | None:
    return None if subject.root is None else type(subject.root.get_submodule(path))
