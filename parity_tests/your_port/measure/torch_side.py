"""Run one variant in PyTorch: its outputs and its gradients, as NumPy arrays by name."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from parity_tests.your_port.measure.arrays import as_numpy, flatten, is_floating, plain
from parity_tests.your_port.measure.attention_steps import scores_of_heads, scores_of_products
from parity_tests.your_port.measure.case import Case, TorchSide, Variant
from parity_tests.your_port.measure.numbers import Numbers, Run, options_in
from parity_tests.your_port.measure.taps import holds_numbers, hooked

TORCH_DTYPES = {name: getattr(torch, name) for name in ("float64", "float32", "bfloat16", "float16")}


def torch_function(call: Callable[[Any, Any], Any]) -> TorchSide:
    """Make the side of a function: call(inputs, options) -> outputs."""
    return TorchSide(lambda _, inputs, options: call(inputs, options))


def torch_module(
    build: Callable[[Any, Any], torch.nn.Module], call: Callable[[Any, Any], Any] | None = None
) -> TorchSide:
    """Make the side of a module: build(options, inputs) -> module; call(module, inputs), by default by keyword."""

    def run(module: Any, inputs: Any, _: Any) -> Any:
        return module(**inputs) if call is None else call(module, inputs)

    return TorchSide(run, build)


def run_torch(case: Case, variant: Variant, numbers: Numbers, dtype: str | None) -> Run:
    """Run the PyTorch side in `dtype`; None keeps each array's own dtype."""
    weights = {name: to_tensor(array, dtype) for name, array in numbers.weights.items()}
    module = None
    if case.torch.build is not None:
        module = case.torch.build(options_in(variant, TORCH_DTYPES.get(dtype or "")), variant.inputs).eval()
        values = weights | {name: to_tensor(array, dtype) for name, array in numbers.buffers.items()}
        in_dtype(module, next((value.dtype for value in values.values()), TORCH_DTYPES[dtype or "float32"]))
        held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for name, value in values.items():
            held[name].data = value  # not `copy_`: a buffer made by `expand` cannot be written
    return run_module(case, variant, module, numbers, dtype)


def in_dtype(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """Convert a module, also its complex buffers, and tensors that it just holds."""
    for part in module.modules():
        held = {name: x for name, x in vars(part).items() if isinstance(x, torch.Tensor)}
        vars(part).update({name: _converted(x, dtype) for name, x in held.items()})
    return state_in_dtype(module, dtype)


def state_in_dtype(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """Convert a module as `to` does, which however drops the imaginary part of complex buffers."""
    return module._apply(lambda x: _converted(x, dtype))  # modules override it that hold more than PyTorch knows of


def _converted(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype.to_complex() if x.is_complex() else dtype) if x.is_complex() or x.is_floating_point() else x


def run_module(
    case: Case, variant: Variant, module: torch.nn.Module | None, numbers: Numbers, dtype: str | None
) -> Run:
    """Run a module that has its weights and its dtype; of its parameters those that require a gradient get one."""
    tensors = {name: to_tensor(array, dtype) for name, array in numbers.inputs.items()}
    for name in numbers.differentiated:
        tensors[name].requires_grad_()
    inputs, options = numbers.rebuild(tensors), options_in(variant, TORCH_DTYPES.get(dtype or ""))
    parameters = {name: x for name, x in module.named_parameters() if x.requires_grad} if module is not None else {}
    with Observer() as observer, hooked(module), default_dtype(dtype or "float32"):
        results = case.torch.call(module, inputs, options)
    outputs, _ = flatten(plain(results), case.outputs)
    outputs = dict(sorted(outputs.items(), key=lambda item: observer.order.get(id(item[1]), 0)))
    sources = {numbers.called(name): tensors[name] for name in numbers.differentiated} | parameters
    with default_dtype(dtype or "float32"):  # what is computed anew in the backward pass makes tensors, too
        gradients = _gradients(numbers, outputs, sources, is_module=module is not None)
    narrow = dtype == "float64" and observer.saw_float32
    return Run(as_numpy(outputs), as_numpy(gradients), observer.max_score, is_narrow_inside=narrow)


@contextmanager
def default_dtype(dtype: str) -> Iterator[None]:
    """Let PyTorch make its floating tensors in `dtype`, as a mask is of the smallest number of the default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(TORCH_DTYPES[dtype])
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _gradients(
    numbers: Numbers, outputs: Mapping[str, Any], sources: Mapping[str, torch.Tensor], is_module: bool
) -> dict[str, torch.Tensor]:
    ends = {name: x for name, x in outputs.items() if x is not None and x.requires_grad}
    if not ends or not sources:
        return {}
    directions = [to_tensor(numbers.direction(name, tuple(x.shape)), None).to(x.dtype) for name, x in ends.items()]
    if is_module:  # reentrant checkpoints refuse `autograd.grad`; the module is a copy, so that its `grad` is free
        torch.autograd.backward(list(ends.values()), directions)
        found = [torch.zeros_like(x) if x.grad is None else x.grad for x in sources.values()]
        for x in sources.values():
            x.grad = None
    else:
        found = torch.autograd.grad(list(ends.values()), list(sources.values()), directions, materialize_grads=True)
    return {name: x.to_dense() for name, x in zip(sources, found, strict=True)}  # of a sparse embedding


def to_tensor(array: np.ndarray | None, dtype: str | None) -> Any:
    """Make a new tensor, in `dtype` (by default the array's own) if the array is floating."""
    if array is None:
        return None
    if is_floating(array):  # by float64, which holds every number of the narrower dtypes and which NumPy knows
        return torch.tensor(array.astype(np.float64)).to(TORCH_DTYPES[dtype or str(array.dtype)])
    return torch.tensor(array)


OF_A_MASK = 1e5
"""A number as large as this is no score, but what a mask fills in or adds, such as −1e9 or finfo.min."""


class Observer(TorchFunctionMode):
    """Remember, while entered, the largest |score| given to a softmax, the order of all results, and any float32."""

    def __init__(self) -> None:
        super().__init__()
        self.max_score = 0.0
        self.saw_float32 = False
        self.order: dict[int, int] = {}
        """The id of a tensor -> when it was computed; of those with the same id the last is alive."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        scores_of = SCORES.get(getattr(function, "__name__", ""))
        if scores_of is not None and holds_numbers(next(iter((*args, *kwargs.values())))):
            with torch.no_grad():
                scores = scores_of(*args, **kwargs).abs()
            scores = scores[scores < OF_A_MASK]
            self.max_score = max(self.max_score, scores.max().item() if scores.numel() else 0.0)
        result = function(*args, **kwargs)
        for tensor in result if isinstance(result, tuple) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.order[id(tensor)] = len(self.order)
                is_narrow = tensor.dtype in (torch.float32, torch.complex64)
                # hardsigmoid's gradient has 1/6 in float32
                self.saw_float32 |= is_narrow or getattr(function, "__name__", "") == "hardsigmoid"
        return result


def _given(input: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return input


SCORES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("softmax", "log_softmax", "softmin", "logsumexp", "cross_entropy"), _given),
    **dict.fromkeys(("special_softmax", "special_log_softmax", "special_logsumexp"), _given),
    "scaled_dot_product_attention": scores_of_products,
    "multi_head_attention_forward": scores_of_heads,
}
"""A function with a softmax inside, as a TorchFunctionMode sees it -> the scores that it computes or is given."""
