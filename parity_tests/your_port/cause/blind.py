"""Find the known mistakes that a comparison would not have seen, since its inputs or weights are too weak to show them.

Each mistake is made in PyTorch, on the numbers of the comparison. One that changes no output and no gradient there may
be none in this program, such as an epsilon that is the same number. So it is made once more on stronger numbers (see
`measure.strength`). If it shows there, the comparison was blind to it.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch

from parity_tests.your_port.cause.cause import Blind
from parity_tests.your_port.cause.gradients import PADDING
from parity_tests.your_port.cause.hypotheses import hypotheses
from parity_tests.your_port.cause.planting import Hypothesis, Places, Planted, Program, passing, planted
from parity_tests.your_port.cause.suspects import Suspect, suspects
from parity_tests.your_port.measure.case import Case
from parity_tests.your_port.measure.draw import Draw
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
    given = [Draw(case, variant, "float64") for variant in case.variants]
    strong = [draw for each in given for v in stronger(each.variant) if _can_run(draw := Draw(case, v, "float64"))]
    suspect = next(suspects(Search(given[0])))
    known = chain([planted(PADDING)], _lengths(suspect), *hypotheses(suspect, calls=False))
    found, tried = dict[str, None](), 0
    for hypothesis in known:
        seen = _seen(given, hypothesis)
        tried += seen is not None
        if seen is False and _seen(strong, hypothesis):
            found[hypothesis.said("")] = None
        if time.process_time() > deadline:
            break
    return Blind(tuple(found), tried, tuple(dict.fromkeys(hypothesis.said("") for hypothesis in known)))


def _seen(draws: Sequence[Draw], hypothesis: Hypothesis) -> bool | None:
    """Whether any of the draws shows a mistake; None if PyTorch runs with it in none of them."""
    made = None
    for draw in draws:
        shown = _shows(draw, hypothesis)
        if shown:
            return True
        made = made if shown is None else False
    return made


def _shows(draw: Draw, hypothesis: Hypothesis) -> bool | None:
    """Whether a mistake changes an output or a gradient; None if PyTorch does not run with it."""
    try:
        wrong = draw.beside(hypothesis.made_in(draw.case, ("",))).in_torch()
    except Exception:  # whatever PyTorch raises for a wrong shape, a wrong option, an index out of range
        return None
    return any(m.failed for m in draw.compare(draw.against(wrong)))


def _can_run(draw: Draw) -> bool:
    """Whether the program takes these inputs, its results tell something, and without a mistake none shows."""
    try:
        finite = all(x is None or bool(np.isfinite(x).all()) for x in draw.in_torch().tensors.values())
    except Exception:  # whatever PyTorch raises for inputs that it does not take
        return False
    return finite and _shows(draw, Hypothesis("none", _none)) is False


def _none(program: Program, places: Places, module: Any, inputs: Any) -> Any:
    """Run the program as with a mistake, without any."""
    with Planted(places).following(module):
        return program(module, inputs)


def _lengths(suspect: Suspect) -> Iterator[Hypothesis]:
    """Yield lengths that are ignored."""
    for name in (name for name, x in suspect.inputs.items() if x.dtype == torch.int64 and x.ndim == 1):
        largest = lambda given, name=name: {name: given[name].max().expand_as(given[name])}  # noqa: E731
        yield passing(f"{name} is ignored in JAX, as if all were the largest", inputs=largest)
