"""Hold a compiled JAX program to itself, run operation by operation: a compiler may compute a fusion wrongly.

There is no wider dtype to judge by. So it is measured how much rounding matters: the program runs again, with the
result of each operation that rounds moved by a unit in its last place at random (Monte Carlo arithmetic, Parker 1997).
With u the unit roundoff, and e the most that three such runs differ from the unmoved one:

    |compiled − op by op| ≤ 8 u size + 4 e          integers: as many may differ as in one of these runs, twice

A compiled program that fails is compiled once more without what its version of jaxlib is known to do wrongly. Where
that does not help, parts of the program are compiled, and the first that differs is named.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jax_attn.compiler import Fault, faults_of
from parity_tests.your_port.measure.arrays import Arrays, as_numpy, flatten, in_reals, is_floating, plain
from parity_tests.your_port.measure.case import random_for
from parity_tests.your_port.measure.errors import (
    DECADES,
    DECADES_OF_FLOAT32,
    differing_extremes,
    neighbours,
    unit_roundoff,
)
from parity_tests.your_port.measure.jax_side import differentiate
from parity_tests.your_port.measure.judge import Measurement
from parity_tests.your_port.measure.numbers import gradient_of
from parity_tests.your_port.measure.op_by_op import Operation, Program, ResultChange, trace
from parity_tests.your_port.measure.users_code import folders_of, is_users
from parity_tests.your_port.record import Findings

MOVED_RUNS = 3
LANES = 32
"""A sum of n terms is moved by √n / 32 units, at least by one: compilers differ in the parts that they add up."""
ROUNDS = frozenset({
    "acos", "acosh", "add", "add_any", "asin", "asinh", "atan", "atan2", "atanh", "cbrt",
    "conv_general_dilated", "cos", "cosh", "cumlogsumexp", "cumprod", "cumsum", "digamma", "div", "dot_general",
    "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "integer_pow", "lgamma", "log", "log1p", "logistic",
    "mul", "pow", "reduce_prod", "reduce_sum", "reduce_window_sum", "rsqrt", "scatter-add", "sin", "sinh",
    "sqrt", "square", "sub", "tan", "tanh",
})  # fmt: skip
"""The operations whose results are rounded. Others copy, compare or choose, and stay exact."""
LIBRARIES = folders_of("jax", "jaxlib", "flax", "equinox", "haiku", "optax")

Function = Callable[[dict[str, Any]], dict[str, Any]]


def compare_compiled(program: Any, inputs: Any = None, *, gradients: bool = True, name: str = "") -> "CompiledReport":
    """Compare a compiled JAX program with itself, run operation by operation, in the dtypes that its arrays have.

        print(compare_compiled(model, batch))  # the sizes and dtypes that will really run

    The outputs are compiled alone, and together with the gradients of all floating inputs and weights: these are two
    programs, and each may be wrong without the other. No PyTorch is needed. At one time, no more results are held than
    the program itself needs, and those that are compared.

    Args:
        program: a function of the inputs, or a module of Flax NNX or Equinox. For Flax Linen, give `module.apply` and
            the variables as the first input.
        inputs: an array, a tuple of positional arguments, or a dict of keywords.
        gradients: False compares the outputs alone.
        name: what the report calls the program.

    Raises:
        TypeError: the program is not callable.
        ValueError: there is no array, or the program cannot be differentiated; the message says what to do.
    """
    if not callable(program):
        raise TypeError(f"program must be a function or a module that can be called; got {type(program).__name__}")
    called = name or getattr(program, "__name__", type(program).__name__)
    function, arrays = _as_function(program, inputs)
    if not arrays:
        raise ValueError("neither the program nor its inputs hold an array, so that there is nothing to compile")
    moved = {name: x for name, x in arrays.items() if jnp.issubdtype(x.dtype, jnp.floating)}
    fixed = {name: x for name, x in arrays.items() if name not in moved}
    return judge_compiled(called, lambda moved, fixed: function({**moved, **fixed}), moved, fixed, gradients)


def judge_compiled(
    name: str, compute: Callable[[Any, Any], dict[str, Any]], moved: Any, fixed: Any, gradients: bool
) -> "CompiledReport":
    """Compile a function (moved, fixed) -> outputs by name, alone and with the gradients of what moves; judge both."""
    program, measured = differentiate(compute), list[Measurement]()
    directions = {"outputs": dict[str, Any]()}
    if gradients and jax.tree.leaves(moved):
        ends = {n: x for n, x in jax.eval_shape(compute, moved, fixed).items() if x is not None and is_floating(x)}
        drawn = {n: random_for(name, "cotangent", n).normal(size=x.shape) for n, x in ends.items()}
        directions["outputs and gradients"] = {n: jnp.asarray(x) for n, x in drawn.items()}

    def results(*given: Any) -> dict[str, Any]:
        outputs, found = program(*given)
        named = {**outputs, **{gradient_of(n): x for n, x in flatten(found)[0].items()}} if found else outputs
        return {n: x for n, x in named.items() if x is not None}

    for variant, along in directions.items():
        pair = CompiledPair(name, variant, results, (moved, fixed, along))
        found = pair.measure(pair.compiled())
        measured += found
        if any(m.failed for m in found):
            fault = pair.known_fault()
            return CompiledReport(name, tuple(measured), fault, "" if fault else pair.first_difference(found))
    if not measured:
        raise ValueError(f"{name} returns no array, so that there is nothing to compare")
    return CompiledReport(name, tuple(measured))


@dataclass(frozen=True)
class CompiledReport(Findings):
    """How far a compiled program is from its own operations."""

    name: str
    measurements: tuple[Measurement, ...]
    """Every tensor of each compiled program, up to the first program that is wrong."""
    fault: Fault | None = None
    """The known fault of the compiler that explains the difference: without it, the two agree."""
    first: str = ""
    """Where no known fault explains it: the first line of the program that is computed otherwise."""

    def _lines(self) -> Iterator[str]:
        dtypes = " and ".join(dict.fromkeys(m.dtype for m in self.measurements))
        verdict = "agrees" if self.agrees else f"DIFFERS in {len(self.failed)} of {len(self.measurements)} tensors"
        yield f"{self.name}, compiled, {verdict} with its own operations ({dtypes})"
        worst = max(self.measurements, key=lambda m: m.share)
        yield f"  worst: {worst.tensor} in the program of the {worst.variant}: {worst.difference}"
        yield from self.explain()

    def explain(self) -> Iterator[str]:
        """Yield the line of the verdict that says why it differs: by a known fault of the compiler, or where."""
        if self.fault is not None:
            yield f"  cause: the compiler: {self.fault}; with the flag the two agree: {self.fault.remedy}"
        elif self.failed:
            yield f"  first difference: in the compiled program alone, {self.first}"


@dataclass(frozen=True)
class CompiledPair:
    """A function with results by name, to be compiled and to be run operation by operation."""

    name: str
    variant: str
    function: Callable[..., dict[str, Any]]
    given: tuple[Any, ...]

    @cached_property
    def program(self) -> tuple[Program, list[str]]:
        """The traced program, and the names of its results."""
        program, shapes = trace(self.function, *self.given)
        return program, [*shapes]

    @cached_property
    def reference(self) -> tuple[Arrays, Arrays]:
        """The results of the operations, and by how much those of the moved runs differ at most."""
        program, names = self.program
        arrays = jax.tree.leaves(self.given)

        def run(change: ResultChange | None = None) -> Arrays:
            return as_numpy(dict(zip(names, program.run(arrays, change), strict=True)))

        truth = run()
        noise = {name: np.zeros(x.shape) for name, x in truth.items()}
        for number in range(MOVED_RUNS):
            moved = run(partial(_move, random_for(self.name, "moved", str(number))))
            for name, x in truth.items():
                with np.errstate(invalid="ignore"):  # inf − inf
                    apart = np.abs(moved[name].astype(np.float64) - x.astype(np.float64))
                apart = np.where(np.isfinite(apart), apart, 0.0) if is_floating(x) else moved[name] != x
                noise[name] = np.maximum(noise[name], apart)
        return truth, noise

    def compiled(self, options: Mapping[str, str] | None = None) -> Arrays:
        """Run the compiled program."""
        run = jax.jit(self.function, compiler_options=None if options is None else dict(options))
        return as_numpy(run(*self.given))

    def measure(self, compiled: Arrays) -> list[Measurement]:
        """Measure each tensor."""
        truth, noise = self.reference
        return [self._measure(name, compiled[name], truth[name], noise[name]) for name in truth]

    def known_fault(self) -> Fault | None:
        """Return the known fault of this compiler without which the program agrees."""
        known = faults_of(version("jaxlib")) if jax.default_backend() == "cpu" else []
        right = (f for f in known if not any(m.failed for m in self.measure(self.compiled(f.options))))
        return next(right, None)

    def first_difference(self, measured: Sequence[Measurement]) -> str:
        """Say which operation is the first whose compiled program differs, by halving the program."""
        whole, names = self.program
        failed = next(m.tensor for m in measured if m.failed)
        part = whole.of((whole.results[names.index(failed)],))
        operations = part.operations
        found, low, high = None, 0, len(operations)
        while low < high:
            middle = (low + high) // 2
            if self._differs(part.until(middle)):
                found, high = operations[middle], middle
            else:
                low = middle + 1
        if found is None:
            return "no part of the program differs when it is compiled alone: looking inside changes what is fused"
        return f"{found.name} in {place_of(found)}, operation {operations.index(found) + 1} of {len(operations)}"

    def _differs(self, part: Program) -> bool:
        names = [str(number) for number in part.results]

        def compute(*given: Any) -> dict[str, Any]:
            return dict(zip(names, map(in_reals, part.run(jax.tree.leaves(given), loops=False)), strict=True))

        pair = CompiledPair(self.name, self.variant, compute, self.given)
        return any(m.failed for m in pair.measure(pair.compiled()))

    def _measure(self, tensor: str, compiled: np.ndarray, truth: np.ndarray, noise: np.ndarray) -> Measurement:
        found = Measurement(self.name, self.variant, str(truth.dtype), tensor, 0.0, 0.0, rule=str(truth.dtype))
        if mismatch := differing_extremes(compiled, truth, ("the compiled program", "its operations")):
            return replace(found, mismatch=mismatch)
        if not is_floating(truth):
            return replace(found, error=float((compiled != truth).sum()), bound=2 * float(noise.sum()))
        finite = np.isfinite(truth.astype(np.float64))
        if not finite.any():
            return found
        compiled, truth, noise = (x.astype(np.float64)[finite] for x in (compiled, truth, noise))
        sizes, noise, _ = neighbours(truth, noise, DECADES if found.rule == "float64" else DECADES_OF_FLOAT32)
        bounds, errors = 8 * unit_roundoff(found.rule) * sizes + 4 * noise, np.abs(compiled - truth)
        worst = int(np.argmax(errors / bounds))
        return replace(found, error=float(errors[worst] / sizes[worst]), bound=float(bounds[worst] / sizes[worst]))


def _move(rng: np.random.Generator, operation: Operation, x: Any) -> Any:
    """Move each entry of a rounded result by one unit in its last place, or not; after a long sum by more.

    Partial sums of n terms are rounded, too. In one sequence that moves the sum by about √n units, and less in parts.
    """
    if operation.name not in ROUNDS or not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    steps = rng.integers(-1, 2, x.shape, np.int8) * max(1.0, operation.num_terms**0.5 / LANES)
    if jnp.iscomplexobj(x):  # either part may cancel, so both move by a unit of the whole
        steps = steps + 1j * rng.integers(-1, 2, x.shape, np.int8)
    moved = x + x * (steps * float(jnp.finfo(x.dtype).eps)).astype(x.dtype)
    return jnp.where(jnp.isfinite(moved), moved, x)  # finfo.min, with which a mask fills, has no neighbour below


def place_of(operation: Operation) -> str:
    """Return the user's line that an operation comes from: `model.py:42`."""
    traceback = operation.equation.source_info.traceback
    frames = [] if traceback is None else traceback.frames
    found = next((frame for frame in frames if is_users(frame.file_name, LIBRARIES)), None)
    return "code that is not yours" if found is None else f"{Path(found.file_name).name}:{found.line_num}"


def _as_function(program: Any, inputs: Any) -> tuple[Function, dict[str, Any]]:
    """Make a function of all arrays by name, those of the module included; what is no array stays as it is."""
    given = inputs if isinstance(inputs, Mapping | tuple | list) else () if inputs is None else (inputs,)
    graph, held = nnx.split(program) if isinstance(program, nnx.Module) else (None, program)
    flat, rebuild = flatten({"weights": held, "inputs": given})
    arrays = {name: jnp.asarray(x) for name, x in flat.items() if hasattr(x, "shape") and hasattr(x, "dtype")}

    def function(arrays: dict[str, Any]) -> dict[str, Any]:
        tree = rebuild({**flat, **arrays})
        called = tree["weights"] if graph is None else nnx.merge(graph, tree["weights"])
        given = tree["inputs"]
        results = called(**given) if isinstance(given, Mapping) else called(*given)
        return {name: in_reals(x) for name, x in flatten(plain(results))[0].items() if x is not None}

    return function, arrays
