"""Find where a function without submodules parts from a PyTorch module: by the values that it computes.

JAX's program is run operation by operation, and all its intermediate values are kept. A submodule of PyTorch whose
result is none of them is where the two part.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from parity_tests.your_port.measure.comparison import Judge
from parity_tests.your_port.measure.errors import is_floating
from parity_tests.your_port.place.pairing import bring
from parity_tests.your_port.place.taps import Trace

_INLINE = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""The parameters in which operations such as `jit` and `checkpoint` keep the program that they call."""


def find_missing(in_torch: Trace, truth: Trace, values: Sequence[np.ndarray], judge: Judge) -> str:
    """Return PyTorch's path of the innermost submodule whose result JAX does not compute; "" if it computes all.

    Args:
        in_torch, truth: the records of PyTorch, and of PyTorch in float64.
        values: those that JAX computes.
        judge: measures whether two are the same.
    """

    def is_known(x: np.ndarray, y: np.ndarray) -> bool:
        alike = ((value, bring(x, value.shape), bring(y, value.shape)) for value in values if value.size == x.size)
        return any(pair[0] is not None and not judge.measure("", value, *pair).failed for value, *pair in alike)

    def is_missing(path: str) -> bool:
        calls = ((in_torch.calls({part}), truth.calls({part})) for part in truth.parts.get(path, ()))
        return not all(is_known(*pair) for sides in calls for pair in zip(*sides, strict=True))

    place = ""
    while inner := next((path for path in truth.parents if truth.parents[path] == place and is_missing(path)), ""):
        place = inner
    return place


def compute_values(function: Callable[..., Any], *args: Any) -> list[np.ndarray]:
    """Run a function operation by operation; return all floating values that it computes."""
    found: list[np.ndarray] = []

    def run(program: Any, constants: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        values = dict(zip((*program.constvars, *program.invars), (*constants, *args), strict=True))

        def read(variable: Any) -> Any:
            return variable.val if hasattr(variable, "val") else values[variable]

        for operation in program.eqns:
            given = [read(variable) for variable in operation.invars]
            inner = next((operation.params[key] for key in _INLINE if key in operation.params), None)
            if inner is not None and operation.primitive.name != "scan":
                computed = run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), given)
            else:
                computed = operation.primitive.bind(*given, **operation.params)
                computed = computed if operation.primitive.multiple_results else [computed]
            values.update(zip(operation.outvars, computed, strict=True))
            found.extend(np.asarray(x) for x in computed if is_floating(x))
        return [read(variable) for variable in program.outvars]

    closed = jax.make_jaxpr(function)(*args)
    run(closed.jaxpr, closed.consts, jax.tree.leaves(args))
    return found
