"""How far apart two trainings are in what one step computes: by tensor, as everywhere (`measure.errors`).

A tensor that is far smaller than the others of its quantity is measured against a share of these, since the gradient
of a key's bias, for one, is 0 except for rounding. Parameters are measured by how far they have moved: with a small
learning rate a wrong step is nothing beside the parameters themselves. There the share is large, since Adam divides
such a gradient by its own size.
"""

from collections.abc import Mapping

import numpy as np

from parity_tests.your_port.measure.errors import relative_error
from parity_tests.your_port.weights.positions import Arrays

FLOOR, FLOOR_OF_PARAMETERS = 1e-6, 100.0
"""The share of the other tensors' size by which every entry is measured at least."""
DECADES = 3
"""The largest tensor counts if it is at most so much larger than the tensor in the middle."""


def errors_of(quantity: str, in_jax: Arrays, in_torch: Arrays, before: Arrays) -> dict[str, float]:
    """Measure each tensor of a quantity; `before` are the parameters from which both sides moved."""
    if quantity != "parameters":
        return tensor_errors(in_jax, in_torch, FLOOR)
    moved = [{name: x - before[name] for name, x in side.items() if name in before} for side in (in_jax, in_torch)]
    for name in moved[0].keys() & moved[1].keys():  # what is equal but for the last digits has moved alike
        near = 64 * np.finfo(in_torch[name].dtype).eps * np.abs(in_torch[name])
        same = np.abs(in_jax[name] - in_torch[name]) <= near
        moved[0][name] = np.where(same, moved[1][name], moved[0][name])
    return tensor_errors(moved[0], moved[1], FLOOR_OF_PARAMETERS)


def tensor_errors(
    in_jax: Mapping[str, np.ndarray], in_torch: Mapping[str, np.ndarray], floor: float = 0.0
) -> dict[str, float]:
    """Measure each tensor; infinite where it has another form, where one side lacks it, or where NaN stands.

    Args:
        floor: the share of the other tensors' size by which every entry is measured at least.
    """
    sizes = [float(np.abs(x).max()) for x in in_torch.values() if x.size]
    least = floor * min(max(sizes, default=0.0), 10**DECADES * float(np.median(sizes or [0.0])))
    names = [*in_torch, *(name for name in in_jax if name not in in_torch)]
    return {name: _error(in_jax.get(name), in_torch.get(name), least) for name in names}


def _error(in_jax: np.ndarray | None, in_torch: np.ndarray | None, least: float) -> float:
    if in_jax is None or in_torch is None:  # what was never computed counts as zeros
        there = in_torch if in_jax is None else in_jax
        return np.inf if there is not None and there.any() else 0.0
    return relative_error(in_jax, in_torch, least)


def worst_error(quantity: str, in_jax: Arrays, in_torch: Arrays, before: Arrays | None = None) -> float:
    """Measure a quantity by its worst tensor, of those that both sides have."""
    both = in_jax.keys() & in_torch.keys()
    a, b = ({name: side[name] for name in both} for side in (in_jax, in_torch))
    return max(errors_of(quantity, a, b, before or {}).values(), default=np.inf)
