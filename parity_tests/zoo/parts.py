"""What ports share: attention by hand, with the mistakes that people make there, and a tapped product."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from parity_tests.your_port.place.taps import tap


def dense(weights: Any, name: str, x: Any) -> Any:
    """x W^T + b with PyTorch's weights by name; what comes in and what goes out is tapped."""
    return tap(name, tap(f"input of {name}", x) @ weights[f"{name}.weight"].T + weights[f"{name}.bias"])


def split(x: Any, heads: int) -> Any:
    """[batch, length, d] -> [batch, heads, length, d / heads]."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def merge(x: Any) -> Any:
    """[batch, heads, length, size] -> [batch, length, heads * size]."""
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def attend(q: Any, k: Any, v: Any, hidden: Any, bug: str = "") -> Any:
    """Scaled dot-product attention; `hidden` is True where a key must not be seen."""
    size = q.shape[-1]
    divisors = {"no scale": 1, "scale by the model's width": math.sqrt(size * q.shape[1])}
    scores = q @ k.mT / divisors.get(bug, math.sqrt(size))
    hidden = ~hidden if bug == "mask read the other way round" else hidden
    return jax.nn.softmax(jnp.where(hidden, -jnp.inf, scores), -1) @ v


def causal(length: int) -> Any:
    """True above the diagonal."""
    return jnp.triu(jnp.ones((length, length), bool), 1)
