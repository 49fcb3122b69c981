"""A model that generates, as functions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Decoder:
    """A model that generates, as functions: of PyTorch's tensors on one side, of JAX's arrays on the other.

    B prompts get up to n new tokens, each of N that there are. For PyTorch, the module is the first argument of each.
    """

    prefill: Callable[..., Any]
    """(inputs) -> logits of the first new token [B, N], and a cache."""
    step: Callable[..., Any]
    """(tokens [B], cache) -> logits of the next tokens [B, N], and the cache."""
    full: Callable[..., Any]
    """(inputs, new tokens [B, n]) -> logits [B, n + 1, N] without a cache; entry t belongs to new token t."""
    generate: Callable[..., Any] | None = None
    """(inputs, n) -> the likeliest tokens [B, at most n], one after the other, by a loop of its own."""
