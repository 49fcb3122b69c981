"""Find the known mistakes that a comparison would not have seen, since its inputs or weights are too weak to show them.

Each mistake is made in PyTorch, on the numbers of the comparison. One that changes no output and no gradient there may
be none in this program, such as an epsilon that is the same number. So it is made once more on stronger numbers (see
`measure.strength`). If it shows there, the comparison was blind to it.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any

import numpy as np
import torch

from parity_tests.your_port.cause.cause import Blind
from parity_tests.your_port.cause.hypotheses import PADDING, hypotheses
from parity_tests.your_port.cause.planting import Hypothesis, Places, Planted, Program, Weights, passing, planted
from parity_tests.your_port.cause.subjects import subjects
from parity_tests.your_port.measure.case import Case, Variant
from parity_tests.your_port.measure.comparison import Runs, compare_runs, run_torch_side
from parity_tests.your_port.measure.numbers import Numbers, make_numbers
from parity_tests.your_port.measure.strength import stronger
from parity_tests.your_port.place.bisect import Search


def find_blind(case: Case, seconds: float = 20.0) -> Blind:
    """Plant the known mistakes in PyTorch's side of a case; return those that none of its variants shows in float64.

    Args:
        case: its JAX side is not needed.
        seconds: of computing time that this may take.

    Raises:
        ValueError: there is no PyTorch module that could run with a mistake.
    """
    if case.torch.golden is not None:
        raise ValueError("mistakes are made in PyTorch, which does not run here: blind spots need the PyTorch module")
    deadline = time.process_time() + seconds
    given = [_Right(case, variant) for variant in case.variants]
    strong = [right for each in given for right in (_Right(case, v) for v in stronger(each.variant)) if right.can_run]
    known, found, tried = _mistakes(given[0]), dict[str, None](), 0
    for hypothesis in known:
        seen = _seen(given, hypothesis)
        tried += seen is not None
        if seen is False and _seen(strong, hypothesis):
            found[hypothesis.said("")] = None
        if time.process_time() > deadline:
            break
    return Blind(tuple(found), tried, tuple(dict.fromkeys(hypothesis.said("") for hypothesis in known)))


def _seen(where: "Sequence[_Right]", hypothesis: Hypothesis) -> bool | None:
    """Whether any of the programs shows a mistake; None if none of them can run with it."""
    made = None
    for right in where:
        shown = right.shows(hypothesis)
        if shown:
            return True
        made = made if shown is None else False
    return made


def _none(program: Program, places: Places, module: Any, inputs: Any) -> Any:
    """Run the program as with a mistake, without any."""
    with Planted(places).following(module):
        return program(module, inputs)


def _mistakes(right: "_Right") -> Iterator[Hypothesis]:
    """Yield the known mistakes, in all calls and in those of each kind of submodule; and lengths that are ignored."""
    subject = next(subjects(Search(right.case, right.variant, "float64", right.numbers, right.runs)))
    lengths = [name for name, x in subject.inputs.items() if x.dtype == torch.int64 and x.ndim == 1]
    words = "{} is ignored in JAX, as if all were the largest"
    ignored = [passing(words.format(name), inputs=partial(_largest, name)) for name in lengths]
    return chain([planted(PADDING)], ignored, *hypotheses(subject, calls=False))


def _largest(name: str, given: Weights) -> Weights:
    return {name: given[name].max().expand_as(given[name])}


@dataclass(frozen=True)
class _Right:
    """PyTorch's right program on the numbers of one variant."""

    case: Case
    variant: Variant

    @cached_property
    def numbers(self) -> Numbers:
        return make_numbers(self.case, self.variant, "float64")

    @cached_property
    def runs(self) -> Runs:
        """The right program, which also stands in JAX's place, and its run in float32, for the bounds."""
        narrow, truth = (
            run_torch_side(self.case, self.variant, self.numbers, "float64", dtype) for dtype in ("float32", "float64")
        )
        return Runs(truth, narrow, truth)

    @cached_property
    def can_run(self) -> bool:
        """Whether the program takes these inputs, its results tell something, and without a mistake none shows."""
        try:
            finite = all(x is None or bool(np.isfinite(x).all()) for x in self.runs.truth.tensors.values())
        except Exception:  # whatever PyTorch raises for inputs that it does not take
            return False
        return finite and self.shows(Hypothesis("none", _none)) is False

    def shows(self, hypothesis: Hypothesis) -> bool | None:
        """Whether a mistake changes an output or a gradient; None if the program cannot run with it."""
        side = self.case.torch

        def call(module: Any, inputs: Any, options: Any) -> Any:
            return hypothesis.run(lambda *given: side.call(*given, options), ("",), module, inputs)

        wrong = replace(self.case, torch=replace(side, call=call))
        try:
            run = run_torch_side(wrong, self.variant, self.numbers, "float64", "float64")
        except Exception:  # whatever PyTorch raises for a wrong shape, a wrong option, an index out of range
            return None
        return any(m.failed for m in compare_runs(self.case, self.variant, "float64", self.runs._replace(jax=run)))
