"""Plant the mistakes of the harness's own table in torch_ref: a case's inputs must be such that each is noticed."""

from collections.abc import Iterator
from itertools import chain

from parity_tests.your_port.cause.mistakes import mistakes_in
from parity_tests.your_port.cause.planting import CANNOT_BE_MADE, Mistake, planted
from parity_tests.your_port.cause.suspects import suspects
from parity_tests.your_port.measure.case import Case
from parity_tests.your_port.measure.draw import Draw
from parity_tests.your_port.measure.errors import relative_error
from parity_tests.your_port.measure.numbers import Run
from parity_tests.your_port.place.bisect import Search

SIZES = (2, 4)
"""Of axes, for the rows about scales."""
ROUNDING = 1e-9
"""What differs by less is the same mathematics: a mistake may be none in some places."""


def plant_table(case: Case) -> Iterator[tuple[Mistake, bool]]:
    """Yield each mistake that changes a number of the case in float64, and whether the comparison notices it."""
    variants = [variant for variant in case.variants if "float64" in variant.dtypes and not variant.slow]
    draws = [Draw(case, variant, "float64") for variant in variants]
    called = {site[1] for draw in draws for site in next(suspects(Search(draw))).sites}
    for mistake in chain.from_iterable(mistakes_in(called, SIZES)):
        wrong = planted(mistake).made_in(case, [""])
        changed = noticed = False
        for draw in draws:
            try:
                in_torch = draw.beside(wrong)
                runs = in_torch.against(draw.in_jax()) if _differs(in_torch.in_torch(), draw.in_torch()) else None
            except CANNOT_BE_MADE:
                continue
            if runs is not None:
                changed = True
                noticed = any(m.failed for m in draw.compare(runs))
            if noticed:
                break
        if changed:
            yield mistake, noticed


def _differs(wrong: Run, right: Run) -> bool:
    pairs = ((x, right.tensors.get(name)) for name, x in wrong.tensors.items())
    return any(x is None or y is None or relative_error(x, y) > ROUNDING for x, y in pairs if x is not y)
