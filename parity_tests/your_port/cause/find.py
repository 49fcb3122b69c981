"""Try out the known mistakes of moving a model: which one, made in PyTorch on purpose, gives JAX's numbers?

A mistake is tried first where it costs little: on the submodule in which the two programs part, called as PyTorch
called it, beside what JAX's returned for the same. Where none fits, the submodules around it are tried, and the whole
program last. What fits these numbers may fit by chance. So it is confirmed: both programs run again, on two fresh draws
of weights and inputs, PyTorch's with the mistake in it; its outputs and gradients have to be JAX's. All mistakes of a
kind that pass are named, none that fails.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax

from parity_tests.your_port.cause.cause import Cause, Explains, Found, most_explaining, weakest
from parity_tests.your_port.cause.hypotheses import hypotheses, of_gradients
from parity_tests.your_port.cause.planting import Hypothesis, Places
from parity_tests.your_port.cause.subjects import Subject, subjects, tells_something
from parity_tests.your_port.measure.case import Case, Variant
from parity_tests.your_port.measure.comparison import Measurement, compare_runs, run_both
from parity_tests.your_port.measure.errors import relative_error
from parity_tests.your_port.measure.numbers import fresh, make_numbers
from parity_tests.your_port.place.bisect import Search
from parity_tests.your_port.place.pairing import kind_of

DRAWS = (1, 2)
PRECISION = "products in less than full precision: set jax_default_matmul_precision to highest"
RANDOM = "random numbers are drawn in JAX, as by dropout or noise that is left on"


def find_causes(search: Search, place: Sequence[str], within: str, deadline: float) -> Found:
    """Find the mistakes that explain why a submodule's results disagree; for the place see `subjects`."""
    wide = _in_float64(search)
    if wide is None:
        with jax.default_matmul_precision("highest"):
            runs = search.runs._replace(jax=search.run([]))
        measured = compare_runs(search.case, search.variant, search.dtype, runs)
        agrees = not any(m.failed for m in measured if not m.is_gradient)
        return Found((Cause(PRECISION, Explains.GIVEN_NUMBERS),) if agrees else ())
    if _is_random(wide):
        return Found((Cause(RANDOM, Explains.RANDOMNESS),))
    trial = _Trial(wide, place[-1] if place else "", deadline)
    for subject in subjects(wide, place, within):
        found = trial.of(subject, hypotheses(subject))
        if found.causes or found.stopped_after is not None:
            return found
    return Found(tried=trial.tried)


def find_gradient_causes(search: Search, deadline: float) -> Found:
    """Find the mistakes that explain why gradients disagree where the values agree."""
    wide = _in_float64(search)
    if wide is None:
        return Found()
    program = replace(next(subjects(wide)), agrees=lambda _: True)  # the values cannot tell
    found = _Trial(wide, "", deadline).of(program, of_gradients(program))
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
    deadline: float
    tried: int = 0

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
                    causes.setdefault(cause.words, cause)
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
        return compare_runs(self.search.case, variant, "float64", runs) if tells else []

    def _confirmed(self, subject: Subject, hypothesis: Hypothesis) -> Cause | None:
        """Return what a mistake that fits explains on fresh draws; None if it does not explain them."""
        places, explains = subject.places, Explains.GIVEN_NUMBERS
        if len(self._draws) == len(DRAWS):
            for places in dict.fromkeys((subject.places, self._alike(subject))):
                made = [self._explained(hypothesis, places, draw) for draw in self._draws]
                if None not in made:
                    explains = weakest([x for x in made if x])
                    break
            else:
                if not subject.name or not all(self._fits_alone(hypothesis, subject, draw) for draw in self._draws):
                    return None
                places, explains = subject.places, Explains.SUBMODULE
        where = kind_of(places[0]) if len(places) > 1 else places[0]
        here = subject.name in ("", self.place) and where == subject.places[0]
        suffix = "" if here or "{at}" in hypothesis.words else f", in {where}"
        return Cause(hypothesis.said(where) + suffix, explains)

    def _alike(self, subject: Subject) -> tuple[str, ...]:
        """Return the places of the submodule, and of all of its kind that part too."""
        if not subject.name or len(subject.places) > 1:
            return subject.places
        search = self.search
        alike = [name for name in search.names if kind_of(name) == kind_of(subject.name)]
        seen = search.seen([given for name in alike for given in search.inputs(name)])
        differ = {x.tensor.of for x in seen if x.measured.failed and x.tensor.is_result}
        wrong = (search.names[name][0] for name in alike if name in differ)
        return tuple(dict.fromkeys((*subject.places, *wrong)))

    def _explained(self, hypothesis: Hypothesis, places: Places, variant: Variant) -> Explains | None:
        """Run both whole programs on a draw, PyTorch's with the mistake."""
        side = self.search.case.torch

        def call(module: Any, inputs: Any, options: Any) -> Any:
            return hypothesis.run(lambda *given: side.call(*given, options), places, module, inputs)

        measured = self._measured(replace(self.search.case, torch=replace(side, call=call)), variant)
        if not measured or any(m.failed for m in measured if not m.is_gradient):
            return None
        gradients = [m for m in measured if m.is_gradient]
        if not gradients:
            return Explains.OUTPUTS_COMPARED
        return Explains.OUTPUTS if any(m.failed for m in gradients) else Explains.OUTPUTS_AND_GRADIENTS

    def _fits_alone(self, hypothesis: Hypothesis, subject: Subject, variant: Variant) -> bool:
        """Whether the submodule alone gives JAX's outputs on a draw: another mistake may be elsewhere."""
        other = next(subjects(_on(variant, self.search), [subject.name]))
        return other.places == subject.places and not other.fits() and other.fits(hypothesis)
