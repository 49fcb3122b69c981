"""Say what a training would do otherwise in the two, though outputs and gradients may agree."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from flax import nnx

from parity_tests.your_port.measure.jax_side import run_jax
from parity_tests.your_port.pair import Pair
from parity_tests.your_port.weights.original import Weight
from parity_tests.your_port.weights.weight_map import Leaf

RATES = ("p", "rate", "dropout", "dropout_rate")
"""The fields in which modules of the libraries keep the rate of their dropout."""


def training_notes(pair: Pair, torch_module: Any, jax_module: Any, called: list[Any]) -> Iterator[str]:
    """Say what an optimiser would do otherwise in the two.

    Args:
        called: the modules of Linen that were called.
    """
    yield from _moved_otherwise(pair)
    yield from _complex(pair)
    if pair.original.torch.golden is None:
        yield from _trained_in_jax(pair)
        held = nnx.iter_graph(jax_module) if pair.port.kind in ("nnx", "equinox") else ()
        yield from _dropout(torch_module, [*called, *(part for _, part in held)])


def _moved_otherwise(pair: Pair) -> Iterator[str]:
    """Say which weights an optimiser moves in one of the two alone, or apart, though values and gradients may agree."""
    port, is_buffer = pair.port, {weight.name: weight.is_buffer for weight in pair.original.weights}
    paths: dict[str, list[str]] = {}
    for path, entry in pair.map.entries.items():
        for name in dict.fromkeys(entry.source.names):
            paths.setdefault(name, []).append(path)
            if port.kind in ("nnx", "linen") and is_buffer[name] != port.leaves[path].is_buffer:
                kinds = ("buffer", "parameter") if is_buffer[name] else ("parameter", "buffer")
                yield f"{name} is a {kinds[0]} in PyTorch, and {path} is a {kinds[1]} in JAX"
    for name, uses in pair.map.uses.items():
        if not is_buffer[name] and uses.counts.min(initial=2) > 1 and len(paths.get(name, ())) > 1:
            copies = sorted({*paths[name]} & pair.used)
            if len(copies) > 1:
                yield f"{name} is one weight in PyTorch, and JAX trains {' and '.join(copies)} apart"


def _trained_in_jax(pair: Pair) -> Iterator[str]:
    """Say which buffers get a gradient in JAX, where all arrays of a module are trained, as in Equinox."""
    arrays = {path for path, leaf in pair.map.leaves.items() if leaf.sharding is not None}
    places = {entry.source.names[0]: path for path, entry in pair.map.entries.items() if entry.source.names}
    draw = pair.draw()
    numbers, truth = draw.numbers, draw.in_torch()
    asked = [n for n in numbers.buffers if places.get(n) in arrays and not places[n].startswith("1.")]
    if pair.port.kind != "equinox" or not asked or not truth.gradients:
        return
    kept = {name: x for name, x in numbers.buffers.items() if name not in asked}
    trained = {name: numbers.buffers[name] for name in asked}
    other = replace(numbers, weights={**numbers.weights, **trained}, buffers=kept)
    run = run_jax(draw.case, draw.variant, other, draw.dtype, other.directions(truth))
    for name in asked:
        if np.any(run.gradients.get(name)):
            yield f"{name} is a buffer in PyTorch, and {places[name]} gets a gradient in JAX: jax.lax.stop_gradient"


def _complex(pair: Pair) -> Iterator[str]:
    """Say which arrays of JAX get no numbers of PyTorch's, since they are complex."""
    dtypes = {path: getattr(x, "dtype", bool) for path, x in pair.port.values.items()}
    if names := [path for path, dtype in dtypes.items() if jnp.issubdtype(dtype, jnp.complexfloating)]:
        more = f", and so are {len(names) - 1} more" if len(names) > 1 else ""
        yield (
            f"{names[0]} is complex in JAX{more}: it keeps the port's own numbers, also with load=; a weight has to be "
            "two parameters in both, its real and its imaginary part"
        )


@contextmanager
def calls_of_linen() -> Iterator[list[Any]]:
    """Remember the modules of Linen that are called meanwhile."""
    modules = list[Any]()

    def note(next_function: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        modules.append(context.module)
        return next_function(*args, **kwargs)

    with nn.intercept_methods(note):
        yield modules


def _dropout(torch_module: Any, in_jax: list[Any]) -> Iterator[str]:
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


def differing_dtypes(pair: Pair) -> str:
    """Say which dtypes most numbers of the two modules' weights have, if only one of them has 16 bits."""
    in_torch, in_jax = (most_common_dtype(x) for x in (pair.original.weights, pair.port.leaves.values()))
    if in_torch and in_jax and in_torch.endswith("16") != in_jax.endswith("16"):
        return f"the weights are {in_torch} in PyTorch, {in_jax} in JAX"
    return ""


def most_common_dtype(leaves: Iterable[Weight | Leaf]) -> str:
    """Return the dtype of most numbers; "" without any."""
    sizes: Counter[str] = Counter()
    for leaf in leaves:
        sizes[leaf.dtype] += prod(leaf.shape)
    return max(sizes, key=sizes.__getitem__, default="")
