"""How far apart two trainings are in what one step computes: by tensor, as everywhere (`measure.errors`).

A tensor that is far smaller than the others of its quantity is measured against a share of these, since the gradient
of a key's bias, for one, is 0 except for rounding. Parameters are measured by how far they have moved: with a small
learning rate a wrong step is nothing beside the parameters themselves. There the share is large, since Adam divides
such a gradient by its own size.
"""

from collections.abc import Mapping

import numpy as np

from parity_tests.your_port.measure.errors import DECADES, relative_error
from parity_tests.your_port.weights.positions import Arrays

FLOOR, FLOOR_OF_PARAMETERS = 1e-6, 100.0
"""The share of the other tensors' size by which every entry is measured at least."""


def errors_of(quantity: str, in_jax: Arrays, in_torch: Arrays, before: Arrays) -> dict[str, float]:
    """Measure each tensor of a quantity; `before` are the parameters from which both sides moved."""
    if quantity != "parameters":
        return tensor_errors(in_jax, in_torch, FLOOR)
    a, b = ({name: x - before[name] for name, x in side.items() if name in before} for side in (in_jax, in_torch))
    for name in a.keys() & b.keys():  # what is equal but for the last digits has moved alike
        near = 64 * np.finfo(in_torch[name].dtype).eps * np.abs(in_torch[name])
        a[name] = np.where(np.abs(in_jax[name] - in_torch[name]) <= near, b[name], a[name])
    return tensor_errors(a, b, FLOOR_OF_PARAMETERS)


def tensor_errors(
    in_jax: Mapping[str, np.ndarray], in_torch: Mapping[str, np.ndarray], floor: float = 0.0
) -> dict[str, float]:
    """Measure each tensor; infinite where it has another form, or where one side alone has it or has NaN.

    Args:
        floor: the share of the other tensors' size by which every entry is measured at least. The largest tensor counts
            if it is at most three decades larger than the tensor in the middle.
    """
    sizes = [float(np.abs(x).max()) for x in in_torch.values() if x.size]
    least = floor * min(max(sizes, default=0.0), 10**DECADES * float(np.median(sizes or [0.0])))
    whole = {**in_torch, **in_jax}
    return {
        name: relative_error(in_jax[name], in_torch[name], least)
        if name in in_jax and name in in_torch
        else float("inf" if x.any() else 0)  # what was never computed counts as zeros
        for name, x in whole.items()
    }


def worst_error(quantity: str, in_jax: Arrays, in_torch: Arrays, before: Arrays) -> float:
    """Measure a quantity by its worst tensor, of those that both sides have."""
    both = in_jax.keys() & in_torch.keys()
    a, b = ({name: side[name] for name in both} for side in (in_jax, in_torch))
    return max(errors_of(quantity, a, b, before).values(), default=np.inf)
