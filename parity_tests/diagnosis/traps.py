"""Try out the known mistakes of moving a model: does a mistake, made on one side on purpose, make the two agree?

A hypothesis changes numbers (a weight, an input), a setting of a PyTorch module or the precision of products, and both
sides run again. The outputs must meet the same bounds as ever, so a mistake that fits is rarely a coincidence.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, permutations
from typing import Any

import jax
import numpy as np
import torch

from parity_tests.case import Case, Variant
from parity_tests.comparison import compare_runs, run_both
from parity_tests.numbers import Numbers, is_floating

Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Hypothesis:
    """A mistake, and the change that would make the two sides agree if it was made."""

    mistake: str
    jax_numbers: Arrays = field(default_factory=dict)
    """Weights and inputs given to JAX in the place of those of the same names, to undo the mistake there."""
    torch_weights: Arrays = field(default_factory=dict)
    """Weights given to PyTorch, to make the mistake there as well."""
    torch_setting: Callable[[torch.nn.Module], object] | None = None
    """Changes the PyTorch module."""
    precise: bool = False
    """Whether JAX computes products in full precision."""


def find_traps(case: Case, variant: Variant, numbers: Numbers, dtype: str, seconds: float = 60.0) -> tuple[str, ...]:
    """Find the mistakes that explain why a variant's outputs disagree, in words.

    A large model has many candidates; after `seconds` the rest is skipped, and the last line says so.
    """
    start, found = time.monotonic(), list[str]()
    candidates = list(hypotheses(case, variant, numbers))
    for tried, hypothesis in enumerate(candidates):
        if time.monotonic() - start > seconds:
            return (*found, f"(stopped after {seconds:g} s: {tried} of {len(candidates)} known mistakes tried)")
        if _explains(hypothesis, case, variant, numbers, dtype):
            found.append(hypothesis.mistake)
    return tuple(found)


def hypotheses(case: Case, variant: Variant, numbers: Numbers) -> Iterator[Hypothesis]:
    """Yield every mistake that can be tried on these numbers."""
    weights = numbers.weights
    yield from _biases(weights)
    yield from _gates(weights)
    yield from _exchanges(weights)
    for name, weight in weights.items():
        if weight.ndim == 2 and weight.shape[0] == weight.shape[1]:
            yield Hypothesis(f"{name} is not transposed, or twice", {name: weight.T})
    yield from _scales(numbers)
    yield from _inputs(numbers.inputs)
    yield from _settings(case, variant)
    words = "products in less than full precision: set jax_default_matmul_precision to highest"
    yield Hypothesis(words, precise=True)


def _biases(weights: Arrays) -> Iterator[Hypothesis]:
    names = [name for name in weights if "bias" in name.rpartition(".")[2]]
    none = {name: 0 * weights[name] for name in names}
    for name in names:
        yield Hypothesis(f"{name} is missing in JAX", torch_weights={name: none[name]})
    for name in names:
        other = name.replace("bias_hh", "bias_ih")
        if other != name and other in weights:
            merged = {other: weights[other] + weights[name], name: none[name]}
            yield Hypothesis(f"{name} is merged into {other}", torch_weights=merged)
    if len(names) > 1:
        yield Hypothesis("all biases are missing in JAX", torch_weights=none)


GATES = {3: ("r", "z", "n"), 4: ("i", "f", "g", "o")}
"""PyTorch's orders, of a GRU and of an LSTM."""


def _gates(weights: Arrays) -> Iterator[Hypothesis]:
    packed = [name for name in weights if "_ih" in name or "_hh" in name]
    for count, gates in GATES.items():
        if not packed or any(weights[name].shape[0] % count for name in packed):
            continue
        for order in permutations(range(count)):
            if order != tuple(range(count)):
                reordered = {n: np.concatenate([np.split(weights[n], count)[i] for i in order]) for n in packed}
                taken = ", ".join(gates[i] for i in np.argsort(order))
                mistake = f"gates in another order: JAX takes PyTorch's {', '.join(gates)} as {taken}"
                yield Hypothesis(mistake, reordered)


def _exchanges(arrays: Arrays) -> Iterator[Hypothesis]:
    for (one, x), (other, y) in combinations(arrays.items(), 2):
        if x is not None and y is not None and x.shape == y.shape and x.dtype == y.dtype:
            yield Hypothesis(f"{one} and {other} are exchanged", {one: y, other: x})


def _scales(numbers: Numbers) -> Iterator[Hypothesis]:
    """Multiply a single tensor: that makes up for a factor that was forgotten or applied twice."""
    inputs = {name: x for name, x in numbers.inputs.items() if x is not None and is_floating(x)}
    tensors = (*inputs.items(), *numbers.weights.items())
    sizes = {size for _, x in tensors for size in x.shape if size > 1}
    for sign, words in ((1, "divided"), (-1, "multiplied")):
        for name, x in tensors:
            factors = {f"√{size}": size**0.5 for size in sorted(sizes)} | {str(n): n for n in x.shape if n > 1}
            for text, factor in factors.items():
                scaled = (x * float(factor) ** sign).astype(x.dtype)
                yield Hypothesis(f"{name}, or what it is multiplied with, is {words} by {text} in JAX", {name: scaled})


def _inputs(inputs: Arrays) -> Iterator[Hypothesis]:
    for name, x in inputs.items():
        if x is None:
            continue
        if x.dtype == bool:
            yield Hypothesis(f"{name} is read the other way round", {name: ~x})
        elif is_floating(x):
            for axis in (axis for axis in range(x.ndim) if x.shape[axis] > 1):
                yield Hypothesis(f"{name} is read in reverse along axis {axis}", {name: np.flip(x, axis)})
        else:
            for offset in (-1, 1):
                yield Hypothesis(f"{name} is taken as {offset:+d} in JAX: off by one", {name: x - offset})
                if x.ndim > 1:
                    words = f"{name} is shifted by {offset:+d} along its last axis"
                    yield Hypothesis(words, {name: np.roll(x, -offset, axis=-1)})
    yield from _exchanges(inputs)


EPSILONS = (1e-3, 1e-5, 1e-6, 1e-8, 1e-12)
"""Defaults of PyTorch, Flax, Keras and the papers."""


def _settings(case: Case, variant: Variant) -> Iterator[Hypothesis]:
    if case.torch.build is None:
        return
    parts = list(case.torch.build(variant.options, variant.inputs).modules())
    values = {"eps": EPSILONS, "approximate": ("none", "tanh")}
    words = {"eps": "epsilon is {:g} in JAX", "approximate": "GELU is that of approximate={!r} in JAX"}
    for name in (name for name in values if any(hasattr(part, name) for part in parts)):
        for value in values[name]:
            yield Hypothesis(words[name].format(value), torch_setting=partial(_set_all, name, value))
    if any(isinstance(part, torch.nn.modules.batchnorm._BatchNorm) for part in parts):
        yield Hypothesis("JAX normalises by the batch, as in training", torch_setting=lambda module: module.train())


def _set_all(name: str, value: Any, module: torch.nn.Module) -> None:
    for part in module.modules():
        if hasattr(part, name):
            setattr(part, name, value)


def _explains(hypothesis: Hypothesis, case: Case, variant: Variant, numbers: Numbers, dtype: str) -> bool:
    """Whether all outputs agree under the hypothesis; one that cannot run explains nothing."""
    torch_numbers = replace(numbers, weights={**numbers.weights, **hypothesis.torch_weights})
    weights, inputs = (
        {name: hypothesis.jax_numbers.get(name, x) for name, x in arrays.items()}
        for arrays in (numbers.weights, numbers.inputs)
    )
    jax_numbers = replace(numbers, weights=weights, inputs=inputs)
    setting, side = hypothesis.torch_setting, case.torch
    if setting is not None:

        def call(module: Any, *rest: Any) -> Any:
            setting(module)
            return side.call(module, *rest)

        case = replace(case, torch=replace(side, call=call))
    precision = jax.default_matmul_precision("highest") if hypothesis.precise else nullcontext()
    try:
        with torch.no_grad(), precision:  # the outputs alone: a changed weight has another gradient
            runs = run_both(case, variant, torch_numbers, dtype, jax_numbers=jax_numbers)
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False
    return not any(measurement.failed for measurement in compare_runs(case, variant, dtype, runs))
