"""Try out the known mistakes of moving a model: which one, made in PyTorch on purpose, gives JAX's numbers?

A mistake is tried first where it costs little: on the submodule in which the two programs part, called as PyTorch
called it, beside what JAX's returned for the same. Where none fits, the submodules around it are tried, and the whole
program last. What fits these numbers may fit by chance. So it is confirmed: both programs run again, on two fresh draws
of weights and inputs, PyTorch's with the mistake in it; its outputs and gradients have to be JAX's, and it has to
compute the tensor in which the two part. All mistakes of a kind that pass are named, none that fails.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from operator import itemgetter

import jax
import numpy as np

from parity_tests.your_port.cause.cause import Cause, Explains, Found, most_explaining, weakest
from parity_tests.your_port.cause.hypotheses import hypotheses, of_gradients
from parity_tests.your_port.cause.next_step import Steps, next_step, same_numbers
from parity_tests.your_port.cause.planting import Hypothesis, Places
from parity_tests.your_port.cause.suspects import Suspect, suspects, tells_something
from parity_tests.your_port.measure.case import Case
from parity_tests.your_port.measure.draw import Draw
from parity_tests.your_port.measure.errors import relative_error
from parity_tests.your_port.measure.judge import Measurement
from parity_tests.your_port.measure.numbers import fresh
from parity_tests.your_port.measure.op_by_op import without_jit
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
        place, within: see `suspects`.
        first: JAX's name of the tensor in which the two part.
        deadline: in seconds of computing.
        beside: other cases of the two programs that a mistake has to explain too, such as a step of training.
    """
    wide = _in_float64(search)
    if wide is None:
        with jax.default_matmul_precision("highest"):
            runs = search.runs._replace(jax=search.run([]))
        measured = search.draw.compare(runs)
        agrees = not any(m.failed for m in measured if not m.is_gradient)
        return Found((Cause(PRECISION, Explains.GIVEN_NUMBERS),) if agrees else ())
    if _is_random(wide):
        return Found((Cause(RANDOM, Explains.RANDOMNESS),))
    trial, found = _Trial(wide, place[-1] if place else "", first, deadline, beside), Found()
    for suspect in suspects(wide, place, within):
        found = trial.of(suspect, hypotheses(suspect))
        if found.causes or found.stopped_after is not None:
            break
    if found.causes or wide.draw.dtype != "float64":
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
    program = replace(next(suspects(wide)), agrees=lambda _: True)  # the values cannot tell
    found = _Trial(wide, "", "", deadline).of(program, of_gradients(program))
    return found._replace(causes=tuple(c for c in found.causes if c.explains is Explains.OUTPUTS_AND_GRADIENTS))


def _in_float64(search: Search) -> Search | None:
    """Return the search in float64, where small mistakes are seen; None if the two agree there."""
    if search.draw.dtype == "float64":
        return search
    wide = Search(replace(search.draw, dtype="float64"))
    try:
        differs = any(m.failed for m in wide.draw.measure(without_jit))
    except Exception:  # the port does not run in float64: causes are named, but not confirmed
        return search
    return wide if differs else None


def _is_random(search: Search) -> bool:
    """Whether JAX's results change with the way in which it makes random bits of a key."""
    with jax.threefry_partitionable(not jax.config.jax_threefry_partitionable):  # type: ignore[attr-defined]
        other = search.run([]).outputs
    outputs = search.runs.jax.outputs
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

    def __post_init__(self) -> None:
        self.start = time.process_time()

    def of(self, suspect: Suspect, groups: Iterable[Iterable[Hypothesis]]) -> Found:
        """Return the causes of the first group that explain everything, or else those that explain most."""
        causes: dict[str, Cause] = {}
        for group in groups:
            for hypothesis in group:
                if time.process_time() > self.deadline:
                    return Found(most_explaining(causes.values()), self.tried, time.process_time() - self.start)
                self.tried += 1
                cause = self._confirmed(suspect, hypothesis) if suspect.fits(hypothesis) else None
                if cause is not None:
                    causes.setdefault(str(cause), cause)
            if any(cause.explains.everything for cause in causes.values()):
                break
        return Found(most_explaining(causes.values()), self.tried)

    @cached_property
    def _draws(self) -> list[Search]:
        """Fresh draws on which both programs run, and in which the difference is seen."""
        draw = self.search.draw
        variants = [fresh(draw.variant, number) for number in DRAWS if draw.dtype == "float64"]
        # Each fresh, or with the inputs as they are, which PyTorch may need.
        pairs = [(variant, replace(variant, inputs=draw.variant.inputs)) for variant in variants]
        found = list[Search]()
        for pair in pairs:
            drawn = (Search(replace(draw, variant=variant, kept={})) for variant in pair)
            found += islice((search for search in drawn if any(m.failed for m in _measured(search.draw))), 1)
        return found

    def _confirmed(self, suspect: Suspect, hypothesis: Hypothesis) -> Cause | None:
        """Return what a mistake that fits explains on fresh draws; None if it does not explain them."""
        places, explains = suspect.places, Explains.GIVEN_NUMBERS
        if len(self._draws) == len(DRAWS):
            for places in self._alike(suspect):
                made = [self._explained(hypothesis, places, each.draw) for each in self._draws]
                if None not in made:
                    if not all(self._computes_first(hypothesis, places, each) for each in self._draws):
                        return None
                    explains = weakest([x for x in made if x])
                    break
            else:
                if not suspect.name or not all(_fits_alone(hypothesis, suspect, each) for each in self._draws):
                    return None
                places, explains = suspect.places, Explains.SUBMODULE
        kinds = [*dict.fromkeys(map(kind_of, places))] if len(places) > 1 else [*places]
        where = kinds[0] if len(kinds) == 1 else ""
        suffix = f", in {where or ' and '.join(kinds) or 'all places'}"
        if (suspect.name in ("", self.place) and kinds == [suspect.places[0]]) or "{at}" in hypothesis.words:
            suffix = ""
        return Cause(hypothesis.said(where) + suffix, explains, hypothesis.line)

    def _alike(self, suspect: Suspect) -> list[tuple[str, ...]]:
        """Return the places of the submodule; those of its kind, and of its class, that part too; the whole program."""
        if not suspect.name:
            return [suspect.places]
        search, found = self.search, [suspect.places]
        root = suspect.root
        classes = {name: root and type(root.get_submodule(paths[0])) for name, paths in search.names.items()}
        for is_alike in (lambda name: kind_of(name) == kind_of(suspect.name),
                         lambda name: classes[name] and classes[name] == classes[suspect.name]):  # fmt: skip
            alike = [name for name in search.names if is_alike(name)]
            seen = search.compare([given for name in alike for given in search.inputs(name)])
            differ = {x.tensor.of for x in seen if x.measured.failed and x.tensor.is_result}
            wrong = (path for name in alike if name in differ for path in search.names[name])
            found.append(tuple(dict.fromkeys((*suspect.places, *wrong))))
        return [*dict.fromkeys([*found, ("",)])]

    def _computes_first(self, hypothesis: Hypothesis, places: Places, drawn: Search) -> bool:
        """Whether PyTorch with the mistake computes the tensor of JAX in which the two part, in any order of axes.

        So a mistake that later steps hide, such as a softmax, is none. Where PyTorch computes none of this size, as
        step by step, nothing can be said.
        """
        in_jax = [x.value for x in drawn.trace if x.name == self.first]
        if not in_jax:
            return True
        with Steps() as steps:
            drawn.draw.beside(hypothesis.made_in(drawn.draw.case, places)).in_torch()
        alike = (sorted((y for y in steps.values if y.size == x.size > 0), key=itemgetter(0)) for x in in_jax)
        rule = self.search.judge.rule
        return all(not ys or same_numbers(np.sort(x, axis=None), ys, rule) for x, ys in zip(in_jax, alike, strict=True))

    def _explained(self, hypothesis: Hypothesis, places: Places, draw: Draw) -> Explains | None:
        """Run both whole programs on a draw, PyTorch's with the mistake."""
        measured = _measured(draw, hypothesis.made_in(draw.case, places))
        if not measured or any(m.failed for m in measured if not m.is_gradient):
            return None
        gradients = [m for m in measured if m.is_gradient]
        if any(m.failed for m in gradients):
            return Explains.OUTPUTS
        others = (Draw(case, draw.variant, "float64") for case in self.beside)
        if any(m.failed for other in others for m in _measured(other, hypothesis.made_in(other.case, places))):
            return Explains.NOT_ALL_CASES
        return Explains.OUTPUTS_AND_GRADIENTS if gradients else Explains.OUTPUTS_COMPARED


def _measured(draw: Draw, wrong: Case | None = None) -> list[Measurement]:
    """Measure both programs, or PyTorch's `wrong` one; [] if one cannot run, or JAX's results tell nothing."""
    try:
        runs = draw.runs() if wrong is None else draw.beside(wrong).against(draw.in_jax())
    except Exception:  # whatever PyTorch raises for numbers or for a mistake that it does not take
        return []
    tells = all(map(tells_something, runs.jax.outputs.values()))
    return draw.compare(runs) if tells else []


def _fits_alone(hypothesis: Hypothesis, suspect: Suspect, drawn: Search) -> bool:
    """Whether the submodule alone gives JAX's outputs on a draw: another mistake may be elsewhere."""
    other = next(suspects(drawn, [suspect.name]))
    return other.places == suspect.places and not other.fits() and other.fits(hypothesis)
