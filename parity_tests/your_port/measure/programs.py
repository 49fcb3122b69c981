"""Questions about a JAX program that was traced, by its public attributes."""

from collections.abc import Iterator
from typing import Any

import jax

DRAWS = frozenset({"random_bits", "random_gamma", "rng_bit_generator", "rng_uniform", "threefry2x32"})
"""The operations that make random numbers."""
MANY_OPERATIONS = 300
"""Of loops, counted at each step; to run Python's code for more, and to differentiate it, takes minutes."""
STEPS_OF_WHILE = 100
"""A `while` counts as so many."""


def programs(program: Any) -> Iterator[Any]:
    """Yield a jaxpr, and those inside of it: loops, branches, functions under jit."""
    yield program
    for operation in program.eqns:
        for inner in jax.tree.leaves(operation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from programs(inner)


def draws_numbers(program: Any) -> bool:
    """Whether a program draws random numbers, as dropout does."""
    return any(operation.primitive.name in DRAWS for part in programs(program) for operation in part.eqns)


def has_long_loops(program: Any) -> bool:
    """Whether running Python's code at each step of the loops would take minutes."""
    return _count_in_loops(program) > MANY_OPERATIONS


def _count_in_loops(program: Any, steps: int = 0) -> int:
    """Count the operations in loops at each step, of a program that runs so many `steps`; 0 is outside of loops."""
    total = 0
    for operation in program.eqns:
        inner = jax.tree.leaves(operation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr"))
        parts = [getattr(x, "jaxpr", x) for x in inner]
        length = {"scan": operation.params.get("length"), "while": STEPS_OF_WHILE}.get(operation.primitive.name)
        inside = steps if length is None else max(1, steps) * length
        total += steps + sum(_count_in_loops(part, inside) for part in parts if hasattr(part, "eqns"))
    return total


def computed_dtypes(program: Any) -> set[Any]:
    """Return the dtypes of the results and tables of a program, and of the programs inside of it.

    The cast of a mask of booleans to numbers does not count: every dtype has 0 and 1.
    """
    tables = [table.aval for part in programs(program) for table in part.constvars if table.aval.shape]
    operations = [operation for part in programs(program) for operation in part.eqns if not _casts_booleans(operation)]
    results = [x.aval for operation in operations for x in operation.outvars]
    return {x.dtype for x in (*tables, *results) if hasattr(x, "dtype")}


def _casts_booleans(operation: Any) -> bool:
    return operation.primitive.name == "convert_element_type" and operation.invars[0].aval.dtype == bool
