"""The limit of a workload: the least time that this machine needs for it.

Ceilings are measured in the same run, in JAX and in PyTorch; the faster one counts:

    gemm        float32 products of 1024 × 1024 matrices, in floating point operations a second
    small gemm  the product of [64, 512] and [512, 2048], as in one recurrent step
    tanh        tanh of numbers in the cache, in calls a second
    copy        bytes read and written a second, in arrays far larger than the cache

A workload says how much of each a unit needs at least. The limit is the sum of these times, and the share of the limit
is the limit divided by the measured time. Nothing else is counted, neither softmax nor gates, so 100 % is out of reach
for a whole model. Code that avoids the tanh by arithmetic can exceed 100 %.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from parity_tests.speed import inputs, jax_side, torch_side
from parity_tests.speed.records import Program


def limit_seconds(needs: Mapping[str, float], rates: Mapping[str, float]) -> float | None:
    """Return the least time of a unit at these rates (operations a second); None if a rate is missing."""
    if not needs or any(name not in rates for name in needs):
        return None
    return sum(amount / rates[name] for name, amount in needs.items())


def recurrent_needs() -> dict[str, float]:
    """Count the products forward, and twice as many backward. Those of a step, forward and backward, are small."""
    B, T, D, H, layers = inputs.RECURRENT_SIZES
    loop, outside = layers * H * 4 * H, (D + (layers - 1) * H) * 4 * H
    return {"small gemm": 2.0 * B * T * 2 * loop, "gemm": 2.0 * B * T * (loop + 3 * outside)}


def training_needs(translator: inputs.Translator) -> dict[str, float]:
    """Count what a training step needs at least, on average over the batches of a pass. Padding needs nothing.

    gemm, small gemm   the products forward, and twice as many backward; those inside a recurrence (a step's products
                       forward and backward) are small, all others can be computed for all steps at once
    tanh               one for each term of the attention
    copy               Adam's seven passes over parameters, gradients and moments
    """
    groups = inputs.draw_training(translator.name)
    decoder, V = translator.decoder, translator.encoder_size
    E, H, N, layers = (decoder[size] for size in ("embed_size", "num_hiddens", "vocab_size", "num_layers"))
    gates, inner = 4 if decoder["cell"] == "lstm" else 3, translator.encoder["num_hiddens"]
    # multiplications for each token
    encoder_in = gates * (E + (layers - 1) * V) * V
    encoder_loop = gates * inner * layers * V
    decoder_in = gates * H * E
    decoder_loop = gates * H * ((V if decoder["query"] == "previous" else H) + H + (layers - 1) * 2 * H) + H * H
    decoder_loop += (V + H) * H if decoder["query"] == "new" else 0
    gemm = small = tanh = 0.0
    for group in groups:
        label_lens = np.maximum(group.target_lens - 1, 0)
        read, written, pairs = group.source_lens.sum(), label_lens.sum(), (group.source_lens * label_lens).sum()
        loop = 2 * (read * encoder_loop + written * decoder_loop)
        small += 2 * loop
        gemm += loop + 3 * 2 * (read * (encoder_in + V * H) + written * (decoder_in + H * N) + pairs * V)
        tanh += pairs * H
    parameters = 2 * N * E + encoder_in + encoder_loop + decoder_in + decoder_loop + V * H + H * N
    steps = sum(len(group.sources) for group in groups)
    return {"gemm": gemm / steps, "small gemm": small / steps, "tanh": tanh / steps, "copy": 7 * 4.0 * parameters}


def search_needs(beam_size: int) -> dict[str, float]:
    """Count what the translation of one sentence by W2's model needs: the decoder's products, the attention's tanh."""
    decoder, rows = inputs.W2.decoder, beam_size * inputs.STEPS
    E, H, N = (decoder[size] for size in ("embed_size", "num_hiddens", "vocab_size"))
    step = 4 * H * (E + H + H) + 4 * H * 2 * H + H * H + H * N
    return {"small gemm": 2.0 * rows * step, "tanh": 30.0 * rows * H}


def jax_ceiling(device: str, *, operation: str, repeats: int, shape: tuple[int, ...]) -> Program:
    """Repeat the operation in one JAX program."""
    jax_side.use_device(device)

    def gemm(carry: Any, _: Any, other: Any) -> Any:
        return carry + (carry @ other).max(axis=1, keepdims=True) * 1e-9  # each product needs the one before

    def tanh(total: Any, i: Any, x: Any) -> Any:
        return total + jnp.tanh(x + i).sum()

    def copy(x: Any, _: Any, __: Any) -> Any:
        return x + 1

    once, first, other = {
        "gemm": lambda: (gemm, jnp.full(shape[:2], 1 / shape[1]), jnp.ones(shape[1:])),
        "tanh": lambda: (tanh, jnp.zeros(()), jnp.linspace(-2, 2, shape[0])),
        "copy": lambda: (copy, jnp.zeros(shape), None),
    }[operation]()

    @jax.jit
    def run(first: Any, other: Any) -> Any:
        steps = jnp.arange(repeats) * 1e-3
        return jax.lax.scan(lambda carry, i: (once(carry, i, other), None), first, steps)[0]

    return Program(lambda: jax.block_until_ready(run(first, other)), dict)


def torch_ceiling(device: str, *, operation: str, repeats: int, shape: tuple[int, ...]) -> Program:
    """Repeat the operation in PyTorch, with its result in memory that exists already."""
    wait = torch_side.use_device(device)
    ones = partial(torch.ones, device=device)
    if operation == "gemm":
        once = partial(torch.mm, ones(shape[:2]), ones(shape[1:]), out=ones(shape[0], shape[2]))
    elif operation == "tanh":
        once = partial(torch.tanh, torch.linspace(-2, 2, shape[0], device=device), out=ones(shape))
    else:
        once = partial(ones(shape).copy_, ones(shape))

    def run() -> None:
        for _ in range(repeats):
            once()
        wait()

    return Program(run, dict)
