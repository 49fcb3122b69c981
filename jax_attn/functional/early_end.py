"""Loops that end early, with derivatives.

Sentences of a batch are padded to one length, and what a recurrent network does past the longest of them is for
nothing. `jax.lax.scan` does it all the same, and a loop that is told at run time how far to go has no reverse mode in
JAX. Here a function is differentiated and vectorised as it stands, with `jax.lax.scan`, in both modes and as often as
one likes. Only what a CPU compiles in the end is another loop, of fewer steps. (A GPU goes through them all: it would
have to ask the host after each step whether there is another.)
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr, JaxprEqn, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jaxtyping import Int

from jax_attn.functional.jaxprs import apply, run_jaxpr

ends_early_p = Primitive("ends_early")
"""num_steps, *operands -> the results of `program`, whose loops end after `num_steps`.

What it means is the program. Its derivatives are those that JAX makes of the program, and bound here again.
"""
ends_early_p.multiple_results = True


def end_early(function: Callable[..., Any], num_steps: Int[Array, ""], *arguments: Any) -> Any:
    """function(*arguments), of whose loops only the first steps are taken.

    Args:
        function: of pytrees of arrays. It may close over none that is being traced, and its loops are those calls of
            `jax.lax.scan` that it makes itself.
        num_steps: how many of their steps are taken, of a loop in reverse the last: those for the first inputs. What
            the others would put out is 0. Nothing that is used may depend on them, and be it only because they leave
            the carry as it is: under `jax.vmap` all take as many steps as one of them needs.

    Returns:
        What the function returns. It can be differentiated as the function can, and under `jax.vmap`.
    """
    program, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
    results = ends_early_p.bind(num_steps, *jax.tree.leaves(arguments), program=program)
    return jax.tree.unflatten(jax.tree.structure(shape), results)


def _run(num_steps: Array, *operands: Array, program: ClosedJaxpr) -> list[Any]:
    def run(equation: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
        if equation.primitive is jax.lax.scan_p:
            return _first_steps(num_steps, operands, **equation.params)
        if "call_jaxpr" in equation.params:  # of a function with a derivative of its own, which has done its duty
            inner = equation.params["call_jaxpr"]
            return run_jaxpr(inner.jaxpr, inner.consts, operands, run)
        return apply(equation, operands)

    return run_jaxpr(program.jaxpr, program.consts, operands, run)


def _run_all(num_steps: Array, *operands: Array, program: ClosedJaxpr) -> list[Any]:
    return jaxpr_as_fun(program)(*operands)


def _first_steps(
    num_steps: Array,
    operands: Sequence[Any],
    *,
    jaxpr: ClosedJaxpr,
    num_consts: int,
    num_carry: int,
    length: int,
    reverse: bool,
    **_: Any,
) -> list[Any]:
    """`jax.lax.scan` with its parameters, but for `num_steps` steps."""
    step = jaxpr_as_fun(jaxpr)
    constants, carry, inputs = _split(operands, num_consts, num_carry)
    # Zeros of one origin XLA would make once, and copy for each.
    results = jaxpr.out_avals[num_carry:]
    zeros = [jax.lax.optimization_barrier(jnp.zeros((), x.dtype)) for x in results]
    outputs = [jnp.broadcast_to(zero, (length, *x.shape)) for zero, x in zip(zeros, results, strict=True)]

    def advance(i: Array, state: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
        carry, outputs = state
        time = num_steps - 1 - i if reverse else i
        at_time = [jax.lax.dynamic_index_in_dim(x, time, keepdims=False) for x in inputs]
        carry, results = _split(step(*constants, *carry, *at_time), num_carry)
        return carry, [
            jax.lax.dynamic_update_index_in_dim(array, x, time, 0) for array, x in zip(outputs, results, strict=True)
        ]

    carry, outputs = jax.lax.fori_loop(0, num_steps, advance, (carry, outputs))
    return [*carry, *outputs]


def _split(values: Sequence[Any], *sizes: int) -> list[list[Any]]:
    """The first so many, the next so many, and the rest."""
    parts, rest = [], list(values)
    for size in sizes:
        parts.append(rest[:size])
        rest = rest[size:]
    return [*parts, rest]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, program: ClosedJaxpr) -> tuple[list[Any], list[Any]]:
    """The program, which also puts out what its tangents need; then the linear program of the tangents alone."""
    (num_steps, *operands), tangents = primals, tangents[1:]
    moving = [not isinstance(tangent, ad.Zero) for tangent in tangents]
    smooth = [jnp.issubdtype(x.dtype, jnp.inexact) for x in program.out_avals]
    linear: list[ClosedJaxpr] = []

    def with_residuals(*operands: Any) -> tuple[list[Any], Sequence[Any]]:
        def of_moving(*moved: Any) -> tuple[list[Any], list[Any]]:
            results = jaxpr_as_fun(program)(*_merge(moving, moved, _only(operands, moving, False)))
            return _only(results, smooth), results

        _, of_moves, results = jax.linearize(of_moving, *_only(operands, moving), has_aux=True)
        linear.append(jax.make_jaxpr(of_moves)(*_only(operands, moving)))
        return results, linear[0].consts

    traced = jax.make_jaxpr(with_residuals)(*operands)
    results, residuals = _split(ends_early_p.bind(num_steps, *operands, program=traced), len(program.out_avals))
    moves = _only(tangents, moving)
    of_moves = jax.make_jaxpr(lambda residuals, moves: run_jaxpr(linear[0].jaxpr, residuals, moves))(residuals, moves)
    moved = ends_early_p.bind(num_steps, *residuals, *moves, program=of_moves)
    return results, _merge(
        smooth, moved, [ad.Zero(x.to_tangent_aval()) for x in _only(program.out_avals, smooth, False)]
    )


def _transpose(cotangents: Sequence[Any], num_steps: Any, *operands: Any, program: ClosedJaxpr) -> list[Any]:
    """Of a program that is linear in the operands that are not known."""
    linear = [ad.is_undefined_primal(x) for x in operands]
    known = _only(operands, linear, False)
    wanted = [x.aval for x in _only(operands, linear)]

    def backward(known: list[Any], cotangents: list[Any]) -> tuple[Any, ...]:
        def forward(*moves: Any) -> list[Any]:
            return jaxpr_as_fun(program)(*_merge(linear, moves, known))

        return jax.linear_transpose(forward, *wanted)(cotangents)

    cotangents = [ad.instantiate_zeros(x) for x in cotangents]
    traced = jax.make_jaxpr(backward)(known, cotangents)
    found = ends_early_p.bind(num_steps, *known, *cotangents, program=traced)
    return [None, *_merge(linear, found, [None] * len(known))]


def _batch(operands: Sequence[Any], axes: Sequence[Any], *, program: ClosedJaxpr) -> tuple[list[Any], list[Any]]:
    """As many steps as one of the batch needs."""
    (num_steps, *operands), (of_steps, *axes) = operands, axes
    if of_steps is not None:
        num_steps = num_steps.max(initial=0)
    if all(axis is None for axis in axes):
        return ends_early_p.bind(num_steps, *operands, program=program), [None for _ in program.out_avals]
    traced = jax.make_jaxpr(jax.vmap(jaxpr_as_fun(program), axes))(*operands)
    return ends_early_p.bind(num_steps, *operands, program=traced), [0] * len(program.out_avals)


def _only(values: Sequence[Any], chosen: Sequence[bool], like: bool = True) -> list[Any]:
    return [x for x, is_chosen in zip(values, chosen, strict=True) if is_chosen == like]


def _merge(chosen: Sequence[bool], values: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """The inverse of `_only`: each from the values where it is chosen, else from the others."""
    sources = iter(others), iter(values)
    return [next(sources[is_chosen]) for is_chosen in chosen]


ends_early_p.def_impl(_run)
ends_early_p.def_effectful_abstract_eval(lambda num_steps, *operands, program: (program.out_avals, program.effects))
ad.primitive_jvps[ends_early_p] = _jvp
ad.primitive_transposes[ends_early_p] = _transpose
batching.primitive_batchers[ends_early_p] = _batch
mlir.register_lowering(ends_early_p, mlir.lower_fun(_run_all, multiple_results=True))
mlir.register_lowering(ends_early_p, mlir.lower_fun(_run, multiple_results=True), platform="cpu")
