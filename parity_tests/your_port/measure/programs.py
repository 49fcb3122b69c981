"""Questions about a JAX program that was traced, by its public attributes."""

from collections.abc import Iterator
from typing import Any

import jax

DRAWS = frozenset({"random_bits", "random_gamma", "rng_bit_generator", "rng_uniform", "threefry2x32"})
"""The operations that make random numbers."""


def operations(program: Any) -> Iterator[Any]:
    """Yield every operation of a jaxpr, and of the jaxprs inside of it: loops, branches, functions under jit."""
    for operation in program.eqns:
        yield operation
        for inner in jax.tree.leaves(operation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from operations(inner)


def draws_numbers(program: Any) -> bool:
    """Whether a program draws random numbers, as dropout does."""
    return any(operation.primitive.name in DRAWS for operation in operations(program))
