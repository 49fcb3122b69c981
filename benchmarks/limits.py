"""How much of the possible speed a workload reaches: the speeds of JAX and of PyTorch at what it needs at least.

A workload needs products of matrices, tanh, exp, and bytes read and written. The time of each is measured in the same
run, in both frameworks, at the shapes that occur in the workload, and the faster one counts; a product is measured
with its right matrix in either layout. The limit is the sum.
Nothing else is counted, so 100 % is out of reach for a whole model. Code that avoids tanh by arithmetic can exceed it.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from benchmarks.measure import Report, Worker, prepare, run, take_turns
from benchmarks.records import Needs, Operation, Program, Speeds


def least_seconds(needs: Needs, speeds: Speeds) -> float | None:
    """Return the limit: each operation by the faster framework. None without needs, or if a speed is missing."""
    if not needs or not needs.keys() <= speeds.keys():
        return None
    return sum(times * min(speeds[operation].values()) for operation, times in needs.items())


def rates(needs: Needs, speeds: Speeds, name: str) -> dict[str, float]:
    """Return how many operations, values or bytes a second each framework reaches in the operations of this name."""
    parts = [(operation, times) for operation, times in needs.items() if operation.name == name and operation in speeds]
    total = sum(times * operation.amount for operation, times in parts)
    frameworks = speeds[parts[0][0]] if parts else ()
    return {each: total / sum(times * speeds[operation][each] for operation, times in parts) for each in frameworks}


def measure_speeds(operations: Iterable[Operation], report: Report) -> Speeds:
    """Measure the seconds of operations in JAX and in PyTorch: of a product, in the faster of two layouts."""
    speeds: dict[Operation, dict[str, float]] = {}
    builds = {"JAX": jax_program, "PyTorch": torch_program}
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(f"speed of {name}")) for name in builds}
        runs = {name: partial(worker.ask, run) for name, worker in workers.items()}
        for operation in operations:
            report(f"speed of {operation}")
            speeds[operation] = dict.fromkeys(builds, float("inf"))
            for is_transposed in (False, True) if operation.name == "product" else (False,):
                for name, worker in workers.items():
                    worker.ask(prepare, builds[name], operation, is_transposed)
                for name, seconds in take_turns(runs, rounds=3, turn_seconds=0.1).items():
                    taken = float(np.median(seconds)) / repeats(operation)
                    speeds[operation][name] = min(speeds[operation][name], taken)
    return speeds


def repeats(operation: Operation) -> int:
    """Return how often one program repeats an operation, so that starting the program costs little."""
    return math.ceil({"product": 1e9, "copy": 2**28}.get(operation.name, 2**23) / operation.amount)


def jax_program(operation: Operation, is_transposed: bool = False) -> Program:
    """Repeat an operation in one program; of a product, the form (Wᵀ xᵀ)ᵀ if `is_transposed`."""
    shape, steps = operation.shape, jnp.arange(repeats(operation)) * 1e-3

    def repeat(once: Callable[..., Any], first: Any, given: Any = None) -> Program:
        compiled = jax.jit(lambda first, given: jax.lax.scan(lambda x, i: (once(x, i, given), None), first, steps)[0])
        return Program(lambda: compiled(first, given), dict)

    def product(carry: tuple[Any, Any], _: Any, other: Any) -> tuple[Any, Any]:
        rows = carry[0].at[0, 0].add(carry[1][0, 0] * 1e-9)  # each product needs the one before
        return rows, other @ rows.T if is_transposed else rows @ other

    if operation.name == "product":
        order = slice(None, None, -1 if is_transposed else 1)
        first = jnp.full(shape[:2], 1 / shape[1]), jnp.zeros(shape[::2][order])
        return repeat(product, first, jnp.ones(shape[1:][order]))
    if operation.name == "copy":
        return repeat(lambda x, *_: x + 1, jnp.zeros(shape))
    function = getattr(jnp, operation.name)
    return repeat(lambda total, i, x: total + function(x + i).sum(), jnp.zeros(()), jnp.linspace(-2, 2, shape[0]))


def torch_program(operation: Operation, is_transposed: bool = False) -> Program:
    """Repeat an operation, with its result in memory that exists already; of a product, with W as Wᵀ in memory, which
    is how PyTorch keeps its weights, if `is_transposed`."""
    shape = operation.shape
    if operation.name == "product":
        other = torch.ones(shape[:0:-1]).T if is_transposed else torch.ones(shape[1:])
        once = partial(torch.mm, torch.ones(shape[:2]), other, out=torch.ones(shape[::2]))
    elif operation.name == "copy":
        once = partial(torch.ones(shape).copy_, torch.ones(shape))
    else:
        once = partial(getattr(torch, operation.name), torch.linspace(-2, 2, *shape), out=torch.ones(shape))

    def repeat() -> None:
        for _ in range(repeats(operation)):
            once()

    return Program(repeat, dict)
