"""One variant run in one framework: its outputs and its gradients, as NumPy arrays by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.overrides import TorchFunctionMode

import jax_attn
import torch_ref
from jax_attn.weights import from_torch, to_numpy, to_torch
from parity_tests.case import RUN_DTYPE, Case, Variant, make_cotangent, make_weights
from parity_tests.tree import flatten

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Run:
    """What one framework made of one variant. A gradient's name is `gradient of <input or parameter>`."""

    tensors: dict[str, np.ndarray | None]
    max_score: float = 0.0
    """The largest finite number that entered a softmax; PyTorch's side alone can tell."""


@dataclass(frozen=True)
class Numbers:
    """The arrays of a run, rounded to its dtype: the same for all sides, the float64 oracle included."""

    inputs: dict[str, Any]
    rebuild: Callable[[Mapping[str, Any]], Any]
    weights: dict[str, np.ndarray]
    differentiated: tuple[str, ...]


def make_numbers(case: Case, variant: Variant, dtype: str) -> Numbers:
    """Inputs and weights of a variant, as `dtype` can hold them."""
    flat, rebuild = flatten(dict(variant.inputs))
    inputs = {name: _rounded(array, dtype) for name, array in flat.items()}
    floating = [name for name, array in inputs.items() if array is not None and is_floating(array)]
    shapes = {}
    if case.module is not None:
        module = case.module.torch(variant.options, variant.inputs)
        shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    weights = {name: _rounded(array, dtype) for name, array in make_weights(case, variant, shapes).items()}
    differentiated = tuple(name for name in floating if name.split(".")[0] not in case.constants)
    return Numbers(inputs, rebuild, weights, differentiated)


def is_floating(array: np.ndarray) -> bool:
    """Whether an array is floating, bfloat16 included, which NumPy does not know as such."""
    return bool(jnp.issubdtype(array.dtype, jnp.floating))


def _rounded(array: np.ndarray | None, dtype: str) -> Any:
    return array.astype(jnp.dtype(dtype)) if array is not None and is_floating(array) else array


def _cotangents(case: Case, variant: Variant, dtype: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    return {name: _rounded(make_cotangent(case, variant, name, shape), dtype) for name, shape in shapes.items()}


# PyTorch


def run_torch(case: Case, variant: Variant, numbers: Numbers, dtype: str, inputs_dtype: str) -> Run:
    """torch_ref in `dtype`, on numbers that were rounded to `inputs_dtype`."""
    tensors = {name: _tensor(array, dtype) for name, array in numbers.inputs.items()}
    for name in numbers.differentiated:
        tensors[name].requires_grad_()
    parameters: dict[str, torch.Tensor] = {}
    inputs, options = numbers.rebuild(tensors), _options(variant, DTYPES[dtype])
    with HighestScore() as scores:
        if case.module is None:
            results = case.call(torch_ref, inputs, options)
        else:
            module = case.module.torch(options, variant.inputs).to(DTYPES[dtype]).eval()
            module.load_state_dict({name: _tensor(array, dtype) for name, array in numbers.weights.items()})
            parameters = dict(module.named_parameters())
            results = case.call(module, inputs)
    outputs, _ = flatten(results, case.outputs)
    sources = {name: tensors[name] for name in numbers.differentiated} | parameters
    gradients = _torch_gradients(case, variant, outputs, sources, inputs_dtype)
    named = outputs | {f"gradient of {name}": gradient for name, gradient in gradients.items()}
    return Run({name: None if x is None else to_numpy(x) for name, x in named.items()}, scores.highest)


def _torch_gradients(
    case: Case, variant: Variant, outputs: Mapping[str, Any], sources: Mapping[str, torch.Tensor], inputs_dtype: str
) -> dict[str, torch.Tensor]:
    ends = {name: x for name, x in outputs.items() if x is not None and x.requires_grad}
    if not ends or not sources:
        return {}
    directions = _cotangents(case, variant, inputs_dtype, {name: tuple(x.shape) for name, x in ends.items()})
    gradients = torch.autograd.grad(
        list(ends.values()),
        list(sources.values()),
        [_tensor(directions[name], None).to(x.dtype) for name, x in ends.items()],
        materialize_grads=True,
    )
    return dict(zip(sources, gradients, strict=True))


def _tensor(array: np.ndarray | None, dtype: str | None) -> Any:
    """A new tensor: in `dtype` if the array is floating, which holds every number of the narrower dtypes."""
    if array is None:
        return None
    if is_floating(array):
        tensor = torch.tensor(array.astype(np.float64))
        return tensor if dtype is None else tensor.to(DTYPES[dtype])
    return torch.tensor(array)


class HighestScore(TorchFunctionMode):
    """While it is entered, remembers the largest finite |number| given to a softmax."""

    highest = 0.0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.softmax, torch.log_softmax):
            scores = args[0].detach().abs()
            scores = scores[scores.isfinite()]
            self.highest = max(self.highest, scores.max().item() if scores.numel() else 0.0)
        return function(*args, **(kwargs or {}))


# JAX

_programs: dict[Any, Any] = {}


def forget_programs() -> None:
    """Drop every compiled program: after a fault was planted or removed, and before there are too many."""
    _programs.clear()
    jax.clear_caches()


def run_jax(case: Case, variant: Variant, numbers: Numbers, dtype: str, like: Run) -> Run:
    """jax_attn in `dtype`, under jit; `like` is PyTorch's run, whose outputs say what is differentiated."""
    with jax.enable_x64(dtype == "float64"):
        arrays = {name: None if x is None else jnp.asarray(x) for name, x in numbers.inputs.items()}
        moved = {name: arrays.pop(name) for name in numbers.differentiated}
        parameters, program = _program(case, variant, numbers, dtype)
        has_gradient = any(name.startswith("gradient of ") for name in like.tensors)
        shapes = {}
        if has_gradient:
            shapes = {
                name: x.shape
                for name, x in like.tensors.items()
                if x is not None and is_floating(x) and not name.startswith("gradient of ")
            }
        directions = _cotangents(case, variant, dtype, shapes)
        outputs, gradients, parameter_gradients = program(parameters, moved, arrays, directions)
        gradients = gradients | (to_torch(parameter_gradients) if parameter_gradients else {})
        named = outputs | {f"gradient of {name}": gradient for name, gradient in gradients.items()}
        return Run({name: None if x is None else np.asarray(x) for name, x in named.items()})


def _program(case: Case, variant: Variant, numbers: Numbers, dtype: str) -> tuple[Any, Any]:
    """This variant's parameters and its compiled program; variants that differ in numbers alone share the program."""
    options = _options(variant, jnp.dtype(dtype))
    shapes = tuple((name, weight.shape) for name, weight in numbers.weights.items())
    key = (case.name, repr(sorted(options.items())), dtype, tuple(numbers.inputs), shapes)
    if key not in _programs:
        _programs[key] = _build(case, options, numbers, dtype)
    template, program = _programs[key]
    return from_torch(numbers.weights, template), program


def _build(case: Case, options: Mapping[str, Any], numbers: Numbers, dtype: str) -> tuple[Any, Any]:
    """The shapes of the parameters, and (parameters, moved, fixed, directions) -> (outputs, gradients of both)."""
    module = None if case.module is None else case.module.jax(options, jnp.dtype(dtype))
    template: Any = {}

    def call(parameters: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        inputs = numbers.rebuild(inputs)
        if module is None:
            results = case.call(jax_attn, inputs, options)
        elif case.jax_call is not None:
            results = case.jax_call(module, parameters, inputs)
        else:
            results = module.apply(parameters, inputs, method=case.call)
        return flatten(results, case.outputs)[0]

    if module is not None:
        inputs = numbers.rebuild({name: None if x is None else jnp.asarray(x) for name, x in numbers.inputs.items()})
        template = jax.eval_shape(
            lambda: (
                module.init(jax.random.key(0), inputs, method=case.call)
                if case.jax_call is None
                else case.jax_call(module, None, inputs)
            )
        )

    @jax.jit
    def program(parameters, moved, fixed, directions):
        if not directions:
            return call(parameters, {**moved, **fixed}), {}, {}

        def differentiable(parameters, moved):
            outputs = call(parameters, {**moved, **fixed})
            return {name: outputs[name] for name in directions if outputs.get(name) is not None}, outputs

        ends, pull_back, outputs = jax.vjp(differentiable, parameters, moved, has_aux=True)
        fits = all(name in ends and ends[name].shape == x.shape for name, x in directions.items())
        if not fits:  # the comparison of outputs will report it
            return outputs, {}, {}
        parameter_gradients, gradients = pull_back({name: x.astype(ends[name].dtype) for name, x in directions.items()})
        return outputs, gradients, parameter_gradients

    return template, program


def _options(variant: Variant, dtype: Any) -> dict[str, Any]:
    return {name: dtype if value == RUN_DTYPE else value for name, value in variant.options.items()}
