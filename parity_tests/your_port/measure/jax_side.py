"""Run one variant in JAX: its outputs and its gradients, as NumPy arrays by name."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from parity_tests.your_port.measure.arrays import as_numpy, flatten, plain
from parity_tests.your_port.measure.case import Case, JaxSide, Variant
from parity_tests.your_port.measure.numbers import Numbers, Run, options_in
from parity_tests.your_port.measure.op_by_op import Program, trace
from parity_tests.your_port.measure.width import enable_x64, look_for_tables


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
        value = vars(self._module).get(method, Ellipsis)
        return _Part(self, (method,)) if value is Ellipsis or isinstance(value, nn.Module) else value


class _Part:
    """A method or a submodule of an `Applied`, by its path."""

    def __init__(self, applied: Applied, path: tuple[str, ...]) -> None:
        self._applied, self._path = applied, path

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        def enter(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return reduce(getattr, self._path, module)(*args, **kwargs)

        return self._applied(*args, method=enter, **kwargs)

    def __getattr__(self, name: str) -> "_Part":
        if name.startswith("_"):
            raise AttributeError(name)
        return _Part(self._applied, (*self._path, name))


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
        transform: applied to what `differentiate` makes. A compiled program is kept, and variants that differ in
            numbers alone share it.
    """
    with enable_x64(dtype == "float64"):
        compute, moved, fixed = as_function(case, variant, numbers, dtype)
        names = (tuple(numbers.inputs), numbers.differentiated, tuple(numbers.weights))
        key = (case.name, case.jax, repr(sorted(options_in(variant, dtype).items())), dtype, names, transform)
        if key not in _programs:
            if not any(key[1] == case.jax for key in _programs):
                look_for_tables(compute, moved, fixed)
            _programs[key] = transform(differentiate(compute))
        outputs, gradients = _programs[key](moved, fixed, dict(directions))
        of_weights, of_inputs = gradients or (dict[str, Any](), dict[str, Any]())
        of_inputs = {numbers.called(name): x for name, x in of_inputs.items()}
        return Run(as_numpy(outputs), as_numpy({**of_weights, **of_inputs}))


def as_function(case: Case, variant: Variant, numbers: Numbers, dtype: str) -> tuple[Callable[..., Any], Any, Any]:
    """Return the JAX side as a function (moved, fixed) -> outputs by name, and both of its arguments.

    Moved are the weights and inputs that get a gradient, and fixed are the other ones.
    """
    options = options_in(variant, jnp.dtype(dtype))
    inputs, weights = jax.device_put((numbers.inputs, numbers.weights))  # `jnp.asarray` compiles for each shape
    differentiated = {name: inputs.pop(name) for name in numbers.differentiated}

    def compute(moved, fixed):
        (weights, differentiated), (buffers, others) = moved, fixed
        results = case.jax.run(weights, buffers, numbers.rebuild({**differentiated, **others}), options)
        return flatten(plain(results), case.outputs)[0]

    return compute, (weights, differentiated), (case.jax.prepare(numbers.buffers), inputs)


def differentiate(compute: Callable[[Any, Any], dict[str, Any]]) -> Callable[..., Any]:
    """Make (moved, fixed, directions) -> (outputs, gradients of what is moved; () without directions)."""

    def program(moved, fixed, directions):
        if not directions:
            return compute(moved, fixed), ()

        def differentiable(moved):
            outputs = compute(moved, fixed)
            return {name: outputs[name] for name in directions if outputs.get(name) is not None}, outputs

        ends, pull_back, outputs = jax.vjp(differentiable, moved, has_aux=True)
        fits = all(name in ends and ends[name].shape == x.shape for name, x in directions.items())
        if not fits:  # the comparison of outputs will report it
            return outputs, ()
        return outputs, *pull_back({name: x.astype(ends[name].dtype) for name, x in directions.items()})

    return program


def trace_jax(case: Case, variant: Variant, numbers: Numbers, dtype: str) -> tuple[Program, Any]:
    """Trace the JAX side; return its program, and the shapes of its outputs by name."""
    with enable_x64(dtype == "float64"):
        compute, *given = as_function(case, variant, numbers, dtype)
        return trace(compute, *given)
