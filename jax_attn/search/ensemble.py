"""Several models as one: their steps combined, so that search still drives a single step."""

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax import Array

from jax_attn.functional.checks import wide_dtype
from jax_attn.search.step import Step

Average = Literal["probability", "log"]


def ensemble(steps: Sequence[Step], *, average: Average = "probability") -> Step:
    """A step over M models that share a target vocabulary; its state and memory are tuples with one entry for each.

        "probability"   log p(n) = log (1/M · Σ_m p_m(n))
        "log"           log p(n) = 1/M · Σ_m log p_m(n) − log Z,   Z such that Σ_n p(n) = 1

    Averaged probabilities are what the field uses (Sutskever et al., 2014; fairseq); the geometric mean lets every
    model veto. The weights are the mean of those of the models that return any, and None if none does.

        step = ensemble([first.step, second.step])
        beam_search(step, (first_state, second_state), (first_memory, second_memory), ...)

    Raises:
        ValueError: no steps, an unknown average; when the step is called, another number of states or memories, log
            probabilities or weights of different shapes.
    """
    steps = tuple(steps)
    if not steps:
        raise ValueError("steps must hold at least 1 step; got 0")
    if average not in get_args(Average):
        raise ValueError(f"average must be one of {get_args(Average)}; got {average!r}")

    def combined(tokens: Array, state: Any, memory: Any) -> tuple[Array, Any, Array | None]:
        for name, parts in {"state": state, "memory": memory}.items():
            if not isinstance(parts, tuple | list) or len(parts) != len(steps):
                raise ValueError(f"{name} must be a tuple of {len(steps)}, one for each step; got {_kind(parts)}")
        results = [step(tokens, *of_model) for step, *of_model in zip(steps, state, memory, strict=True)]
        log_probs = _stack("log_probs", [log_probs for log_probs, _, _ in results])
        weights = [weights for _, _, weights in results if weights is not None]
        mean_weights = _stack("weights", weights).mean(axis=0) if weights else None
        mean = _log_of_mean(log_probs) if average == "probability" else _normalized_mean(log_probs)
        return mean, tuple(state for _, state, _ in results), mean_weights

    return combined


def _log_of_mean(log_probs: Array) -> Array:
    """log of the mean probability, `[M, rows, N]` -> `[rows, N]`."""
    wide = log_probs.astype(wide_dtype(log_probs))
    return (jax.nn.logsumexp(wide, axis=0) - math.log(len(log_probs))).astype(log_probs.dtype)


def _normalized_mean(log_probs: Array) -> Array:
    """The mean log probability, its probabilities made to sum to 1; a row of which nothing is left stays −inf."""
    mean = log_probs.astype(wide_dtype(log_probs)).mean(axis=0)
    total = jax.nn.logsumexp(mean, axis=-1, keepdims=True)
    return (mean - jnp.where(total == -jnp.inf, 0, total)).astype(log_probs.dtype)


def _stack(name: str, arrays: Sequence[Array]) -> Array:
    shapes = [list(array.shape) for array in arrays]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"the steps must return {name} of one shape; got {', '.join(map(str, shapes))}")
    return jnp.stack(arrays)


def _kind(parts: Any) -> str:
    return f"{len(parts)} of them" if isinstance(parts, tuple | list) else type(parts).__name__
