"""Try out the known mistakes of moving a model: which one, made in PyTorch on purpose, gives JAX's numbers?

A mistake is tried first where it costs little: on the submodule in which the two programs part, called as PyTorch
called it, beside what JAX's returned for the same. Where none fits, the submodules around it are tried, and the whole
program last. What fits is confirmed by the whole programs on fresh draws (see `trial`). Where no mistake explains
everything, there may be several (see `several`).
"""

from collections.abc import Sequence
from dataclasses import replace

import jax

from parity_tests.your_port.cause.cause import Cause, Explains, Found
from parity_tests.your_port.cause.gradients import of_gradients
from parity_tests.your_port.cause.hypotheses import hypotheses
from parity_tests.your_port.cause.several import find_several
from parity_tests.your_port.cause.suspects import suspects
from parity_tests.your_port.cause.trial import SHARE, Trial
from parity_tests.your_port.measure.case import Case
from parity_tests.your_port.measure.errors import relative_error
from parity_tests.your_port.measure.op_by_op import without_jit
from parity_tests.your_port.place.bisect import Search

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
    trial, found = Trial(wide, place[-1] if place else "", first, deadline, beside), Found()
    until, stopped = trial.start + SHARE * (deadline - trial.start), None  # the rest is for the whole program
    for suspect in suspects(wide, place, within):
        if suspect.places == ("",):
            found = find_several(trial, suspect, Found())
            if found.causes:
                return found
        found = trial.of(suspect, hypotheses(suspect), until=until if suspect.name else deadline)
        stopped = found.stopped_after or stopped
        if found.causes:
            break
    if any(cause.explains.everything for cause in found.causes):
        return found
    return find_several(trial, next(suspects(wide)), found._replace(stopped_after=stopped))


def find_gradient_causes(search: Search, deadline: float) -> Found:
    """Find the mistakes that explain why gradients disagree where the values agree."""
    wide = _in_float64(search)
    if wide is None:
        return Found()
    program = replace(next(suspects(wide)), agrees=lambda _: True)  # the values cannot tell
    found = Trial(wide, "", "", deadline).of(program, of_gradients(program))
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
