"""One variant run in JAX, under jit: its outputs and its gradients, as NumPy arrays by name."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jax_attn.weights import from_torch
from parity_tests.case import Case, JaxSide, Variant
from parity_tests.numbers import Numbers, Run, is_floating, make_cotangents, options_in
from parity_tests.tree import flatten


def jax_function(call: Callable[[Any, Any], Any]) -> JaxSide:
    """The side of a function without weights: call(inputs, options) -> outputs."""
    return JaxSide(lambda _, inputs, options: call(inputs, options))


def linen_module(
    build: Callable[[Any, Any], nn.Module],
    call: Callable[[Any, Any], Any] | None = None,
    init: Callable[[Any, Any], Any] | None = None,
) -> JaxSide:
    """The side of a Flax Linen module whose parameters have PyTorch's names, as `jax_attn.weights.from_torch` says.

    Args:
        build: (options, dtype of the parameters) -> module.
        call: (module, inputs) -> outputs, the module's parameters in place; by default it is called with the inputs by
            keyword.
        init: (module, inputs) -> parameters, where `call` is not the way to initialise it.
    """

    def run(module: Any, inputs: Any) -> Any:
        return module(**inputs) if call is None else call(module, inputs)

    def apply(weights: Mapping[str, Any], inputs: Any, options: Any) -> Any:
        dtype = next((weight.dtype for weight in weights.values()), jnp.float32)
        module = build(options, dtype)

        def create() -> Any:
            return module.init(jax.random.key(0), inputs, method=run) if init is None else init(module, inputs)

        return run(Applied(module, from_torch(weights, jax.eval_shape(create))), inputs)

    return JaxSide(apply)


class Applied:
    """A Linen module with its parameters, whose methods are pure functions: they may be called inside any JAX loop."""

    def __init__(self, module: nn.Module, parameters: Any) -> None:
        self._module, self._parameters = module, parameters

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._module.apply(self._parameters, *args, **kwargs)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._module.apply, self._parameters, method=method)


_programs: dict[Any, Any] = {}


def forget_programs() -> None:
    """Drop every compiled program: after a fault was planted or removed, and before there are too many."""
    _programs.clear()
    jax.clear_caches()


def run_jax(case: Case, variant: Variant, numbers: Numbers, dtype: str, like: Run) -> Run:
    """The JAX side in `dtype`; `like` is PyTorch's run, whose outputs say what is differentiated."""
    with jax.enable_x64(dtype == "float64"):
        fixed, weights = jax.device_put((numbers.inputs, numbers.weights))  # `jnp.asarray` compiles for each shape
        moved = {name: fixed.pop(name) for name in numbers.differentiated}
        directions = make_cotangents(case, variant, dtype, _differentiable_outputs(like))
        outputs, gradients = _program(case, variant, numbers, dtype)(weights, moved, fixed, directions)
        named = outputs | {f"gradient of {name}": gradient for name, gradient in gradients.items()}
        return Run({name: None if x is None else np.asarray(x) for name, x in named.items()})


def _differentiable_outputs(like: Run) -> dict[str, tuple[int, ...]]:
    """The shapes of the floating outputs, if PyTorch could differentiate any."""
    if not any(name.startswith("gradient of ") for name in like.tensors):
        return {}
    return {
        name: x.shape
        for name, x in like.tensors.items()
        if x is not None and is_floating(x) and not name.startswith("gradient of ")
    }


def _program(case: Case, variant: Variant, numbers: Numbers, dtype: str) -> Any:
    """This variant's compiled program; variants that differ in numbers alone share it."""
    options = options_in(variant, jnp.dtype(dtype))
    key = (case.name, case.jax, repr(sorted(options.items())), dtype, tuple(numbers.inputs), tuple(numbers.weights))
    if key not in _programs:
        _programs[key] = jax.jit(_differentiate(lambda *arguments: case.jax.call(*arguments, options), case, numbers))
    return _programs[key]


def _differentiate(call: Callable[[Any, Any], Any], case: Case, numbers: Numbers) -> Callable[..., Any]:
    """(weights, moved, fixed, directions) -> (outputs, gradients of the weights and of the moved inputs)."""

    def program(weights, moved, fixed, directions):
        def outputs_of(weights, moved):
            return flatten(call(weights, numbers.rebuild({**moved, **fixed})), case.outputs)[0]

        if not directions:
            return outputs_of(weights, moved), {}

        def differentiable(weights, moved):
            outputs = outputs_of(weights, moved)
            return {name: outputs[name] for name in directions if outputs.get(name) is not None}, outputs

        ends, pull_back, outputs = jax.vjp(differentiable, weights, moved, has_aux=True)
        fits = all(name in ends and ends[name].shape == x.shape for name, x in directions.items())
        if not fits:  # the comparison of outputs will report it
            return outputs, {}
        gradients = pull_back({name: x.astype(ends[name].dtype) for name, x in directions.items()})
        return outputs, {**gradients[0], **gradients[1]}

    return program
