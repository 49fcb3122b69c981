"""Find out whether random numbers that a program of JAX draws reach its results: dropout or noise is left on."""

from collections.abc import Sequence
from typing import Any

_RANDOM = ("random_bits", "rng_bit_generator", "threefry2x32")
"""JAX's operations that make random bits."""


def depends_on_random_numbers(program: Any) -> bool:
    """Whether a result of a jaxpr is computed from random bits."""
    return any(_reached(program, [False] * len(program.invars)))


def _reached(program: Any, given: Sequence[bool]) -> list[bool]:
    """Say for each result whether random bits reach it, as they do those of the inputs that are `given`."""
    random = {id(variable) for variable, is_random in zip(program.invars, given, strict=True) if is_random}
    for operation in program.eqns:
        inputs = [id(variable) in random for variable in operation.invars]
        values = [x for value in operation.params.values() for x in (value if isinstance(value, tuple) else (value,))]
        bodies = [body for body in (getattr(value, "jaxpr", value) for value in values) if hasattr(body, "eqns")]
        if operation.primitive.name in _RANDOM or any(inputs):
            results = [True] * len(operation.outvars)
        elif len(bodies) == 1 and len(bodies[0].outvars) == len(operation.outvars):
            results = _reached(bodies[0], [False] * len(bodies[0].invars))
        else:
            results = [any(depends_on_random_numbers(body) for body in bodies)] * len(operation.outvars)
        random |= {id(variable) for variable, reached in zip(operation.outvars, results, strict=True) if reached}
    return [id(variable) in random for variable in program.outvars]
