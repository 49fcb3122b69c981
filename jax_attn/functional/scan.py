"""A loop over time whose weights get their gradients after the loop, as one product each.

In a recurrent network a weight W takes part in a product at every step, y_t = x_t W + b. Reverse differentiation of
`jax.lax.scan` adds up its gradient step by step: a small product, and a pass over an array of W's size, each time.

    dW = Σ_t x_tᵀ dy_t                        in the loop: T products of [K, B] and [B, N], W's size read and written
    dW = [x_1; …; x_T]ᵀ [dy_1; …; dy_T]       after it: one product of [K, T·B] and [T·B, N]

The two are the same sum. `scan` finds the products in the step, whatever cell it is made of, and takes the second way.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Primitive, Var
from jax.extend.core.primitives import add_p, dot_general_p

from jax_attn.functional.jaxprs import Values, evaluate, value
from jax_attn.functional.weight_products import dot_general

Carry = TypeVar("Carry")


def scan(
    step: Callable[[Carry, Any], tuple[Carry, Any]],
    carry: Carry,
    inputs: Any,
    *,
    reverse: bool = False,
) -> tuple[Carry, Any]:
    """`jax.lax.scan`: the same results, differentiable in both modes and as often.

    What does not change from step to step is moved out of the loop. For the backward pass products are kept and the
    rest is computed again, which is cheaper than to write and to read it.

    Args:
        step: (carry, inputs of one step) -> (carry, output); it may close over anything.
        carry: a pytree of arrays.
        inputs: a pytree of arrays that lead with time.
        reverse: from the last input to the first.
        num_steps: for how many of the inputs, from the first on, a step has to be taken; see
            `jax_attn.functional.early_end`. For the others the step must leave the carry as it is and have an output
            of 0, or it must not matter what they do. None takes all.

    Returns:
        The final carry, and the outputs of all steps, leading with time.
    """
    if jax.config.jax_disable_jit:  # type: ignore[attr-defined]  # step by step, for whoever looks at the steps
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

        advance = jax.checkpoint(advance, prevent_cse=False, policy=_is_product)
        carry, (outputs, factors) = jax.lax.scan(advance, carry, (inputs, shifts), reverse=reverse)
        return (carry, outputs), factors

    @jax.custom_jvp
    def run(weights: Any, constants: Any, carry: Carry, inputs: Any) -> tuple[Carry, Any]:
        return loop(weights, constants, carry, inputs, None)[0]

    @run.defjvp
    def run_jvp(primals: Any, tangents: Any) -> Any:
        # y_t = x_t W + b + shift_t has at shift_t = x_t dW + db the same derivative, and W and b are none of the loop's
        # concern there.
        weights, *rest = primals
        shifts = body.no_shifts(jax.tree.leaves(inputs)[0].shape[0])
        out, tangent_of, factors = jax.linearize(
            lambda *arguments: loop(weights, *arguments), *rest, shifts, has_aux=True
        )
        shifts = [
            sum(of_weights[1:], start=product.of_all_steps(x, of_weights[0]))
            for product, x, of_weights in zip(body.products, factors, tangents[0], strict=True)
        ]
        return out, tangent_of(*tangents[1:], shifts)

    return run(weights, constants, carry, inputs)


class Product(NamedTuple):
    """y = x W (or W x) + b + b′ … in a step, where W and all b are the same in every step."""

    equation: JaxprEqn
    side: int
    """Which operand W is, 0 or 1."""
    sums: list[JaxprEqn]
    """Of all b."""

    @property
    def x(self) -> Var | Literal:
        return self.equation.invars[1 - self.side]

    @property
    def y(self) -> Var:
        return [self.equation, *self.sums][-1].outvars[0]

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
    """A step, its products apart."""

    constants: Sequence[Var]
    """What is the same in every step, but no product's W or b."""
    arguments: Sequence[Var]
    """The leaves of carry and inputs."""
    equations: Sequence[JaxprEqn | Product]
    results: Sequence[Var | Literal]

    @property
    def products(self) -> list[Product]:
        return [part for part in self.equations if isinstance(part, Product)]

    def run(
        self,
        weights: list[list[Array]],
        constants: list[Any],
        arguments: list[Any],
        shifts: list[Array] | None,
    ) -> tuple[list[Any], list[Array]]:
        """The step's results; with shifts, which are added to its products, also x of each product.

        `weights`: of each product W and all b.
        """
        values = dict(zip(self.constants, constants, strict=True))
        values |= zip(self.arguments, arguments, strict=True)
        factors: list[Array] = []
        numbers = iter(range(len(weights)))
        for part in self.equations:
            if not isinstance(part, Product):
                evaluate(part, values)
                continue
            i = next(numbers)
            x = value(part.x, values)
            values[part.y] = sum(weights[i][1:], start=part.apply(x, weights[i][0]))
            if shifts is not None:
                values[part.y] = _shifted(values[part.y], shifts[i])
                factors.append(x)
        return [value(result, values) for result in self.results], factors

    def no_shifts(self, num_steps: int) -> list[Array]:
        """The shifts that change nothing, of all steps."""
        results: list[Any] = [product.y.aval for product in self.products]
        return [jnp.zeros((num_steps, *y.shape), y.dtype) for y in results]


def _take_apart(traced: ClosedJaxpr) -> tuple[Body, list[list[Array]], list[Any]]:
    """The body of the loop, of each product W and all b, and the other constants."""
    known, equations = _hoist(traced)
    results = traced.jaxpr.outvars
    uses = Counter(_variables(v for equation in equations for v in equation.invars) + _variables(results))
    parts: list[JaxprEqn | Product] = []
    weights: list[list[Array]] = []
    unfinished: dict[Any, int] = {}  # values of products that are used once, by the sum with a b perhaps
    products: list[Product] = []
    for equation in equations:
        side = _side_of_weight(equation, known)
        if side is not None and equation.primitive is dot_general_p:
            products.append(Product(equation, side, []))
            parts.append(products[-1])
            weights.append([known[equation.invars[side]]])
            number = len(products) - 1
        elif side is not None and equation.primitive is add_p and equation.invars[1 - side] in unfinished:
            number = unfinished[equation.invars[1 - side]]
            products[number].sums.append(equation)
            weights[number].append(known[equation.invars[side]])
        else:
            parts.append(equation)
            continue
        if uses[equation.outvars[0]] == 1:
            unfinished[equation.outvars[0]] = number
    needed = {v for part in parts for v in _variables([part.x] if isinstance(part, Product) else part.invars)}
    constants = [v for v in known if v in needed.union(_variables(results))]
    return Body(constants, traced.jaxpr.invars, parts, results), weights, [known[v] for v in constants]


def _hoist(traced: ClosedJaxpr) -> tuple[Values, list[JaxprEqn]]:
    """What is known before the loop, and the equations that are left to it."""
    known: Values = dict(zip(traced.jaxpr.constvars, traced.consts, strict=True))
    left = []
    for equation in traced.jaxpr.eqns:
        if equation.effects or any(v not in known for v in _variables(equation.invars)):
            left.append(equation)
        else:
            evaluate(equation, known)
    return known, left


def _side_of_weight(equation: JaxprEqn, known: Values) -> int | None:
    """Which operand is known before the loop, if of two variables just one is."""
    fixed = [v in known for v in _variables(equation.invars)]
    return fixed.index(True) if len(equation.invars) == 2 and sorted(fixed) == [False, True] else None


def _variables(atoms: Iterable[Var | Literal]) -> list[Var]:
    return [v for v in atoms if not isinstance(v, Literal)]


def _is_product(primitive: Primitive, *_: Any, **__: Any) -> bool:
    return primitive is dot_general_p


@jax.custom_jvp
def _shifted(y: Array, shift: Array) -> Array:
    """y + shift where the shift is 0: there is nothing to add but its derivative."""
    return y


@_shifted.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return primals[0], tangents[0] + tangents[1]
