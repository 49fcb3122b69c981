"""Run a JAX program operation by operation, each compiled alone, so that the compiler can fuse nothing.

The program is traced once. So a long loop costs its operations and no more, whereas `jax.disable_jit` runs the loop's
Python code, and differentiates it, anew at each step. A result is dropped after its last use.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

CALLS = {
    **dict.fromkeys(("jit", "pjit", "checkpoint", "remat", "remat2"), "jaxpr"),
    **dict.fromkeys(("closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"), "call_jaxpr"),
}
"""The operations that do nothing but call another program -> the parameter that holds it."""
DRAWS = frozenset({"random_bits", "random_gamma", "rng_bit_generator", "rng_uniform", "threefry2x32"})
"""The operations that make random numbers."""
MANY_OPERATIONS = 300
"""Of loops, counted at each step; to run Python's code for more, and to differentiate it, takes minutes."""
STEPS_OF_WHILE = 100
"""A `while` counts as so many."""

ResultChange = Callable[[Any, Any], Any]
"""(operation, result) -> what is taken instead of the result."""


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation of a program, with the numbers of the values that it reads and writes."""

    equation: Any
    reads: tuple[int, ...]
    writes: tuple[int, ...]

    @property
    def name(self) -> str:
        return str(self.equation.primitive.name)

    @property
    def num_terms(self) -> int:
        """The number of terms that are added up for each entry of the result, by a sum or a product of matrices."""
        params, summed = self.equation.params, tuple[int, ...]()
        if self.name == "reduce_sum":
            summed = params["axes"]
        elif self.name == "dot_general":
            summed = params["dimension_numbers"][0][0]
        return math.prod(self.equation.invars[0].aval.shape[axis] for axis in summed)

    @cached_property
    def parts(self) -> list["Program"]:
        """The programs that it holds, such as a loop's, in the order of the names of its parameters."""
        held = jax.tree.leaves(self.equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr"))
        return [_flat(x) for x in held if hasattr(getattr(x, "jaxpr", x), "eqns")]


@dataclass(frozen=True, eq=False)
class Program:
    """A traced program without the calls in it, in the order in which it computes. Values go by numbers."""

    operations: tuple[Operation, ...]
    given: tuple[int, ...]
    constants: Mapping[int, Any]
    results: tuple[int, ...]

    @cached_property
    def last_uses(self) -> list[list[int]]:
        """For each operation, the values that nothing reads after it."""
        after = set(self.results) | self.constants.keys()
        unused: list[list[int]] = []
        for operation in reversed(self.operations):
            unused.append([value for value in {*operation.reads, *operation.writes} if value not in after])
            after.update(operation.reads)
        return unused[::-1]

    def everywhere(self, steps: int = 0) -> Iterator[tuple[Operation, int]]:
        """Yield each operation, those inside of others too, and how often loops repeat it; 0 is outside of loops."""
        for operation in self.operations:
            yield operation, steps
            length = {"scan": operation.equation.params.get("length"), "while": STEPS_OF_WHILE}.get(operation.name)
            for part in operation.parts:
                yield from part.everywhere(steps if length is None else max(1, steps) * length)

    @property
    def draws_numbers(self) -> bool:
        """Whether it draws random numbers, as dropout does."""
        return any(operation.name in DRAWS for operation, _ in self.everywhere())

    @cached_property
    def has_long_loops(self) -> bool:
        """Whether running Python's code at each step of the loops would take minutes."""
        return sum(steps for _, steps in self.everywhere()) > MANY_OPERATIONS

    @property
    def _constants(self) -> list[Any]:
        """All constants, those of the programs inside of it too."""
        inside = [part for operation, _ in self.everywhere() for part in operation.parts]
        return [x for program in (self, *inside) for x in program.constants.values()]

    @property
    def tables(self) -> list[np.ndarray]:
        """The constants that are arrays of NumPy, and not of JAX."""
        return [x for x in self._constants if isinstance(x, np.ndarray) and x.ndim]

    @property
    def dtypes(self) -> set[Any]:
        """The dtypes of all results and tables, but for booleans that are cast: every dtype has 0 and 1."""
        found = {x.dtype for x in self._constants if np.shape(x)}
        found |= {np.dtype(np.float32) for x in self._constants if _was_float32(x)}
        for operation, _ in self.everywhere():
            given, made = operation.equation.invars, operation.equation.outvars
            if operation.name != "convert_element_type" or given[0].aval.dtype != bool:
                found |= {x.aval.dtype for x in made if hasattr(x.aval, "dtype")}
        return found

    def of(self, results: tuple[int, ...]) -> "Program":
        """Return the part of the program that these values need."""
        needed, operations = set(results), list[Operation]()
        for operation in reversed(self.operations):
            if needed & {*operation.writes}:
                operations.append(operation)
                needed.update(operation.reads)
        return replace(self, operations=tuple(operations[::-1]), results=results)

    def until(self, last: int) -> "Program":
        """Return the program up to an operation; its results are the values that are read later."""
        done, later = self.operations[: last + 1], self.operations[last + 1 :]
        read = set(self.results).union(*(operation.reads for operation in later))
        return replace(self, operations=done, results=tuple(x for each in done for x in each.writes if x in read))

    def run(self, arguments: Sequence[Any], change: ResultChange | None = None, loops: bool = True) -> list[Any]:
        """Run it on arrays. Without `loops`, each loop is one operation, so that the program may be compiled."""
        values = {**self.constants, **dict(zip(self.given, arguments, strict=True))}
        for operation, unused in zip(self.operations, self.last_uses, strict=True):
            read = [values[number] for number in operation.reads]
            if loops and operation.name in _LOOPS:
                results = _LOOPS[operation.name](operation, read, change)
            else:
                results = _apply(operation.equation, read)
                results = results if change is None else [change(operation, x) for x in results]
            values.update(zip(operation.writes, results, strict=True))
            del read, results
            for number in unused:
                values.pop(number, None)
        return [values[number] for number in self.results]


def _was_float32(x: Any) -> bool:
    """Whether a constant was rounded to float32: it has at most 24 binary digits, and more than 12."""
    if not jnp.issubdtype(getattr(x, "dtype", type(x)), jnp.floating):
        return False
    values = np.asarray(x, np.float64)
    values = values[np.isfinite(values)]
    values = values[values % 1 != 0]
    digits = np.frexp(values)[0] * 2**24
    return bool((digits % 1 == 0).all() and (digits % 2**12 != 0).any())


def trace(function: Callable[..., Any], *arguments: Any) -> tuple[Program, Any]:
    """Trace a function of arrays; return its program, whose arguments are the leaves, and the results' shapes."""
    traced, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    return _flat(traced), shapes


def without_jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Do as `jax.jit` does, but operation by operation; Python runs the code of loops, unless that takes too long."""

    def run(*arguments: Any) -> Any:
        program, shapes = trace(function, *arguments)
        if not program.has_long_loops:
            with jax.disable_jit():
                return function(*arguments)
        return jax.tree.unflatten(jax.tree.structure(shapes), program.run(jax.tree.leaves(arguments)))

    return run


def _flat(traced: Any) -> Program:
    """Number the values of a jaxpr, and put the operations of the programs that it calls in their place."""
    numbers, operations, constants = count(), list[Operation](), dict[int, Any]()

    def constant(x: Any) -> int:
        constants[number := next(numbers)] = x
        return number

    def walk(jaxpr: Any, held: Sequence[Any], arguments: Sequence[int]) -> list[int]:
        names = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*map(constant, held), *arguments), strict=True))

        def number_of(x: Any) -> int:
            return constant(x.val) if hasattr(x, "val") else names[x]

        for equation in jaxpr.eqns:
            reads = [number_of(x) for x in equation.invars]
            if name := CALLS.get(equation.primitive.name):
                inner = equation.params[name]
                writes = walk(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), reads)
            else:
                writes = [next(numbers) for _ in equation.outvars]
                operations.append(Operation(equation, tuple(reads), tuple(writes)))
            names.update(zip(equation.outvars, writes, strict=True))
        return [number_of(x) for x in jaxpr.outvars]

    jaxpr = getattr(traced, "jaxpr", traced)
    given = tuple(next(numbers) for _ in jaxpr.invars)
    results = walk(jaxpr, getattr(traced, "consts", ()), given)
    return Program(tuple(operations), given, constants, tuple(results))


def _apply(equation: Any, values: Sequence[Any]) -> list[Any]:
    bound = equation.primitive.get_bind_params(equation.params)
    functions, params = bound if isinstance(bound, tuple) else ((), bound)  # a tuple before JAX 0.10
    with equation.ctx.manager:
        results = equation.primitive.bind(*functions, *values, **params)
    return list(results) if equation.primitive.multiple_results else [results]


# Loops, one step after the other


def _scan(operation: Operation, values: Sequence[Any], change: ResultChange | None) -> list[Any]:
    params = operation.equation.params
    if "ft_in" in params:  # JAX 0.12
        held, carried = map(len, params["ft_in"].unpack()[:2])
    else:
        held, carried = params["num_consts"], params["num_carry"]
    (body,) = operation.parts
    constants, carry, xs = values[:held], list(values[held : held + carried]), values[held + carried :]
    steps: list[list[Any]] = []
    for step in range(params["length"]):
        at = params["length"] - 1 - step if params["reverse"] else step
        read = [x[at] if change is None else change(operation, x[at]) for x in xs]
        results = body.run([*constants, *carry, *read], change)
        carry = results[:carried]
        steps.append(results[carried:])
    if not steps:
        stacked = [jnp.zeros(x.aval.shape, x.aval.dtype) for x in operation.equation.outvars[carried:]]
    else:
        stacked = [jnp.stack(ys) for ys in zip(*(steps[::-1] if params["reverse"] else steps), strict=True)]
    return [*carry, *stacked]


def _while(operation: Operation, values: Sequence[Any], change: ResultChange | None) -> list[Any]:
    of_condition, of_body = (operation.equation.params[f"{part}_nconsts"] for part in ("cond", "body"))
    body, condition = operation.parts
    left, right = values[:of_condition], values[of_condition : of_condition + of_body]
    state = list(values[of_condition + of_body :])
    while bool(condition.run([*left, *state], change)[0]):
        state = body.run([*right, *state], change)
    return state


def _cond(operation: Operation, values: Sequence[Any], change: ResultChange | None) -> list[Any]:
    chosen = min(max(int(values[0]), 0), len(operation.parts) - 1)
    return operation.parts[chosen].run(values[1:], change)


_LOOPS = {"scan": _scan, "while": _while, "cond": _cond}
