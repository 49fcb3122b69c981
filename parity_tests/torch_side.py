"""One variant run in PyTorch: its outputs and its gradients, as NumPy arrays by name."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from jax_attn.weights import to_numpy
from parity_tests.case import Case, TorchSide, Variant
from parity_tests.diagnosis.taps import hooked
from parity_tests.numbers import Numbers, Run, is_floating, make_cotangents, options_in
from parity_tests.tree import flatten

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


def torch_function(call: Callable[[Any, Any], Any]) -> TorchSide:
    """The side of a function: call(inputs, options) -> outputs."""
    return TorchSide(lambda _, inputs, options: call(inputs, options))


def torch_module(
    build: Callable[[Any, Any], torch.nn.Module], call: Callable[[Any, Any], Any] | None = None
) -> TorchSide:
    """The side of a module: build(options, inputs) makes one, call(module, inputs) runs it, by default by keyword."""

    def run(module: Any, inputs: Any, _: Any) -> Any:
        return module(**inputs) if call is None else call(module, inputs)

    return TorchSide(run, build)


def run_torch(case: Case, variant: Variant, numbers: Numbers, dtype: str, inputs_dtype: str) -> Run:
    """The PyTorch side in `dtype`, on numbers that were rounded to `inputs_dtype`."""
    tensors = {name: _tensor(array, dtype) for name, array in numbers.inputs.items()}
    for name in numbers.differentiated:
        tensors[name].requires_grad_()
    parameters: dict[str, torch.Tensor] = {}
    inputs, options = numbers.rebuild(tensors), options_in(variant, DTYPES[dtype])
    with HighestScore() as scores:
        module = None
        if case.torch.build is not None:
            module = case.torch.build(options, variant.inputs).to(DTYPES[dtype]).eval()
            weights = {name: _tensor(array, dtype) for name, array in numbers.weights.items()}
            module.load_state_dict(module.state_dict() | weights)
            parameters = dict(module.named_parameters())
        with hooked(module):
            results = case.torch.call(module, inputs, options)
    outputs, _ = flatten(results, case.outputs)
    sources = {name: tensors[name] for name in numbers.differentiated} | parameters
    gradients = _gradients(case, variant, outputs, sources, inputs_dtype)
    named = outputs | {f"gradient of {name}": gradient for name, gradient in gradients.items()}
    return Run({name: None if x is None else to_numpy(x) for name, x in named.items()}, scores.highest)


def _gradients(
    case: Case, variant: Variant, outputs: Mapping[str, Any], sources: Mapping[str, torch.Tensor], inputs_dtype: str
) -> dict[str, torch.Tensor]:
    ends = {name: x for name, x in outputs.items() if x is not None and x.requires_grad}
    if not ends or not sources:
        return {}
    directions = make_cotangents(case, variant, inputs_dtype, {name: tuple(x.shape) for name, x in ends.items()})
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
