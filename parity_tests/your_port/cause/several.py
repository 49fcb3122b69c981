"""Find several mistakes that a port has at once, one after the other.

With each of them made, PyTorch computes more of the values that JAX computes, though its results are not JAX's yet. So
the one with which it computes most of them is made for good, if it does so on fresh draws too, and the others are
tried beside it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch

from parity_tests.your_port.cause.cause import Cause, Explains, Found, either
from parity_tests.your_port.cause.gradients import of_gradients
from parity_tests.your_port.cause.hypotheses import hypotheses
from parity_tests.your_port.cause.planting import Hypothesis, NotHereError, Places
from parity_tests.your_port.cause.steps import InJax, Progress, Steps
from parity_tests.your_port.cause.suspects import Suspect
from parity_tests.your_port.cause.trial import DRAWS, Trial
from parity_tests.your_port.place.bisect import Search

UNFINISHED = (Explains.SUBMODULE, Explains.OUTPUTS)
"""What a cause explains beside which there is another."""

PAST = 20
"""How many steps PyTorch runs past the place where the two part: a mistake may take more steps than what is right."""


class Made(NamedTuple):
    """A mistake that is made for good, and others that are the same so far."""

    alternatives: tuple[tuple[str, Hypothesis, Places], ...]
    """Each in words, and where it is made; it is the first that is made."""
    explains: Explains

    def __str__(self) -> str:
        return either([words for words, *_ in self.alternatives])


@dataclass
class Several:
    """A search for several mistakes in the whole program."""

    trial: Trial
    right: Suspect
    made: list[Made] = field(default_factory=list)
    better: list[tuple[Progress, Hypothesis]] = field(default_factory=list)
    """The mistakes with one of which the programs are more alike."""

    def __post_init__(self) -> None:
        self.in_jax = InJax(self.trial.search)
        self._start()

    def _start(self) -> None:
        """See how far the programs are alike with the mistakes made, and where they part."""
        self.steps, self.better = self.trial.steps(self.trial.search), []
        self.progress = self.in_jax.progress(self.steps)
        self.parted = self.in_jax.first_missing(self.steps)
        self.end = len(self.steps.made) if self.parted is None else self.parted + PAST
        self.alike_until_end = len(self.in_jax.covered(self.steps.values[: self.end]))

    @property
    def program(self) -> Suspect:
        """The program with the mistakes made."""
        program = self.right.program
        for hypothesis, places in self.trial.made:
            program = hypothesis.wrong(program, places)
        return replace(self.right, program=program)

    @property
    def next_step(self) -> str:
        """The first line of PyTorch's code whose result JAX does not compute; "" if there is none to name."""
        return "" if self.parted is None else self.steps.made[self.parted].line

    def _progress(self, in_jax: InJax, drawn: Search, hypothesis: Hypothesis | None = None) -> Progress:
        """Say how far the programs are alike on a draw, with the mistakes made and one more."""
        return in_jax.progress(self.trial.steps(drawn, hypothesis))

    def try_all(self) -> Found:
        """Try each mistake until it is clear that the programs are no more alike with it, and note those that help.

        An input in another order is not tried: values in another order count as alike here.
        """
        if self.steps.are_large:
            return Found()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # what is small takes more time on several, and all of them count
        try:
            return self.trial.of(self.program, hypotheses(self.program, turned=False), self._note, self._watch)
        finally:
            torch.set_num_threads(threads)

    def _watch(self, steps: Steps) -> None:
        """Stop PyTorch some steps after the place where the two part, if nothing more is alike until there."""
        is_there = self.parted is not None and len(steps.made) == self.end
        if is_there and len(self.in_jax.covered(steps.values)) <= self.alike_until_end:
            raise NotHereError

    @cached_property
    def _on_fresh_draws(self) -> list[tuple[InJax, Search]]:
        return [(InJax(drawn), drawn) for drawn in self.trial.draws]

    def _note(self, hypothesis: Hypothesis, steps: Steps) -> None:
        """Keep a mistake with which PyTorch computes more of what JAX computes."""
        progress = self.in_jax.progress(steps)
        if progress.is_beyond(self.progress):
            self.better.append((progress, hypothesis))

    def find(self, found: Found) -> Found:
        """Go on from what was found by trying single mistakes."""
        single = found
        while (made := self._next(found)) is not None:
            self._make(made)
            if made.explains is Explains.OUTPUTS:
                program = self.program
                found = self.trial.of(replace(program, agrees=lambda _: True), of_gradients(program))
                break
            self._start()
            found = self.try_all()
        last = [cause for cause in found.causes if cause.explains.everything]
        if not self.made or (len(self.made) == 1 and single.causes and not last):
            return single._replace(tried=self.trial.tried, next_step="" if single.causes else self.next_step)
        if last:
            self._make(self._all_of(last))
        explains = Explains.PART if self.made[-1].explains is Explains.SUBMODULE else self.made[-1].explains
        left = self.next_step if explains is Explains.PART else ""
        return Found((Cause("; and ".join(map(str, self.made)), explains),), self.trial.tried, next_step=left)

    def _make(self, made: Made) -> None:
        """Make a mistake for good; of others that were the same, keep those that are the same with this one, too."""
        self.made.append(made)
        self.trial.made.append(made.alternatives[0][1:])
        for place, earlier in enumerate(self.made[:-1]):
            if len(earlier.alternatives) > 1:
                counts = [self._count_with(place, hypothesis, places) for _, hypothesis, places in earlier.alternatives]
                same = (each for each, n in zip(earlier.alternatives, counts, strict=True) if n == max(counts))
                self.made[place] = earlier._replace(alternatives=tuple(same))
                self.trial.made[place] = self.made[place].alternatives[0][1:]

    def _count_with(self, place: int, hypothesis: Hypothesis, places: Places) -> int:
        """Count what is alike with another mistake in the place of one that is made."""
        self.trial.made[place] = hypothesis, places
        try:
            return len(self._progress(self.in_jax, self.trial.search).covered)
        except Exception:  # whatever PyTorch raises for mistakes that it does not take together
            return -1

    def _next(self, found: Found) -> Made | None:
        """Return the mistake that is made for good: one that explains something, or the best of those noted."""
        if found.causes:
            made = self._all_of(found.causes)
            return made if made.explains in UNFINISHED else None
        return next(self._better_on_fresh_draws(), None)

    def _all_of(self, causes: Sequence[Cause]) -> Made:
        alternatives = ((str(cause), *self.trial.hypotheses[str(cause)]) for cause in causes)
        return Made(tuple(alternatives), causes[0].explains)

    def _better_on_fresh_draws(self) -> Iterator[Made]:
        """Yield those with which PyTorch computes more on fresh draws, too, the best first."""
        groups = dict[frozenset[Any], list[Hypothesis]]()
        for progress, hypothesis in self.better:
            groups.setdefault(progress.covered, []).append(hypothesis)
        before = [self._progress(*given) for given in self._on_fresh_draws]
        for covered in sorted(groups, key=len, reverse=True):
            better = [hypothesis for hypothesis in groups[covered] if self._is_better(hypothesis, before)]
            least = min((len(x.innermost) for x in better), default=0)  # more may be wrong where nothing is alike yet
            narrow = (x for x in better if len(x.innermost) == least)
            confirmed = {str(Cause(x.said(""), Explains.PART, x.line)): x for x in narrow}
            if confirmed:
                alternatives = ((words, hypothesis, ("",)) for words, hypothesis in confirmed.items())
                yield Made(tuple(alternatives), Explains.PART)

    def _is_better(self, hypothesis: Hypothesis, before: list[Progress]) -> bool:
        """Whether PyTorch computes more with it on both fresh draws."""
        try:
            runs = [self._progress(*given, hypothesis) for given in self._on_fresh_draws]
        except Exception:  # whatever PyTorch raises for a mistake that it does not take
            return False
        return len(runs) == len(DRAWS) and all(run.is_beyond(n) for run, n in zip(runs, before, strict=True))


def find_several(trial: Trial, program: Suspect, found: Found) -> Found:
    """Go on from what was found by trying single mistakes, if it is not everything."""
    if trial.search.draw.dtype != "float64":
        return found
    try:
        several = Several(trial, program)
    except Exception:  # whatever JAX raises for a program that cannot be run operation by operation
        return found
    if not found.causes and not found.tried:
        found = several.try_all()
    return several.find(found)
