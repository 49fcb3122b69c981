"""How fast this machine is in PyTorch, for the ceilings of `parity_tests.speed.limits`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from parity_tests.speed import torch_device
from parity_tests.speed.workload import Program


def build(device: str, *, what: str, repeats: int, shape: tuple[int, ...]) -> Program:
    """`repeats` times the operation, into memory that is there already."""
    wait = torch_device.on(device)
    once = {"gemm": _gemm, "tanh": _tanh, "copy": _copy}[what](device, shape)

    def run() -> None:
        with torch.no_grad():
            for _ in range(repeats):
                once()
        wait()

    return Program(run, lambda: {"nothing": np.zeros(0)})


def _gemm(device: str, shape: tuple[int, ...]) -> Callable[[], Any]:
    n, k, m = shape
    a, b = torch.ones(n, k, device=device), torch.ones(k, m, device=device)
    out = torch.empty(n, m, device=device)
    return lambda: torch.mm(a, b, out=out)


def _tanh(device: str, shape: tuple[int, ...]) -> Callable[[], Any]:
    x, out = torch.linspace(-2, 2, shape[0], device=device), torch.empty(shape, device=device)
    return lambda: torch.tanh(x, out=out)


def _copy(device: str, shape: tuple[int, ...]) -> Callable[[], Any]:
    x, out = torch.zeros(shape, device=device), torch.zeros(shape, device=device)
    return lambda: out.copy_(x)
