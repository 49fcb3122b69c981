"""Combine the steps of several models into one, which search calls like any other."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_attn.functional.checks import wide_dtype
from jax_attn.search.step import Step


def ensemble(steps: Sequence[Step]) -> Step:
    r"""Return one step for M models with the same target vocabulary: the mean of their probabilities.

    .. math:: \log p(n) = \log \frac{1}{M} \sum_m p_m(n)

    Its state and memory are tuples or lists with one entry for each model. The weights are the mean over the models
    that return weights, or None if no model does. Source: Sutskever et al., 2014.

        step = ensemble([first.step, second.step])
        beam_search(step, (first_state, second_state), (first_memory, second_memory), ...)

    Raises:
        ValueError: no steps; from the returned step, another number of states or memories, or
            outputs of different shapes.
    """
    steps = tuple(steps)
    if not steps:
        raise ValueError("steps must hold at least 1 step; got 0")

    def combined(tokens: Array, state: Any, memory: Any) -> tuple[Array, Any, Array | None]:
        for name, parts in {"state": state, "memory": memory}.items():
            if not isinstance(parts, tuple | list) or len(parts) != len(steps):
                raise ValueError(f"{name} must be a tuple of {len(steps)}, one for each step; got {_kind(parts)}")
        results = [step(tokens, *own) for step, *own in zip(steps, state, memory, strict=True)]
        log_probs = _stack("log_probs", [log_probs for log_probs, _, _ in results])
        weights = [weights for _, _, weights in results if weights is not None]
        mean_weights = _stack("weights", weights).mean(axis=0) if weights else None
        states = [new_state for _, new_state, _ in results]
        return _log_of_mean(log_probs), states if isinstance(state, list) else tuple(states), mean_weights

    return combined


def _log_of_mean(log_probs: Array) -> Array:
    """Return the log of the mean probability, `[M, rows, N]` -> `[rows, N]`."""
    wide = log_probs.astype(wide_dtype(log_probs))
    return (jax.nn.logsumexp(wide, axis=0) - math.log(len(log_probs))).astype(log_probs.dtype)


def _stack(name: str, arrays: Sequence[Array]) -> Array:
    shapes = [list(array.shape) for array in arrays]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"the steps must return {name} of one shape; got {', '.join(map(str, shapes))}")
    return jnp.stack(arrays)


def _kind(parts: Any) -> str:
    return f"{len(parts)} of them" if isinstance(parts, tuple | list) else type(parts).__name__
