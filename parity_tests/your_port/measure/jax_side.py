"""Run one variant in JAX: its outputs and its gradients, as NumPy arrays by name."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from parity_tests.your_port.measure.case import Case, JaxSide, Variant
from parity_tests.your_port.measure.numbers import Numbers, Run, options_in
from parity_tests.your_port.measure.op_by_op import op_by_op
from parity_tests.your_port.measure.programs import computed_dtypes, has_long_loops
from parity_tests.your_port.measure.tree import flatten, plain
from parity_tests.your_port.measure.x64 import enable_x64


def jax_function(call: Callable[[Any, Any], Any]) -> JaxSide:
    """Make the side of a function without weights: call(inputs, options) -> outputs."""
    return JaxSide(lambda _, inputs, options: call(inputs, options))


class Applied:
    """A Linen module with its variables. Its methods are pure functions and may be called inside any JAX loop.

    Unless some collections are mutable: what the last call changed in these is in `updated`.
    """

    def __init__(self, module: nn.Module, variables: Any, mutable: Sequence[str] = ()) -> None:
        self._module, self._variables, self._mutable = module, variables, list(mutable)
        self.updated: Any = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._mutable:
            return self._module.apply(self._variables, *args, **kwargs)
        results, self.updated = self._module.apply(self._variables, *args, mutable=self._mutable, **kwargs)
        return results

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):  # JAX looks for `__wrapped__` and the like
            raise AttributeError(method)
        return partial(self, method=method)


_programs: dict[Any, Any] = {}

Transform = Callable[[Callable[..., Any]], Callable[..., Any]]


def forget_programs() -> None:
    """Drop every compiled program: after a fault was planted or removed, and before memory runs out."""
    _programs.clear()
    jax.clear_caches()


def forget_programs_of(case: Case) -> None:
    """Drop the compiled programs of one case."""
    for key in [key for key in _programs if key[1] == case.jax]:
        del _programs[key]


def without_jit(program: Callable[..., Any]) -> Callable[..., Any]:
    """In the place of `jax.jit`: run operation by operation, loops included.

    Python runs the code of a loop at each step. Where that takes too long, the traced operations run one by one.
    """

    def run(*arguments: Any) -> Any:
        if has_long_loops(jax.make_jaxpr(program)(*arguments).jaxpr):
            return op_by_op(program)(*arguments)
        with jax.disable_jit():
            return program(*arguments)

    return run


def run_jax(
    case: Case,
    variant: Variant,
    numbers: Numbers,
    dtype: str,
    directions: Mapping[str, np.ndarray],
    transform: Transform = jax.jit,
) -> Run:
    """Run the JAX side in `dtype`, under x64 if that is float64.

    Args:
        directions: those of the outputs to be differentiated, by name; without any the outputs alone are computed.
        transform: applied to the program (weights, differentiated inputs, (other inputs, buffers), directions) ->
            (outputs, gradients); a compiled program is kept, and variants that differ in numbers alone share it.
    """
    with enable_x64(dtype == "float64"):
        fixed, weights = jax.device_put((numbers.inputs, numbers.weights))  # `jnp.asarray` compiles for each shape
        buffers = (case.jax.prepare or jax.device_put)(numbers.buffers)
        moved = {name: fixed.pop(name) for name in numbers.differentiated}
        options = options_in(variant, jnp.dtype(dtype))
        names = (tuple(numbers.inputs), numbers.differentiated, tuple(weights))
        key = (case.name, case.jax, repr(sorted(options.items())), dtype, names, transform)
        if key not in _programs:
            _programs[key] = transform(_differentiate(case, options, numbers.rebuild))
        outputs, gradients = _programs[key](weights, moved, (fixed, buffers), dict(directions))
        named = outputs | {f"gradient of {name}": gradient for name, gradient in gradients.items()}
        return Run({name: None if x is None else np.asarray(x) for name, x in named.items()})


def as_function(case: Case, variant: Variant, numbers: Numbers, dtype: str) -> tuple[Callable[..., Any], Any]:
    """Return the JAX side as a function of arrays, and the weights and inputs that it gets."""
    options = options_in(variant, jnp.dtype(dtype))
    given = jax.device_put(({**numbers.buffers, **numbers.weights}, numbers.inputs))
    return lambda weights, inputs: case.jax.call(weights, numbers.rebuild(inputs), options), given


def narrow_inside(case: Case, variant: Variant, numbers: Numbers) -> str:
    """Return the narrowest floating dtype in which JAX computes a part of its run in float64; "" if there is none."""
    with enable_x64(True):
        function, given = as_function(case, variant, numbers, "float64")
        found = computed_dtypes(jax.make_jaxpr(function)(*given).jaxpr)
    return next((name for name in ("float16", "bfloat16", "float32") if jnp.dtype(name) in found), "")


def _differentiate(case: Case, options: Any, rebuild: Callable[..., Any]) -> Callable[..., Any]:
    """Make (weights, moved, fixed, directions) -> (outputs, gradients of the weights and of the moved inputs)."""

    def compute(weights, moved, constants):
        fixed, buffers = constants
        results = case.jax.call({**buffers, **weights}, rebuild({**moved, **fixed}), options)
        return flatten(plain(results), case.outputs)[0]

    def program(weights, moved, constants, directions):
        if not directions:
            return compute(weights, moved, constants), {}

        def differentiable(weights, moved):
            outputs = compute(weights, moved, constants)
            return {name: outputs[name] for name in directions if outputs.get(name) is not None}, outputs

        ends, pull_back, outputs = jax.vjp(differentiable, weights, moved, has_aux=True)
        fits = all(name in ends and ends[name].shape == x.shape for name, x in directions.items())
        if not fits:  # the comparison of outputs will report it
            return outputs, {}
        gradients = pull_back({name: x.astype(ends[name].dtype) for name, x in directions.items()})
        return outputs, {**gradients[0], **gradients[1]}

    return program
