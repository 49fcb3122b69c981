"""Try out the known mistakes of moving a model: which one, made in PyTorch on purpose, gives JAX's numbers?

A mistake is tried first where it costs little: on the submodule in which the two programs part, called as PyTorch
called it, beside what JAX's returned for the same. Where none fits, the submodules around it are tried, and the whole
program last. What fits these numbers may fit by chance. So it is confirmed: both programs run again, on two fresh draws
of weights and inputs, PyTorch's with the mistake in it; its outputs and gradients have to be JAX's. All mistakes of a
kind that pass are named, none that fails.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from parity_tests.your_port.cause.cause import Cause, Explains, Found, most_explaining, weakest
from parity_tests.your_port.cause.hypotheses import hypotheses, of_gradients
from parity_tests.your_port.cause.planting import Hypothesis, Places
from parity_tests.your_port.cause.random import depends_on_random_numbers
from parity_tests.your_port.cause.subjects import Subject, program_of, subjects, tells_something
from parity_tests.your_port.measure.case import Case, Variant
from parity_tests.your_port.measure.comparison import Measurement, Runs, compare_runs, run_both
from parity_tests.your_port.measure.numbers import fresh, make_numbers, options_in
from parity_tests.your_port.measure.tree import flatten
from parity_tests.your_port.place.pairing import kind_of

if TYPE_CHECKING:
    from parity_tests.your_port.place.bisect import Search

DRAWS = (1, 2)


def find_causes(search: "Search", place: str, within: str, deadline: float) -> Found:
    """Find the mistakes that explain why a submodule's results disagree."""
    wide = _in_float64(search)
    if wide is None:
        return Found(_in_full_precision(search))
    if _is_random(wide):
        words = "random numbers are drawn in JAX, as by dropout or noise that is left on"
        return Found((Cause(words, Explains.RANDOMNESS),))
    trial = _Trial(wide, place, deadline)
    for subject in subjects(wide, place, within):
        found = trial.of(subject, hypotheses(subject))
        if found.causes or found.stopped_after is not None:
            return found
    return Found(_in_full_precision(search), trial.tried)


def _is_random(search: "Search") -> bool:
    """Whether JAX's program draws random numbers that reach its results."""
    numbers, case = search.numbers, search.case
    with jax.enable_x64(search.dtype == "float64"):
        options = options_in(search.variant, jnp.dtype(search.dtype))
        arrays, static = flatten(numbers.rebuild(numbers.inputs))
        call = lambda weights, arrays: case.jax.call(weights, static(arrays), options)  # noqa: E731
        given = jax.device_put(({**numbers.buffers, **numbers.weights}, arrays))
        return depends_on_random_numbers(jax.make_jaxpr(call)(*given).jaxpr)


def find_gradient_causes(search: "Search", deadline: float) -> Found:
    """Find the mistakes that explain why gradients disagree where the values agree."""
    wide = _in_float64(search)
    if wide is None:
        return Found()
    program = replace(program_of(wide), agrees=lambda _: True)  # the values cannot tell
    found = _Trial(wide, "", deadline).of(program, of_gradients(program))
    return found._replace(causes=tuple(c for c in found.causes if c.explains is Explains.OUTPUTS_AND_GRADIENTS))


def _in_float64(search: "Search") -> "Search | None":
    """Return the search in float64, where small mistakes are seen; None if the two agree there."""
    if search.dtype == "float64":
        return search
    variant = replace(search.variant, dtypes=("float64",))
    try:
        wide = on_fresh_numbers(replace(search, dtype="float64"), variant)
    except Exception:  # the port does not run in float64: causes are named, but not confirmed
        return search
    return wide if any(m.failed for m in compare_runs(search.case, variant, "float64", wide.runs)) else None


def on_fresh_numbers(search: "Search", variant: Variant) -> "Search":
    """Return the same search in other runs."""
    numbers = make_numbers(search.case, variant, search.dtype)
    runs = run_both(search.case, variant, numbers, search.dtype, record=True)
    return replace(search, variant=variant, numbers=numbers, runs=runs)


def _in_full_precision(search: "Search") -> tuple[Cause, ...]:
    if search.dtype == "float64" and jax.default_backend() == "cpu":
        return ()
    with jax.default_matmul_precision("highest"):
        agrees = not search.differs("", search.run([]))
    words = "products in less than full precision: set jax_default_matmul_precision to highest"
    return (Cause(words, Explains.GIVEN_NUMBERS),) if agrees else ()


@dataclass
class _Trial:
    """Tries mistakes until the time runs out, and confirms those that fit on fresh draws of weights and inputs."""

    search: "Search"
    place: str
    """Where the two part, which needs no mention."""
    deadline: float
    tried: int = 0

    def __post_init__(self) -> None:
        self.start = time.process_time()
        self._alone: dict[str, Any] = {}

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
        """The fresh draws on which PyTorch runs, and in which the difference is seen."""
        wide = self.search.dtype == "float64"
        return [draw for draw in map(self._draw, DRAWS) if draw is not None] if wide else []

    def _draw(self, draw: int) -> Variant | None:
        drawn = fresh(self.search.variant, draw)
        for variant in (drawn, replace(drawn, inputs=self.search.variant.inputs)):
            runs = self._run(self.search.case, variant)
            if runs is not None and not _has_nan(runs) and any(m.failed for m in self._measured(runs, variant)):
                return variant
        return None

    def _run(self, case: Case, variant: Variant) -> Runs | None:
        """Run both programs; None if one cannot run."""
        try:
            return run_both(case, variant, make_numbers(case, variant, "float64"), "float64")
        except Exception:  # whatever PyTorch raises for numbers or for a mistake that it does not take
            return None

    def _measured(self, runs: Runs, variant: Variant) -> list[Measurement]:
        return compare_runs(self.search.case, variant, "float64", runs)

    def _confirmed(self, subject: Subject, hypothesis: Hypothesis) -> Cause | None:
        """Return what a mistake that fits explains on fresh draws; None if it does not explain them."""
        explains, where = self._result(subject, hypothesis)
        if explains is None:
            return None
        here = subject.name in ("", self.place) and where == subject.places[0]
        suffix = "" if here or "{at}" in hypothesis.words else f", in {where}"
        return Cause(hypothesis.said(where) + suffix, explains)

    def _result(self, subject: Subject, hypothesis: Hypothesis) -> tuple[Explains | None, str]:
        """Return what a mistake explains, and where it has to be made."""
        place = subject.places[0]
        if len(self._draws) < len(DRAWS):
            return Explains.GIVEN_NUMBERS, place
        for places in self._scopes(subject):
            made = [x for draw in self._draws if (x := self._explained(hypothesis, places, draw)) is not None]
            if len(made) == len(DRAWS):
                return weakest(made), kind_of(place) if len(places) > 1 else place
        if subject.name and all(self._fits_alone(hypothesis, subject, draw) for draw in self._draws):
            return Explains.SUBMODULE, place
        return None, place

    def _scopes(self, subject: Subject) -> Iterator[Places]:
        """Yield the submodule, and with it all of its kind that part too."""
        yield subject.places
        if subject.name and len(subject.places) == 1:
            search = self.search
            alike = [name for name in search.names if kind_of(name) == kind_of(subject.name)]
            parting = search.run([part for name in alike for part in search.inputs(name)])
            wrong = [search.names[name][0] for name in alike if search.differs(name, parting)]
            if len(wrong) > 1:
                yield wrong

    def _explained(self, hypothesis: Hypothesis, places: Places, variant: Variant) -> Explains | None:
        """Run both whole programs on a draw, PyTorch's with the mistake."""
        side = self.search.case.torch

        def call(module: Any, inputs: Any, options: Any) -> Any:
            right = lambda module, inputs: side.call(module, inputs, options)  # noqa: E731
            return hypothesis.wrong(right, places)(module, inputs)

        runs = self._run(replace(self.search.case, torch=replace(side, call=call)), variant)
        if runs is None or not all(map(tells_something, runs.jax.outputs().values())):
            return None
        measured = self._measured(runs, variant)
        if any(m.failed for m in measured if not m.is_gradient):
            return None
        gradients = [m for m in measured if m.is_gradient]
        if not gradients:
            return Explains.OUTPUTS_COMPARED
        return Explains.OUTPUTS if any(m.failed for m in gradients) else Explains.OUTPUTS_AND_GRADIENTS

    def _fits_alone(self, hypothesis: Hypothesis, subject: Subject, variant: Variant) -> bool:
        """Whether the submodule alone gives JAX's outputs on a draw: another mistake may be elsewhere."""
        if variant.name not in self._alone:
            self._alone[variant.name] = on_fresh_numbers(self.search, variant)
        same = (s for s in subjects(self._alone[variant.name], subject.name, "") if s.places == subject.places)
        other = next(same, None)
        return other is not None and not other.fits() and other.fits(hypothesis)


def _has_nan(runs: Runs) -> bool:
    return any(x is not None and x.dtype.kind == "f" and bool(np.isnan(x).any()) for x in runs.truth.tensors.values())
