"""Find where a function without submodules parts from a PyTorch module: by the values that it computes.

JAX's program is run operation by operation, and all its intermediate values are kept. A submodule of PyTorch whose
result is none of them is where the two part.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import jax
import numpy as np

from parity_tests.your_port.measure.arrays import in_reals, is_floating
from parity_tests.your_port.measure.draw import Draw
from parity_tests.your_port.measure.jax_side import as_function
from parity_tests.your_port.measure.judge import Judge
from parity_tests.your_port.measure.taps import Tensor
from parity_tests.your_port.measure.width import enable_x64
from parity_tests.your_port.place.pairing import bring

T = TypeVar("T")


def find_missing(
    in_torch: Sequence[Tensor], truth: Sequence[Tensor], values: Sequence[np.ndarray], judge: Judge
) -> str:
    """Return PyTorch's path of the innermost submodule whose result JAX does not compute; "" if it computes all.

    Args:
        in_torch, truth: the tensors of PyTorch, and of PyTorch in float64.
        values: those that JAX computes.
        judge: measures whether two are the same.
    """

    def is_known(x: np.ndarray, y: np.ndarray) -> bool:
        alike = ((value, bring(x, value.shape), bring(y, value.shape)) for value in values if value.size == x.size)
        return any(pair[0] is not None and not judge.measure("", value, *pair).failed for value, *pair in alike)

    results = [(x, y) for x, y in zip(in_torch, truth, strict=True) if y.is_result]

    @cache
    def is_missing(path: str) -> bool:
        return not all(is_known(x.value, y.value) for x, y in results if y.of == path)

    return next((y.of for _, y in results if all(map(is_missing, y.inside))), "")


def compute_values(draw: Draw, note: Callable[[np.ndarray], T]) -> tuple[list[T], list[T]]:
    """Run JAX's side operation by operation; note what it is given, and all floating and complex values that it makes.

    Those in loops are among them, and of a complex one its two parts.
    """
    values: list[T] = []

    def keep(_: Any, x: Any) -> Any:
        if is_floating(reals := in_reals(x)):
            values.append(note(np.asarray(reals)))
        return x

    with enable_x64(draw.dtype == "float64"):
        _, *given = as_function(draw.case, draw.variant, draw.numbers, draw.dtype)
        arrays = jax.tree.leaves(given)
        draw.traced()[0].run(arrays, keep)
        return [note(np.asarray(x)) for x in arrays], values
