"""Running what JAX has traced, equation by equation, so that some of it can be run in another way."""

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

Values = dict[Any, Any]
"""What each variable holds."""


def run_jaxpr(
    jaxpr: Jaxpr,
    constants: Sequence[Any],
    arguments: Sequence[Any],
    run: Callable[[JaxprEqn, list[Any]], Sequence[Any]] | None = None,
) -> list[Any]:
    """The results of a jaxpr. `run` computes those of an equation from its operands; by default as JAX does."""
    values: Values = dict(zip(jaxpr.constvars, constants, strict=True))
    values |= zip(jaxpr.invars, arguments, strict=True)
    for equation in jaxpr.eqns:
        if run is None:
            evaluate(equation, values)
        else:
            results = run(equation, [value(v, values) for v in equation.invars])
            values.update(zip(equation.outvars, results, strict=True))
    return [value(v, values) for v in jaxpr.outvars]


def evaluate(equation: JaxprEqn, values: Values) -> None:
    """Add what the equation computes to the values."""
    results = apply(equation, [value(v, values) for v in equation.invars])
    values.update(zip(equation.outvars, results, strict=True))


def apply(equation: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
    """The results of an equation."""
    params = equation.primitive.get_bind_params(equation.params)
    with equation.ctx.manager:
        results = equation.primitive.bind(*operands, **params)
    return results if equation.primitive.multiple_results else [results]


def value(variable: Var | Literal, values: Values) -> Any:
    return variable.val if isinstance(variable, Literal) else values[variable]
