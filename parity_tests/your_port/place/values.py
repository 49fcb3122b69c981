"""Find where a function without submodules parts from a PyTorch module: by the values that it computes.

JAX's program is run operation by operation, and all its intermediate values are kept. A submodule of PyTorch whose
result is none of them, in any order of its entries, is where the two part.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from parity_tests.your_port.place.pairing import is_close
from parity_tests.your_port.place.taps import Trace

_INLINE = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""The parameters in which operations such as `jit` and `checkpoint` keep the program that they call."""


def find_missing(trace: Trace, values: Sequence[np.ndarray]) -> str:
    """Return PyTorch's path of the innermost submodule whose result JAX does not compute; "" if it computes all."""
    known = [np.sort(value, axis=None) for value in values]
    paths = {name.removeprefix("input of ") for name in trace.parents if name.startswith("input of ")}
    found: dict[str, bool] = {"": False}
    for path in (path for path in paths if path in trace.tensors):
        found[path] = _are_known(trace.tensors[path], known)
    place = ""
    while inside := [path for path in trace.tensors if not found.get(path, True) and _parent(path, found) == place]:
        place = inside[0]
    return place


def _parent(path: str, paths: Mapping[str, bool]) -> str:
    path = path.rpartition(".")[0]
    return path if path in paths else _parent(path, paths)


def _are_known(calls: list[np.ndarray], known: list[np.ndarray]) -> bool:
    wanted = [np.sort(call, axis=None) for call in calls]
    return all(any(x.shape == y.shape and is_close(x, y) for y in known) for x in wanted)


def compute_values(function: Callable[..., Any], *args: Any) -> list[np.ndarray]:
    """Run a function operation by operation; return all floating values that it computes."""
    closed = jax.make_jaxpr(function)(*args)
    return list(_run(closed.jaxpr, closed.consts, jax.tree.leaves(args), []))


def _run(program: Any, constants: Sequence[Any], args: Sequence[Any], results: list[Any]) -> Iterator[np.ndarray]:
    """Yield the values of a program; leave what it returns in `results`."""
    values = dict(zip((*program.constvars, *program.invars), (*constants, *args), strict=True))

    def read(variable: Any) -> Any:
        return variable.val if hasattr(variable, "val") else values[variable]

    for operation in program.eqns:
        given = [read(variable) for variable in operation.invars]
        inner = next((operation.params[key] for key in _INLINE if key in operation.params), None)
        if (
            inner is not None
            and len(getattr(inner, "jaxpr", inner).invars) == len(given)
            and operation.primitive.name != "scan"
        ):
            computed: list[Any] = []
            yield from _run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), given, computed)
        else:
            computed = operation.primitive.bind(*given, **operation.params)
            computed = list(computed) if operation.primitive.multiple_results else [computed]
        values.update(zip(operation.outvars, computed, strict=True))
        for value in computed:
            if getattr(value, "dtype", None) is not None and value.dtype.kind == "f":
                yield np.asarray(value)
    results.extend(map(read, program.outvars))
