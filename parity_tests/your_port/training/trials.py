"""Take the steps of JAX's training again in PyTorch, with known mistakes, and measure how far apart the two still are.

Each step starts from JAX's parameters. Where the loss or a gradient parts, PyTorch reads what JAX may have read: other
labels, fewer rows. Where a moment or a parameter parts, it takes JAX's gradients, with another setting of its
optimiser, another clipping, or the learning rates that follow from JAX's steps.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from parity_tests.your_port.measure.arrays import Arrays
from parity_tests.your_port.training.errors import Moves, worst_error
from parity_tests.your_port.training.settings import Deviation
from parity_tests.your_port.training.sides import JaxTraining, StepRecord, TorchTraining

SHARE = 0.01
"""A mistake explains a difference if so much of it is left at most."""


class TrialStep(NamedTuple):
    """A step of both trainings from the same parameters."""

    in_jax: StepRecord
    in_torch: StepRecord
    before: Arrays
    """The parameters before it."""


def weights_near(in_torch: TorchTraining) -> Arrays:
    """Draw other weights near these."""
    rng, tied = np.random.default_rng(0), in_torch.tied
    noise = {name: rng.normal(size=x.shape) for name, x in in_torch.weights.items() if name in tied}
    return {
        name: x + (noise[tied[name]] * np.where(x, 0.1 * x, 0.01)).astype(x.dtype) if name in tied else x
        for name, x in in_torch.weights.items()
    }


def take_again(trial: JaxTraining, *rows: Deviation, take_gradients: bool = False) -> Iterator[TrialStep]:
    """Take the steps of a trial in PyTorch, with mistakes.

    Args:
        take_gradients: PyTorch's optimiser is given JAX's gradients.
    """
    side = trial.beside.anew()
    side.changes = [row.change for row in reversed(rows) if row.change]
    side.read = next((row.read for row in rows if row.read), side.read)
    scale = np.prod([row.scale for row in rows])
    for step, record in enumerate(trial.records):
        before = trial.before(step)
        side.set_parameters(before)
        side.given = record["gradients"] if take_gradients else {}
        found = side.run(trial.beside.batches[step])
        scaled = {q: {name: scale * x for name, x in found[q].items()} for q in ("loss", "gradients") if q in found}
        yield TrialStep(record, found | scaled, before)


def error_left(
    trials: list[JaxTraining],
    rows: Iterable[Deviation],
    quantities: Iterable[str],
    close: float,
    rates: list[float] | None = None,
) -> float:
    """Return the largest error that mistakes leave in any trial; infinity where it is above `close`.

    Args:
        rates: filled with the learning rates that bring PyTorch closest to JAX in the first trial; they must do so in
            the others, too.
    """
    worst, updates = 0.0, "parameters" in quantities
    for trial in trials:
        for number, step in enumerate(take_again(trial, *rows, take_gradients=updates)):
            a, b, before = step
            if rates is not None:
                if number == len(rates):
                    rates.append(_best_rate(step))
                moved = {name: x - before[name] for name, x in b["parameters"].items()}
                b["parameters"] = {name: before[name] + rates[number] * x for name, x in moved.items()}
            moves = Moves(before, b.get("clipped", {}), trial.beside.groups)
            worst = max(worst, *(worst_error(q, a[q], b[q], moves) for q in quantities if q in a and q in b))
            if not worst <= close:
                return np.inf
    return worst


def _best_rate(step: TrialStep) -> float:
    """Return the learning rate that brings a step of PyTorch, taken with a rate of 1, closest to JAX's."""
    names = step.in_torch["parameters"]
    before = flat(step.before, names)
    wanted, taken = (flat(side["parameters"], names) - before for side in (step.in_jax, step.in_torch))
    exact = np.abs(before) * np.finfo(before.dtype).eps < 1e-9 * np.abs(taken)  # and not beside a huge parameter
    taken = np.where(exact, taken, 0.0) if exact.any() else taken
    return float(taken @ wanted / ((taken @ taken) or 1.0))


def ratio(a: Arrays, b: Arrays) -> float:
    """Return the factor between all tensors of a quantity; NaN if it is not one factor."""
    both = [name for name in b if name in a and a[name].shape == b[name].shape]
    x, y = flat(a, both), flat(b, both)
    factor = float(x @ y / (y @ y)) if y.any() else 0.0
    return factor if factor and float(np.abs(x - factor * y).max()) <= 1e-6 * float(np.abs(x).max()) else np.nan


def flat(arrays: Arrays, names: Iterable[str]) -> np.ndarray:
    """Put the entries of several arrays into one row."""
    return np.concatenate([np.ravel(arrays[name]) for name in names])
