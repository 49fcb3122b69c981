"""Functions of attention in PyTorch: torch_ref's as parity proves them, and the best that plain PyTorch has."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from parity_tests.cases import find_case
from parity_tests.speed import torch_device, tuned_attention
from parity_tests.speed.inputs import DIFFERENTIATED, INPUTS, cotangent
from parity_tests.speed.workload import Program


def build(
    device: str,
    *,
    function: str,
    inputs: str,
    backward: bool = False,
    compiled: bool = False,
    sizes: Mapping[str, int] | None = None,
) -> Program:
    """`case NAME`, the PyTorch side of a case of the registry, or a function of `tuned_attention`."""
    wait = torch_device.on(device)
    arrays = INPUTS[inputs](**(sizes or {}))
    tensors: dict[str, Any] = {
        name: None if x is None else torch.tensor(x, device=device) for name, x in arrays.items()
    }
    call = _call(function)
    if compiled:
        call = torch.compile(call, dynamic=False)
    moved = [tensors[name].requires_grad_(backward) for name in DIFFERENTIATED[inputs]]

    @cache
    def along(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.tensor(cotangent(inputs, shape), device=device)

    def compute() -> dict[str, torch.Tensor]:
        with torch.set_grad_enabled(backward):
            results = {"output": call(tensors)}
        if backward:
            gradients = torch.autograd.grad(results["output"], moved, along(results["output"].shape))
            results |= dict(zip(DIFFERENTIATED[inputs], gradients, strict=True))
        wait()
        return results

    return Program(compute, lambda: {name: x.detach().cpu().numpy() for name, x in compute().items()})


def _call(function: str) -> Callable[[Any], Any]:
    if not function.startswith("case "):
        tuned = getattr(tuned_attention, function)
        return lambda inputs: tuned(**inputs)
    case = find_case(function.removeprefix("case "))
    options = {"causal": False, "scaled": True} if case.name.startswith("DotProduct") else {}
    return lambda inputs: case.torch.call(None, inputs, options)
