"""Attention alone: scores, dot products and the masked softmax, forward and with the gradients of all inputs."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

import jax_attn
import torch_ref
from benchmarks.records import COMPILED, OURS, REFERENCE, TUNED, Operation, Program, Ratio, Workload, values
from benchmarks.translators import draw_normal
from benchmarks.tuned import additive_score_to_compile

Draw = Callable[[], Mapping[str, np.ndarray]]


def in_jax(function: Callable[..., Any], draw: Draw, backward: bool) -> Program:
    """Compute a function of arrays under jit; if `backward`, with their gradients along a drawn direction."""
    arrays = jax.device_put(draw())
    along = jax.device_put(draw_normal("direction", *jax.eval_shape(function, **arrays).shape))

    @jax.jit
    def compute(arrays: Any, along: Any) -> Any:
        if not backward:
            return {"output": function(**arrays)}
        output, pull_back = jax.vjp(lambda arrays: function(**arrays), arrays)
        return {"output": output, **pull_back(along)[0]}

    return Program(lambda: compute(arrays, along))


def in_torch(function: Callable[..., Tensor], draw: Draw, backward: bool, compiled: bool = False) -> Program:
    """Compute a function of tensors, with their gradients if `backward`."""
    tensors = {name: torch.tensor(x, requires_grad=backward) for name, x in draw().items()}
    without_values = {name: x.detach().to("meta") for name, x in tensors.items()}
    along = torch.tensor(draw_normal("direction", *function(**without_values).shape)) if backward else None
    to_run = torch.compile(function, dynamic=False) if compiled else function

    def compute() -> dict[str, Tensor]:
        output = to_run(**tensors)
        gradients = torch.autograd.grad(output, list(tensors.values()), along) if backward else ()
        return {"output": output, **dict(zip(tensors, gradients, strict=False))}

    return Program(compute)


def draw_arrays(**shapes: tuple[int, ...]) -> Mapping[str, np.ndarray]:
    return {name: draw_normal(name, *shape) for name, shape in shapes.items()}


# Additive scores of 8 × 512 × 512 pairs of 128 features


def additive(name: str, backward: bool, *ratios: Ratio) -> Workload:
    """Limit: one tanh for each of the terms, and as many again for the gradient, which must not store them."""
    given = partial(draw_arrays, queries=(8, 512, 128), keys=(8, 512, 128), w_v=(128,)), backward
    implementations = {
        OURS: partial(in_jax, jax_attn.additive_score, *given),
        REFERENCE: partial(in_torch, torch_ref.additive_score, *given),
        COMPILED: partial(in_torch, additive_score_to_compile, *given, compiled=True),
    }
    needs = values("tanh", 8 * 512 * 512 * 128 * (2 if backward else 1))
    # The gradient of w_v is a sum of two million terms; PyTorch's is 4e-5 from float64's.
    return Workload(name, "call", implementations, ratios, needs, bound=1e-4)


# Scaled dot-product attention: batch 8, 8 heads, length 1024, 64 features


def our_dot(**arrays: Any) -> Any:
    return jax_attn.DotProductAttention().apply({}, **arrays, return_weights=False)[0]


def reference_dot(**tensors: Tensor) -> Tensor:
    return torch_ref.DotProductAttention()(**tensors)[0]


def sdpa(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(queries, keys, values)


def dot(name: str, backward: bool, *ratios: Ratio) -> Workload:
    """Limit: for each head two products forward and five more backward: the scores again, and the gradients of the
    weights, values, queries and keys. (No exp is counted: that inside of SDPA cannot be measured alone.)
    """
    given = partial(draw_arrays, **dict.fromkeys(("queries", "keys", "values"), (8, 8, 1024, 64))), backward
    implementations = {
        OURS: partial(in_jax, our_dot, *given),
        REFERENCE: partial(in_torch, reference_dot, *given),
        "SDPA": partial(in_torch, sdpa, *given),
    }
    of_scores, of_values = (Operation("product", shape) for shape in ((1024, 64, 1024), (1024, 1024, 64)))
    needs = {of_scores: 64.0 * (3 if backward else 1), of_values: 64.0 * (4 if backward else 1)}
    return Workload(name, "call", implementations, ratios, needs, bound=2e-5)


# Softmax of scores (8, 512, 512) with one length for each example

LENS = np.array([128, 183, 238, 293, 348, 403, 458, 512], np.int32)


def draw_scores() -> Mapping[str, np.ndarray]:
    return {"scores": 2 * draw_normal("scores", 8, 512, 512), "valid_lens": LENS}


def tuned_softmax(scores: Tensor, valid_lens: Tensor) -> Tensor:
    """Apply PyTorch's softmax to the keys within the length; no length is 0."""
    within = torch.arange(scores.shape[-1]) < valid_lens[:, None, None]
    return scores.masked_fill(~within, -torch.inf).softmax(-1)


def masked_softmax(*ratios: Ratio) -> Workload:
    """Limit: a score within its length is read, and needs one exp; every weight is written."""
    implementations = {
        OURS: partial(in_jax, jax_attn.masked_softmax, draw_scores, False),
        REFERENCE: partial(in_torch, torch_ref.masked_softmax, draw_scores, False),
        "tuned": partial(in_torch, tuned_softmax, draw_scores, False),
        COMPILED: partial(in_torch, tuned_softmax, draw_scores, False, compiled=True),
    }
    within, size = int(LENS.sum()) * 512, 8 * 512 * 512
    needs = {**values("exp", within), Operation("copy", (size,)): (within + size) / (2 * size)}
    return Workload("masked_softmax", "call", implementations, ratios, needs)


WORKLOADS = (
    additive(
        "additive_forward",
        False,
        Ratio("additive_forward", (REFERENCE,), 25),
        Ratio("additive_forward_vs_compiled", (COMPILED,), 4),
        Ratio("additive_forward_memory", (REFERENCE,), 30, memory=True),
    ),
    additive(
        "additive_backward",
        True,
        Ratio("additive_backward", (REFERENCE,), 18),
        Ratio("additive_backward_vs_compiled", (COMPILED,), 10),
        Ratio("additive_backward_memory", (REFERENCE,), 15, memory=True),
    ),
    dot("dot_forward", False, Ratio("dot_forward_vs_sdpa", ("SDPA",), 1)),
    dot("dot_backward", True, Ratio("dot_backward_vs_sdpa", ("SDPA",), 1)),
    masked_softmax(Ratio("masked_softmax", (REFERENCE, *TUNED), 1)),
)
