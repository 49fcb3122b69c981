"""A loop over time whose weights get their gradients after the loop, as one product each.

In a recurrent network a weight W takes part in a product at every step, y_t = x_t W. Reverse differentiation of
`jax.lax.scan` adds up its gradient step by step: a small product, and a pass over an array of W's size, each time.

    dW = Σ_t x_tᵀ dy_t                        in the loop: T products of [K, B] and [B, N], W's size read and written
    dW = [x_1; …; x_T]ᵀ [dy_1; …; dy_T]       after it: one product of [K, T·B] and [T·B, N]

The two are the same sum. `scan` finds the products in the step, whatever cell it is made of, and takes the second way.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var
from jax.extend.core.primitives import add_p, dot_general_p

from jax_attn.functional.products import dot_general

Carry = TypeVar("Carry")


def scan(
    step: Callable[[Carry, Any], tuple[Carry, Any]], carry: Carry, inputs: Any, *, reverse: bool = False
) -> tuple[Carry, Any]:
    """`jax.lax.scan`: the same results, differentiable in both modes and as often.

    What does not change from step to step is moved out of the loop as well.

    Args:
        step: (carry, inputs of one step) -> (carry, output); it may close over anything.
        carry: a pytree of arrays.
        inputs: a pytree of arrays that lead with time.
        reverse: from the last input to the first.

    Returns:
        The final carry, and the outputs of all steps, leading with time.
    """
    if jax.config.jax_disable_jit:  # step by step, for whoever wants to look at the steps
        return jax.lax.scan(step, carry, inputs, reverse=reverse)
    at_one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), inputs)
    traced, results = jax.make_jaxpr(step, return_shape=True)(carry, at_one)
    body, weights, constants = _take_apart(traced)

    def loop(weights: Any, constants: Any, carry: Carry, inputs: Any, shifts: Any) -> tuple[tuple[Carry, Any], Any]:
        def advance(carry: Carry, at_time: tuple[Any, Any]) -> tuple[Carry, Any]:
            x, shift = at_time
            leaves, factors = body.run(weights, constants, jax.tree.leaves((carry, x)), shift)
            carry, output = jax.tree.unflatten(jax.tree.structure(results), leaves)
            return carry, (output, factors)

        # For the backward pass only products are kept: the rest is cheaper to compute again than to write and read.
        advance = jax.checkpoint(advance, prevent_cse=False, policy=jax.checkpoint_policies.dots_saveable)
        carry, (outputs, factors) = jax.lax.scan(advance, carry, (inputs, shifts), reverse=reverse)
        return (carry, outputs), factors

    @jax.custom_jvp
    def run(weights: Any, constants: Any, carry: Carry, inputs: Any) -> tuple[Carry, Any]:
        return loop(weights, constants, carry, inputs, None)[0]

    @run.defjvp
    def run_jvp(primals: Any, tangents: Any) -> Any:
        # y_t = x_t W + shift_t has at shift_t = x_t dW the same derivative, and there W is none of the loop's concern.
        weights, *rest = primals
        shifts = body.no_shifts(jax.tree.leaves(inputs)[0].shape[0])
        out, tangent_of, factors = jax.linearize(
            lambda *arguments: loop(weights, *arguments), *rest, shifts, has_aux=True
        )
        shifts = [
            sum(tangents[0][1][i], start=product.of_all_steps(factors[i], tangents[0][0][i]))
            for i, product in enumerate(body.products)
        ]
        return out, tangent_of(*tangents[1:], shifts)

    return run(weights, constants, carry, inputs)


class Weights(NamedTuple):
    """What the loop needs no gradient of: for each product y = x W + b + … its W, and its b."""

    factors: list[Array]
    offsets: list[list[Array]]


class Product(NamedTuple):
    """y = x W or W x in a step, where W is the same in every step, and then y + b, y + b + b′, …"""

    equation: JaxprEqn
    side: int
    """Which operand W is, 0 or 1."""
    sums: list[JaxprEqn]

    def apply(self, x: Array, weight: Array) -> Array:
        operands = (weight, x) if self.side == 0 else (x, weight)
        return dot_general_p.bind(*operands, **self.equation.params)

    def of_all_steps(self, x: Array, weight: Array) -> Array:
        """The products of all steps, where x leads with time."""
        params = dict(self.equation.params)
        (contracted, of_weight), batched = params.pop("dimension_numbers")
        if self.side == 0 or any(batched) or len(contracted) > 1:
            return jax.vmap(self.apply, (0, None))(x, weight)
        return dot_general(x, weight, (((contracted[0] + 1,), of_weight), batched), **params)


class Body(NamedTuple):
    """A step, its products with weights apart."""

    constants: Sequence[Var]
    """What else is the same in every step."""
    arguments: Sequence[Var]
    """The leaves of carry and inputs."""
    equations: Sequence[JaxprEqn]
    products: list[Product]
    results: Sequence[Var | Literal]

    def run(
        self, weights: Weights, constants: list[Any], arguments: list[Any], shifts: list[Array] | None
    ) -> tuple[list[Any], list[Array]]:
        """The step's results; with shifts, which are added to its products, also x of each product."""
        values: dict[Any, Any] = dict(zip(self.constants, constants, strict=True))
        values |= zip(self.arguments, arguments, strict=True)
        numbers = {id(product.equation): i for i, product in enumerate(self.products)}
        passed_over = {id(equation) for product in self.products for equation in product.sums}
        factors = []
        for equation in self.equations:
            if id(equation) in passed_over:
                continue
            i = numbers.get(id(equation))
            if i is None:
                _evaluate(equation, values)
                continue
            product = self.products[i]
            x = _value(equation.invars[1 - product.side], values)
            y = sum(weights.offsets[i], start=product.apply(x, weights.factors[i]))
            if shifts is not None:
                y = _shifted(y, shifts[i])
                factors.append(x)
            values[[equation, *product.sums][-1].outvars[0]] = y
        return [_value(result, values) for result in self.results], factors

    def no_shifts(self, num_steps: int) -> list[Array]:
        """The shifts that change nothing, of all steps."""
        results = [product.equation.outvars[0].aval for product in self.products]
        return [jnp.zeros((num_steps, *y.shape), y.dtype) for y in results]


def _take_apart(traced: ClosedJaxpr) -> tuple[Body, Weights, list[Any]]:
    """The body of the loop, the weights of its products, and its other constants."""
    jaxpr = traced.jaxpr
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, traced.consts, strict=True))
    uses = Counter(v for e in jaxpr.eqns for v in e.invars if not isinstance(v, Literal))
    uses.update(v for v in jaxpr.outvars if not isinstance(v, Literal))
    equations: list[JaxprEqn] = []
    products: list[Product] = []
    weights = Weights([], [])
    of_product: dict[Any, int] = {}  # variables that nothing but a sum can use
    used = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    for equation in jaxpr.eqns:
        variables = [v for v in equation.invars if not isinstance(v, Literal)]
        if all(v in known for v in variables) and not equation.effects:
            _evaluate(equation, known)  # once for all steps
            continue
        equations.append(equation)
        fixed = [v in known for v in variables]
        if sum(fixed) == 1 and len(fixed) == 2:
            side = fixed.index(True)
            weight, other = variables[side], variables[1 - side]
            if equation.primitive is dot_general_p:
                products.append(Product(equation, side, []))
                weights.factors.append(known[weight])
                weights.offsets.append([])
                used.add(other)
            elif equation.primitive is add_p and other in of_product:
                products[of_product[other]].sums.append(equation)
                weights.offsets[of_product[other]].append(known[weight])
            else:
                used.update(variables)
                continue
            if uses[equation.outvars[0]] == 1:
                of_product[equation.outvars[0]] = len(products) - 1 if equation.primitive is dot_general_p else of_product[other]
        else:
            used.update(variables)
    constants = [v for v in known if v in used]
    body = Body(constants, jaxpr.invars, equations, products, jaxpr.outvars)
    return body, weights, [known[v] for v in constants]


@jax.custom_jvp
def _shifted(y: Array, shift: Array) -> Array:
    """y + shift where the shift is 0: there is nothing to add but its derivative."""
    return y


@_shifted.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return primals[0], tangents[0] + tangents[1]


def _value(variable: Var | Literal, values: dict[Any, Any]) -> Any:
    return variable.val if isinstance(variable, Literal) else values[variable]


def _evaluate(equation: JaxprEqn, values: dict[Any, Any]) -> None:
    params = equation.primitive.get_bind_params(equation.params)
    with equation.ctx.manager:
        results = equation.primitive.bind(*(_value(v, values) for v in equation.invars), **params)
    values.update(zip(equation.outvars, results if equation.primitive.multiple_results else [results], strict=True))
