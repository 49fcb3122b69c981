"""The arrays that the attention workloads are run on, by name: the same numbers for every contestant."""

from collections.abc import Callable
from typing import Any

import numpy as np

from parity_tests.case import random_for

Arrays = dict[str, Any]

BATCH, LENGTH, HIDDEN = 8, 512, 128
HEADS, LONG, FEATURES = 8, 1024, 64


def additive(batch: int = BATCH, length: int = LENGTH, hidden: int = HIDDEN) -> Arrays:
    """Projected queries and keys `[B, L, H]`, and w_v."""
    rng = random_for("speed", "additive")
    shapes = {"queries": (batch, length, hidden), "keys": (batch, length, hidden), "w_v": (hidden,)}
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return {**arrays, "w_v": arrays["w_v"] / np.float32(hidden**0.5)}


def dot_product(batch: int = BATCH, heads: int = HEADS, length: int = LONG, features: int = FEATURES) -> Arrays:
    """Queries, keys and values `[B, heads, L, D]`, nothing masked."""
    rng = random_for("speed", "dot product")
    arrays = {
        name: rng.normal(size=(batch, heads, length, features)).astype(np.float32)
        for name in ("queries", "keys", "values")
    }
    return {**arrays, "valid_lens": None, "mask": None}


def softmax(batch: int = BATCH, length: int = LENGTH) -> Arrays:
    """Scores `[B, L, L]` and a length for each example."""
    rng = random_for("speed", "softmax")
    scores = (2 * rng.normal(size=(batch, length, length))).astype(np.float32)
    return {"scores": scores, "valid_lens": rng.integers(length // 4, length + 1, batch).astype(np.int32)}


def additive_attention(batch: int, length: int, hidden: int) -> Arrays:
    """Those of the additive score, and values `[B, L, H]`."""
    values = random_for("speed", "values").normal(size=(batch, length, hidden)).astype(np.float32)
    return {**additive(batch, length, hidden), "values": values}


def dot_attention(batch: int, length: int, hidden: int) -> Arrays:
    """The same without w_v."""
    arrays = additive_attention(batch, length, hidden)
    return {name: arrays[name] for name in ("queries", "keys", "values")}


INPUTS: dict[str, Callable[..., Arrays]] = {
    "additive": additive,
    "dot product": dot_product,
    "softmax": softmax,
    "additive attention": additive_attention,
    "dot attention": dot_attention,
}

DIFFERENTIATED = {
    "additive": ("queries", "keys", "w_v"),
    "dot product": ("queries", "keys", "values"),
    "softmax": ("scores",),
    "additive attention": ("queries", "keys", "values", "w_v"),
    "dot attention": ("queries", "keys", "values"),
}


def cotangent(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The direction along which the output is differentiated."""
    return random_for("speed", name, "cotangent").normal(size=shape).astype(np.float32)
