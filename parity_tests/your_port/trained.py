"""Say what a training would do otherwise in the two, though outputs and gradients may agree."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from math import prod
from typing import Any

import flax.linen as nn

from parity_tests.your_port.weights.adapters import Port
from parity_tests.your_port.weights.original import Original, Weight
from parity_tests.your_port.weights.weight_map import Leaf, WeightMap

RATES = ("p", "rate", "dropout", "dropout_rate")
"""The fields in which modules of the libraries keep the rate of their dropout."""


def trained_otherwise(original: Original, port: Port, found: WeightMap) -> Iterator[str]:
    """Say which weights an optimiser moves in one of the two alone, or apart, though values and gradients may agree."""
    is_buffer = {weight.name: weight.is_buffer for weight in original.weights}
    paths: dict[str, list[str]] = {}
    for path, entry in found.entries.items():
        for name in dict.fromkeys(entry.source.names):
            paths.setdefault(name, []).append(path)
            if port.knows_buffers and is_buffer[name] != port.leaves[path].is_buffer:
                kinds = ("buffer", "parameter") if is_buffer[name] else ("parameter", "buffer")
                yield f"{name} is a {kinds[0]} in PyTorch, and {path} is a {kinds[1]} in JAX"
    for name, uses in found.uses.items():
        if not is_buffer[name] and uses.min(initial=2) > 1 and len(paths.get(name, ())) > 1:
            yield f"{name} is one weight in PyTorch, and JAX trains {' and '.join(sorted(paths[name]))} apart"


def calls_of_linen(modules: list[Any]) -> AbstractContextManager[None]:
    """Remember the modules of Linen that are called meanwhile."""

    def note(next_function: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        modules.append(context.module)
        return next_function(*args, **kwargs)

    return nn.intercept_methods(note)


def dropout_differs(torch_module: Any, in_jax: list[Any]) -> Iterator[str]:
    """Say which rates dropout has, where the modules of both sides have it and the rates are others."""
    in_torch = torch_module.modules() if hasattr(torch_module, "modules") else []
    found = [
        {
            float(rate)
            for module in modules
            if re.search("Dropout|Attention|RNN|LSTM|GRU", type(module).__name__)
            for rate in (getattr(module, field, None) for field in RATES)
            if isinstance(rate, int | float) and not isinstance(rate, bool)
        }
        for modules in (in_torch, in_jax)
    ]
    a, b = (", ".join(f"{rate:g}" for rate in sorted(rates - {0.0})) or "0" for rates in found)
    if all(found) and a != b:
        yield f"dropout is {a} in PyTorch and {b} in JAX, and both ran without it"


def differing_dtypes(original: Original, port: Port) -> str:
    """Say which dtypes most numbers of the two modules' weights have, if only one of them has 16 bits."""
    in_torch, in_jax = (_most_common_dtype(leaves) for leaves in (original.weights, port.leaves.values()))
    if in_torch and in_jax and in_torch.endswith("16") != in_jax.endswith("16"):
        return f"the weights are {in_torch} in PyTorch, {in_jax} in JAX"
    return ""


def _most_common_dtype(leaves: Iterable[Weight | Leaf]) -> str:
    sizes: Counter[str] = Counter()
    for leaf in leaves:
        sizes[leaf.dtype] += prod(leaf.shape)
    return max(sizes, key=sizes.__getitem__, default="")
