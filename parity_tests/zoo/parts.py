"""What ports of all kinds share: attention by hand, with the mistakes that are made there, and a tapped product."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from parity_tests.your_port.place.taps import tap
from parity_tests.zoo.port import Bug


def dense(weights: Any, name: str, x: Any, bias: bool = True, turned: bool = False) -> Any:
    """x W^T + b with PyTorch's weights by name; what comes in and what goes out is tapped."""
    x, w = tap(f"input of {name}", x), weights[f"{name}.weight"]
    return tap(name, x @ (w if turned else w.T) + (weights[f"{name}.bias"] if bias else 0))


def split(x: Any, heads: int, bug: str = "") -> Any:
    """[batch, length, d] -> [batch, heads, length, d / heads]."""
    batch, length, d = x.shape
    if bug == "heads are the inner axis":
        return x.reshape(batch, length, d // heads, heads).transpose(0, 3, 1, 2)
    if bug == "heads are reshaped, not transposed":
        return x.reshape(batch, heads, length, d // heads)
    return x.reshape(batch, length, heads, d // heads).transpose(0, 2, 1, 3)


def merge(x: Any, bug: str = "") -> Any:
    """[batch, heads, length, size] -> [batch, length, heads * size]."""
    batch, heads, length, size = x.shape
    if bug == "heads are merged without a transpose":
        return x.reshape(batch, length, heads * size)
    if bug == "heads are merged as the inner axis":
        return x.transpose(0, 2, 3, 1).reshape(batch, length, heads * size)
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)


def attend(q: Any, k: Any, v: Any, hidden: Any, bug: str = "") -> Any:
    """Scaled dot-product attention; `hidden` is True where a key must not be seen."""
    size, width = q.shape[-1], q.shape[-1] * q.shape[1]
    divisors = {"no scale": 1, "scale by d": size, "scale by the model's width": math.sqrt(width)}
    scores = q @ k.mT / divisors.get(bug, math.sqrt(size))
    hidden = ~hidden if bug == "mask read the other way round" else hidden
    if bug == "mask added too weakly":
        scores = scores - 10.0 * hidden
    elif bug == "mask multiplied with the scores":
        scores = scores * ~hidden
    elif bug not in ("mask ignored", "mask after the softmax"):
        scores = jnp.where(hidden, -jnp.inf, scores)
    weights = jax.nn.softmax(scores, -2 if bug == "softmax over the queries" else -1)
    if bug == "mask after the softmax":
        weights = weights * ~hidden
    return weights @ v


def causal(length: int, bug: str = "") -> Any:
    """True above the diagonal."""
    return jnp.triu(jnp.ones((length, length), bool), 0 if bug == "causal mask hides the position itself" else 1)


def attention_bugs(where: str | None, *names: str) -> tuple[Bug, ...]:
    """Some of the mistakes of `split`, `merge`, `attend`, in the submodule `where`."""
    return tuple(Bug(name, where, CAUSES[name], ISSUES.get(name, "")) for name in names)


CAUSES = {
    "heads are the inner axis": "heads",
    "heads are reshaped, not transposed": "reshaped|transpose",
    "heads are merged without a transpose": "merged|reshaped|transpose",
    "heads are merged as the inner axis": "heads.*merged|merged.*heads",
    "no scale": "scale|factor|multiplied by|divi",
    "scale by d": "scale|factor|multiplied by|divi",
    "scale by the model's width": "scale|factor|multiplied by|divi",
    "mask read the other way round": "other way round|inverted|polarity",
    "mask added too weakly": "too weak",
    "mask multiplied with the scores": "hidden scores are 0|too weak",
    "mask ignored": "mask is ignored|ignored",
    "mask after the softmax": "after the softmax",
    "softmax over the queries": "softmax goes over|axis",
    "causal mask hides the position itself": "triangular|off by one",
}
ISSUES = {"mask read the other way round": "Equinox #463"}
