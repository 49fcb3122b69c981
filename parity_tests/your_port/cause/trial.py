"""Try known mistakes as explanations: which one, made in PyTorch on purpose, gives JAX's numbers?

What fits these numbers may fit by chance. So it is confirmed: both programs run again, on two fresh draws of weights
and inputs, PyTorch's with the mistake in it; its outputs and gradients have to be JAX's, and it has to compute the
tensor in which the two part. All mistakes of a kind that pass are named, none that fails.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

from parity_tests.your_port.cause.cause import Cause, Explains, Found, most_explaining, weakest
from parity_tests.your_port.cause.planting import Hypothesis, Places
from parity_tests.your_port.cause.steps import Steps, Values, entries_of
from parity_tests.your_port.cause.suspects import Suspect, suspects, tells_something
from parity_tests.your_port.measure.arrays import is_floating
from parity_tests.your_port.measure.case import Case
from parity_tests.your_port.measure.draw import Draw
from parity_tests.your_port.measure.judge import Measurement
from parity_tests.your_port.measure.numbers import fresh
from parity_tests.your_port.place.bisect import Search
from parity_tests.your_port.place.pairing import kind_of

DRAWS = (1, 2)
SHARE = 0.5
"""Of the time that is left, that a search may take: so some is left for others."""


@dataclass
class Trial:
    """Tries mistakes until the time runs out, and confirms those that fit on fresh draws of weights and inputs."""

    search: Search
    place: str
    """Where the two part, which needs no mention."""
    first: str
    deadline: float
    beside: Sequence[Case] = ()
    made: list[tuple[Hypothesis, Places]] = field(default_factory=list)
    """The mistakes that are made for good: others are tried beside them."""
    tried: int = 0
    hypotheses: dict[str, tuple[Hypothesis, Places]] = field(default_factory=dict)
    """Those that were confirmed, by the words of the cause."""

    def __post_init__(self) -> None:
        self.start = time.process_time()

    def of(
        self,
        suspect: Suspect,
        groups: Iterable[Iterable[Hypothesis]],
        note: Callable[[Hypothesis, Steps], None] | None = None,
        watch: Callable[[Steps], None] | None = None,
        until: float = math.inf,
    ) -> Found:
        """Return the causes of the first group that explain everything, or else those that explain most.

        Each that explains nothing is given to `note`, with the steps of PyTorch's run, which `watch` may stop.

        Args:
            until: an earlier deadline, in seconds of computing.
        """
        causes: dict[str, Cause] = {}
        now = time.process_time()
        deadline = now + SHARE * (min(until, self.deadline) - now)
        for group in groups:
            for hypothesis in group:
                if time.process_time() > deadline:
                    return Found(most_explaining(causes.values()), self.tried, time.process_time() - self.start)
                self.tried += 1
                steps = Steps(watch=watch)
                fits = suspect.fits(hypothesis, None if note is None else steps)
                if fits and (cause := self._confirmed(suspect, hypothesis)) is not None:
                    causes.setdefault(str(cause), cause)
                elif note is not None:  # one that fits, and does not on fresh draws, may be one of several
                    note(hypothesis, steps)
            if any(cause.explains.everything for cause in causes.values()):
                break
        return Found(most_explaining(causes.values()), self.tried)

    def with_made(self, case: Case, *more: tuple[Hypothesis, Places]) -> Case:
        """Make the mistakes of `made`, and more, in PyTorch's side of a case."""
        for hypothesis, places in (*self.made, *more):
            case = hypothesis.made_in(case, places)
        return case

    def steps(self, drawn: Search, hypothesis: Hypothesis | None = None, places: Places = ("",)) -> Steps:
        """Run PyTorch on a draw, with those mistakes and one more; note what it computes."""
        more = () if hypothesis is None else ((hypothesis, places),)
        case, steps = self.with_made(drawn.draw.case, *more), Steps(with_lines=hypothesis is None)

        def call(*given: Any) -> Any:
            with steps:
                results = case.torch.call(*given)
            steps.end_in(results)
            return results

        drawn.draw.beside(replace(case, torch=replace(case.torch, call=call))).in_torch()
        return steps

    @cached_property
    def draws(self) -> list[Search]:
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
        if len(self.draws) == len(DRAWS):
            for places in self._alike(suspect):
                made = [self._explained(hypothesis, places, each.draw) for each in self.draws]
                if None not in made:
                    if not all(self._computes_first(hypothesis, places, each) for each in self.draws):
                        return None
                    explains = weakest([x for x in made if x])
                    break
            else:
                if not suspect.name or not all(_fits_alone(hypothesis, suspect, each) for each in self.draws):
                    return None
                places, explains = suspect.places, Explains.SUBMODULE
        kinds = [*dict.fromkeys(map(kind_of, places))] if len(places) > 1 else [*places]
        where = kinds[0] if len(kinds) == 1 else ""
        suffix = f", in {where or ' and '.join(kinds) or 'all places'}"
        if (suspect.name in ("", self.place) and kinds == [suspect.places[0]]) or "{at}" in hypothesis.words:
            suffix = ""
        cause = Cause(hypothesis.said(where) + suffix, explains, hypothesis.line)
        self.hypotheses[str(cause)] = hypothesis, places
        return cause

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
        made, rule = self.steps(drawn, hypothesis, places).values, self.search.judge.rule
        made += [entries_of(x) for x in drawn.draw.numbers.inputs.values() if is_floating(x)]
        alike = ([y for y in made if y.size == x.size > 0] for x in in_jax)
        return all(not ys or Values(ys, rule).places(entries_of(x)) for x, ys in zip(in_jax, alike, strict=True))

    def _explained(self, hypothesis: Hypothesis, places: Places, draw: Draw) -> Explains | None:
        """Run both whole programs on a draw, PyTorch's with the mistake."""
        measured = _measured(draw, self.with_made(draw.case, (hypothesis, places)))
        if not measured or any(m.failed for m in measured if not m.is_gradient):
            return None
        gradients = [m for m in measured if m.is_gradient]
        if any(m.failed for m in gradients):
            return Explains.OUTPUTS
        for case in self.beside:
            other = Draw(case, draw.variant, "float64")
            if any(m.failed for m in _measured(other, self.with_made(case, (hypothesis, places)))):
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
