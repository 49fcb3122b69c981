"""The known mistakes of moving a model, each tried out: made on one side on purpose, does it make the two agree?

A hypothesis changes numbers (a weight, an input), a setting of a PyTorch module or the precision of products, and runs
both sides again. The outputs are held to the same bounds as ever, so an explanation that fits is rarely a chance.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, permutations
from typing import Any

import jax
import numpy as np
import torch

from parity_tests.case import Case, TorchSide, Variant
from parity_tests.compare import compare_runs
from parity_tests.jax_side import forget_programs, run_jax
from parity_tests.numbers import Numbers, is_floating
from parity_tests.torch_side import run_torch

Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Hypothesis:
    """A mistake, and what would make the two sides agree if it was made."""

    mistake: str
    jax_weights: Arrays | None = None
    """What JAX is given instead, to undo the mistake there; None: the same."""
    jax_inputs: Arrays | None = None
    torch_weights: Arrays | None = None
    """What PyTorch is given instead, to make the mistake there as well."""
    torch_setting: Callable[[torch.nn.Module], object] | None = None
    """What is set in the PyTorch module."""
    context: Callable[[], AbstractContextManager[Any]] | None = None
    """In what the JAX side runs."""


def find_traps(case: Case, variant: Variant, numbers: Numbers, dtype: str, seconds: float = 60.0) -> tuple[str, ...]:
    """The mistakes that explain why a variant's outputs disagree, in words.

    A large model has many; after `seconds` the rest is not tried, and the last line says so.
    """
    start = time.monotonic()
    found: list[str] = []
    candidates = list(hypotheses(case, variant, numbers))
    for tried, hypothesis in enumerate(candidates):
        if time.monotonic() - start > seconds:
            return (*found, f"(stopped after {seconds:g} s: {tried} of {len(candidates)} known mistakes tried)")
        if _explains(hypothesis, case, variant, numbers, dtype):
            found.append(hypothesis.mistake)
    return tuple(found)


def hypotheses(case: Case, variant: Variant, numbers: Numbers) -> Iterator[Hypothesis]:
    """All that can be tried on these numbers."""
    weights = numbers.weights
    yield from _biases(weights)
    yield from _gates(weights)
    yield from _exchanges(weights)
    yield from _transposes(weights)
    yield from _scales(numbers)
    yield from _inputs(numbers.inputs)
    yield from _settings(case, variant)
    yield Hypothesis(
        "products in less than full precision: set jax_default_matmul_precision to highest",
        context=lambda: jax.default_matmul_precision("highest"),
    )


def _biases(weights: Arrays) -> Iterator[Hypothesis]:
    names = [name for name in weights if "bias" in name.rpartition(".")[2]]
    for name in names:
        yield Hypothesis(f"{name} is missing in JAX", torch_weights={**weights, name: 0 * weights[name]})
    for name in names:
        other = name.replace("bias_hh", "bias_ih")
        if other != name and other in weights:
            merged = {**weights, other: weights[other] + weights[name], name: 0 * weights[name]}
            yield Hypothesis(f"{name} is merged into {other}", torch_weights=merged)
    if len(names) > 1:
        none = {name: 0 * weights[name] for name in names}
        yield Hypothesis("all biases are missing in JAX", torch_weights={**weights, **none})


GATES = {3: ("r", "z", "n"), 4: ("i", "f", "g", "o")}
"""PyTorch's orders, of a GRU and of an LSTM."""


def _gates(weights: Arrays) -> Iterator[Hypothesis]:
    packed = [name for name in weights if "_ih" in name or "_hh" in name]
    for count, gates in GATES.items():
        if not packed or any(weights[name].shape[0] % count for name in packed):
            continue
        for order in permutations(range(count)):
            if order == tuple(range(count)):
                continue
            reordered = {name: np.concatenate([np.split(weights[name], count)[i] for i in order]) for name in packed}
            taken = ", ".join(gates[i] for i in np.argsort(order))
            mistake = f"gates in another order: JAX takes PyTorch's {', '.join(gates)} as {taken}"
            yield Hypothesis(mistake, jax_weights={**weights, **reordered})


def _exchanges(weights: Arrays) -> Iterator[Hypothesis]:
    for one, other in combinations(weights, 2):
        if weights[one].shape == weights[other].shape:
            exchanged = {**weights, one: weights[other], other: weights[one]}
            yield Hypothesis(f"{one} and {other} are exchanged", jax_weights=exchanged)


def _transposes(weights: Arrays) -> Iterator[Hypothesis]:
    for name, weight in weights.items():
        if weight.ndim == 2 and weight.shape[0] == weight.shape[1]:
            yield Hypothesis(f"{name} is not transposed, or twice", jax_weights={**weights, name: weight.T})


def _scales(numbers: Numbers) -> Iterator[Hypothesis]:
    """A factor that was forgotten or applied twice shows where a single tensor, multiplied, makes up for it."""
    inputs = {name: x for name, x in numbers.inputs.items() if x is not None and is_floating(x)}
    sizes = {size for x in (*inputs.values(), *numbers.weights.values()) for size in x.shape if size > 1}
    factors = {size**0.5: f"√{size}" for size in sorted(sizes)}
    for sign, words in ((1, "divided"), (-1, "multiplied")):
        for name, x in (*inputs.items(), *numbers.weights.items()):
            for factor, text in (factors | {float(size): str(size) for size in x.shape if size > 1}).items():
                scaled = {name: (x * factor**sign).astype(x.dtype)}
                yield Hypothesis(
                    f"{name}, or what it is multiplied with, is {words} by {text} in JAX",
                    jax_weights={**numbers.weights, **scaled} if name in numbers.weights else None,
                    jax_inputs={**numbers.inputs, **scaled} if name in inputs else None,
                )


def _inputs(inputs: Arrays) -> Iterator[Hypothesis]:
    for name, x in inputs.items():
        if x is None:
            continue
        if x.dtype == bool:
            yield Hypothesis(f"{name} is read the other way round", jax_inputs={**inputs, name: ~x})
        elif not is_floating(x):
            for offset in (-1, 1):
                moved = {**inputs, name: x - offset}
                yield Hypothesis(f"{name} is taken as {offset:+d} in JAX: off by one", jax_inputs=moved)
                if x.ndim > 1:
                    shifted = {**inputs, name: np.roll(x, -offset, axis=-1)}
                    yield Hypothesis(f"{name} is shifted by {offset:+d} along its last axis", jax_inputs=shifted)
        for axis in range(x.ndim if is_floating(x) else 0):
            if x.shape[axis] > 1:
                flipped = {**inputs, name: np.flip(x, axis)}
                yield Hypothesis(f"{name} is read in reverse along axis {axis}", jax_inputs=flipped)
    for one, other in combinations([name for name, x in inputs.items() if x is not None], 2):
        if inputs[one].shape == inputs[other].shape and inputs[one].dtype == inputs[other].dtype:
            exchanged = {**inputs, one: inputs[other], other: inputs[one]}
            yield Hypothesis(f"{one} and {other} are exchanged", jax_inputs=exchanged)


EPSILONS = (1e-3, 1e-5, 1e-6, 1e-8, 1e-12)
"""Defaults of PyTorch, Flax, Keras and the papers."""


def _settings(case: Case, variant: Variant) -> Iterator[Hypothesis]:
    if case.torch.build is None:
        return
    module = case.torch.build(variant.options, variant.inputs)
    if any(hasattr(part, "eps") for part in module.modules()):
        for epsilon in EPSILONS:
            yield Hypothesis(
                f"epsilon is {epsilon:g} in JAX", torch_setting=partial(_set_all, name="eps", value=epsilon)
            )
    if any(isinstance(part, torch.nn.GELU) for part in module.modules()):
        for approximate in ("none", "tanh"):
            mistake = f"GELU is that of approximate={approximate!r} in JAX"
            yield Hypothesis(mistake, torch_setting=partial(_set_all, name="approximate", value=approximate))
    if any(isinstance(part, torch.nn.modules.batchnorm._BatchNorm) for part in module.modules()):
        yield Hypothesis("JAX normalises by the batch, as in training", torch_setting=lambda module: module.train())


def _set_all(module: torch.nn.Module, name: str, value: Any) -> None:
    for part in module.modules():
        if hasattr(part, name):
            setattr(part, name, value)


def _explains(hypothesis: Hypothesis, case: Case, variant: Variant, numbers: Numbers, dtype: str) -> bool:
    """Whether all outputs agree once the hypothesis is followed; one that cannot be run explains nothing."""
    torch_numbers = replace(numbers, weights=dict(hypothesis.torch_weights or numbers.weights))
    jax_numbers = replace(
        numbers,
        weights=dict(hypothesis.jax_weights or numbers.weights),
        inputs=dict(hypothesis.jax_inputs or numbers.inputs),
    )
    if hypothesis.torch_setting is not None:
        case = replace(case, torch=_with_setting(case.torch, hypothesis.torch_setting))
    context = hypothesis.context or nullcontext
    try:
        with torch.no_grad():  # the outputs alone: a gradient of a changed weight is another gradient
            twin = run_torch(case, variant, torch_numbers, dtype, dtype)
            truth = twin if dtype == "float64" else run_torch(case, variant, torch_numbers, "float64", dtype)
        with context():
            if hypothesis.context is not None:
                forget_programs()
            ours = run_jax(case, variant, jax_numbers, dtype, twin)
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False
    finally:
        if hypothesis.context is not None:
            forget_programs()
    return not any(measurement.failed for measurement in compare_runs(case, variant, dtype, ours, twin, truth))


def _with_setting(side: TorchSide, setting: Callable[[torch.nn.Module], object]) -> TorchSide:
    def call(module: Any, inputs: Any, options: Any) -> Any:
        setting(module)
        return side.call(module, inputs, options)

    return replace(side, call=call)
