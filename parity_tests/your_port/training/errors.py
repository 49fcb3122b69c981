"""How far apart two trainings are in what one step computes: by tensor, as everywhere (`measure.errors`).

A tensor that is far smaller than the others of its quantity is measured against a share of these, since the gradient
of a key's bias, for one, is 0 except for rounding. Parameters are measured by how far they have moved: with a small
learning rate a wrong step is nothing beside the parameters themselves. Only those of one group of the optimiser are
measured beside each other, since another may have another rate; and a rate may be rounded to float32, as those of
Optax's schedules are. An entry whose gradient may be rounding gets a large share of the others' movement, since Adam
divides such a gradient by its own size.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from parity_tests.your_port.measure.arrays import Arrays
from parity_tests.your_port.measure.errors import DECADES, relative_error

ROUNDING_OF_RATES = 2.0**-21
"""Of a schedule that is computed in float32, in a few operations."""
FLOOR = {"float64": 1e-4, "float32": 1e-2}
"""The share of the other tensors' size that every entry is measured by at least: terms that cancel leave rounding."""
SMALL, FLOOR_OF_ROUNDING = {"float64": 1e-6, "float32": 1e-4}, {"float64": 100.0, "float32": 5000.0}
"""The share of the largest gradient below which an entry may be rounding, and by how much its bound is wider then."""


class Moves(NamedTuple):
    """What the steps of parameters are measured by."""

    before: Arrays
    """The parameters from which both sides moved."""
    gradients: Mapping[str, np.ndarray]
    """PyTorch's of the step, or of several the smallest; without one, a parameter's may be rounding."""
    groups: Iterable[Iterable[str]]
    """The parameters of each of the optimiser's groups. What is in none of them is a group, too."""
    steps: int = 1
    """How many were taken since the two sides were equal."""


def errors_of(quantity: str, in_jax: Arrays, in_torch: Arrays, moves: Moves | None) -> dict[str, float]:
    """Measure each tensor of a quantity; `moves` are needed for parameters."""
    if quantity == "learning_rate":
        errors = tensor_errors(in_jax, in_torch)
        return {name: 0.0 if error <= ROUNDING_OF_RATES else error for name, error in errors.items()}
    if quantity != "parameters" or moves is None:
        return tensor_errors(in_jax, in_torch, FLOOR[_dtype(in_torch)])
    a, b = (
        {name: x - moves.before[name] for name, x in side.items() if name in moves.before}
        for side in (in_jax, in_torch)
    )
    for name in a.keys() & b.keys():  # what is equal but for the last digits has moved alike
        near = 4 * min(moves.steps, 16) * np.finfo(in_torch[name].dtype).eps * np.abs(in_torch[name])
        a[name] = np.where(np.abs(in_jax[name] - in_torch[name]) <= near, b[name], a[name])
    groups = [set(group) for group in moves.groups]
    # What is frozen in PyTorch must not move at all: a parameter without a gradient, or a whole group.
    frozen = {name for name, x in b.items() if moves.gradients and name not in moves.gradients and not x.any()}
    errors = dict[str, float]()
    for group in [*groups, {*a, *b}.difference(*groups)]:
        ours, theirs = ({name: x for name, x in side.items() if name in group} for side in (a, b))
        moved = any(x.any() for x in theirs.values())
        if moved:
            errors |= tensor_errors(_at_the_rate_of(theirs, ours), theirs, _floors(theirs, moves.gradients))
        for name in frozen & theirs.keys() if moved else {**theirs, **ours}:
            errors[name] = float("inf" if np.any(ours.get(name)) else 0)
    return {name: errors[name] for name in {**b, **a}}


def _at_the_rate_of(theirs: Arrays, ours: Arrays) -> Arrays:
    """Take out of our moves the one factor that the rounding of a learning rate to float32 may give them."""
    both = [name for name, x in theirs.items() if name in ours and ours[name].shape == x.shape]
    pairs = [(ours[name].ravel(), theirs[name].ravel()) for name in both]
    factor = sum(float(a @ b) for a, b in pairs) / (sum(float(b @ b) for _, b in pairs) or 1.0)
    return {n: x / factor for n, x in ours.items()} if abs(factor - 1) < ROUNDING_OF_RATES else ours


def _floors(moved: Arrays, gradients: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the share for each entry: a large one where its gradient is so small that it may be rounding."""
    known = {name: np.abs(x) for name, x in gradients.items() if name in moved and x.size}
    dtype = _dtype(moved)
    rounding = FLOOR_OF_ROUNDING[dtype]
    least = SMALL[dtype] * max((float(x.max()) for x in known.values()), default=0.0)
    return {name: np.where(known[name] <= least, rounding, 1.0) if name in known else rounding for name in moved}


def _dtype(arrays: Mapping[str, np.ndarray]) -> str:
    return "float32" if any(x.dtype == np.float32 for x in arrays.values()) else "float64"


def tensor_errors(
    in_jax: Mapping[str, np.ndarray], in_torch: Mapping[str, np.ndarray], floor: float | Mapping[str, Any] = 0.0
) -> dict[str, float]:
    """Measure each tensor; infinite where it has another form, or where one side alone has it or has NaN.

    Args:
        floor: the share of the other tensors' size by which every entry is measured at least, or those of each tensor.
            The largest tensor counts if it is at most three decades larger than the tensor in the middle.
    """
    sizes = [float(np.abs(x).max()) for x in in_torch.values() if x.size]
    size = min(max(sizes, default=0.0), 10**DECADES * float(np.median(sizes or [0.0])))
    floors = floor if isinstance(floor, Mapping) else dict.fromkeys(in_torch, floor)
    whole = {**in_torch, **in_jax}
    return {
        name: relative_error(in_jax[name], in_torch[name], floors[name] * size)
        if name in in_jax and name in in_torch
        else float("inf" if x.any() else 0)  # what was never computed counts as zeros
        for name, x in whole.items()
    }


def worst_error(quantity: str, in_jax: Arrays, in_torch: Arrays, moves: Moves | None = None) -> float:
    """Measure a quantity by its worst tensor, of those that both sides have."""
    both = in_jax.keys() & in_torch.keys()
    a, b = ({name: side[name] for name in both} for side in (in_jax, in_torch))
    return max(errors_of(quantity, a, b, moves).values(), default=np.inf)
