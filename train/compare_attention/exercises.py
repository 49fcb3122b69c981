"""The exercises of the book's chapter on attention scoring functions, answered with numbers and pictures.

1. Change the keys of the example and look at the weights. Do additive and scaled dot-product attention still agree?
2. With matrix products alone, a scoring function for queries and keys of different length?
3. Where the lengths are equal, is a sum of vectors a better design than the dot product?

Source: https://d2l.ai/chapter_attention-mechanisms-and-transformers/attention-scoring-functions.html
"""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_attn import (
    AdditiveAttention,
    BilinearAttention,
    DotProductAttention,
    GaussianAttention,
    MultiHeadAttention,
    show_heatmaps,
)
from jax_attn.functional import bilinear_score, dot_score
from jax_attn.modules.attention import Attention
from jax_attn.plots import save

Answers = dict[str, Any]
Table = list[tuple[str, ...]]

VALUES = jnp.tile(jnp.arange(40.0).reshape(1, 10, 4), (2, 1, 1))
VALID_LENS = jnp.array([2, 6])


def answer(folder: Path) -> Answers:
    """All answers; the pictures go into the folder."""
    return {
        "changed_keys": changed_keys(folder / "changed_keys.png"),
        "different_lengths": different_lengths(),
        "vector_sum": vector_sum(folder / "vector_sum.png"),
        "cost": cost(),
    }


def tables(answers: Mapping[str, Any]) -> dict[str, Table]:
    """The answers that are tables, by the names that a page knows them by."""
    return {
        "changed keys": _table_of_keys(answers["changed_keys"]),
        "different lengths": _table_of_lengths(answers["different_lengths"]),
        "vector sum": _table_of_sum(answers["vector_sum"]),
        "cost": _table_of_cost(answers["cost"]),
    }


# --- 1. Other keys ----------------------------------------------------------------------------------------------------


def keys_of_the_example() -> dict[str, Array]:
    """The book's keys, which are all alike, and others: `[2, 10, 2]`."""
    drawn = jax.random.normal(jax.random.key(2), (2, 10, 2))
    return {"ones": jnp.ones((2, 10, 2)), "normal": drawn, "normal × 10": 10 * drawn}


def weights_of_the_example(keys: Array) -> dict[str, Any]:
    """The book's example with these keys: weights `[2, 10]` of both attentions, and the most that additive can prefer.

    As in the book, the queries have 20 features for additive attention and 2 for the dot product.
    """
    additive, dot = AdditiveAttention(num_hiddens=8), DotProductAttention()
    long = jax.random.normal(jax.random.key(0), (2, 1, 20))
    params = additive.init(jax.random.key(1), long, keys, VALUES, VALID_LENS)
    _, of_additive = jax.jit(additive.apply)(params, long, keys, VALUES, VALID_LENS)
    _, of_dot = jax.jit(dot.apply)({}, jax.random.normal(jax.random.key(3), (2, 1, 2)), keys, VALUES, VALID_LENS)
    most = math.exp(2 * float(jnp.abs(params["params"]["w_v"]["kernel"]).sum()))
    weights = (np.asarray(of_kind, np.float64)[:, 0] for of_kind in (of_additive, of_dot))
    return dict(zip(("additive", "scaled_dot"), weights, strict=True)) | {"most": most}


def changed_keys(picture: Path) -> Answers:
    """Weights of both attentions with each kind of keys, and how many times the least the largest is."""
    found = {name: weights_of_the_example(keys) for name, keys in keys_of_the_example().items()}
    lens = VALID_LENS.tolist()
    answers: Answers = {"most_that_additive_can_prefer": round(found["ones"]["most"], 1)}
    for name, weights in found.items():
        both = {kind: [weights[kind][i, :n] for i, n in enumerate(lens)] for kind in ("additive", "scaled_dot")}
        difference = max(np.abs(a - b).max() for a, b in zip(both["additive"], both["scaled_dot"], strict=True))
        answers[name] = {
            "weights": {kind: [np.round(w, 4).tolist() for w in of_kind] for kind, of_kind in both.items()},
            "largest_difference": round(float(difference), 4),
            "largest_to_least": {kind: round(float(w[1].max() / w[1].min()), 2) for kind, w in both.items()},
        }
    grid = [[found[name][kind] for kind in ("additive", "scaled_dot")] for name in found]
    figure = show_heatmaps(np.array(grid), "key", "", ["additive", "scaled dot product"], (8.0, 3.0))
    axes = np.array(figure.axes[:-1]).reshape(len(found), 2)
    for axis, name in zip(axes[:, 0], found, strict=True):
        axis.set_ylabel(f"keys\n{name}", rotation=0, ha="right", va="center", labelpad=16)
    for axis in axes[1:].flat:
        axis.set_title("")
    for axis in axes.flat:
        axis.set_xticks(range(10))
        axis.set_yticks([0, 1], [f"length {n}" for n in lens])
    save(figure, picture)
    return answers


def _table_of_keys(answers: Mapping[str, Any]) -> Table:
    rows: Table = [("keys", "additive: weights of the 6", "scaled dot product", "largest difference")]
    for name in keys_of_the_example():
        of_six = [
            " ".join(f"{w:.2f}" for w in answers[name]["weights"][kind][1]) for kind in ("additive", "scaled_dot")
        ]
        rows.append((name, *of_six, f"{answers[name]['largest_difference']:.2f}"))
    return rows


# --- 2. Queries and keys of different length --------------------------------------------------------------------------


def different_lengths(query_size: int = 20, key_size: int = 2, widths: tuple[int, ...] = (1, 2, 8)) -> Answers:
    """W of qᵀ W k against W_qᵀ W_k of two projections to H features: what each learns, and which rank it can have."""
    rng = np.random.default_rng(0)
    queries, keys = rng.normal(size=(3, query_size)), rng.normal(size=(5, key_size))
    factored = []
    for width in widths:
        W_q, W_k = rng.normal(size=(width, query_size)), rng.normal(size=(width, key_size))
        product = W_q.T @ W_k
        with jax.enable_x64(True):
            whole = bilinear_score(jnp.asarray(queries), jnp.asarray(keys), jnp.asarray(product))
            projected = dot_score(jnp.asarray(queries @ W_q.T), jnp.asarray(keys @ W_k.T))
        factored.append({
            "num_hiddens": width,
            "parameters": width * (query_size + key_size),
            "rank": int(np.linalg.matrix_rank(product)),
            "largest_difference_of_scores": float(f"{np.abs(np.asarray(whole) - np.asarray(projected)).max():.1e}"),
        })  # fmt: skip
    bilinear = {"parameters": query_size * key_size, "rank": min(query_size, key_size)}
    return {"query_size": query_size, "key_size": key_size, "bilinear": bilinear, "two_projections": factored}


def _table_of_lengths(answers: Mapping[str, Any]) -> Table:
    rows: Table = [("score", "parameters", "rank of W")]
    rows.append(("qᵀ W k", f"{answers['bilinear']['parameters']}", f"{answers['bilinear']['rank']}"))
    for one in answers["two_projections"]:
        name = f"(W_q q) · (W_k k), {one['num_hiddens']} feature{'s' * (one['num_hiddens'] > 1)}"
        rows.append((name, f"{one['parameters']}", f"{one['rank']}"))
    return rows


# --- 3. A sum against a product ---------------------------------------------------------------------------------------


def vector_sum(picture: Path, size: int = 16) -> Answers:
    """Five queries and eight keys: how far apart the queries' weights are, and what gradient reaches a query."""
    q_key, k_key, v_key = jax.random.split(jax.random.key(0), 3)
    queries, keys = jax.random.normal(q_key, (1, 5, size)), jax.random.normal(k_key, (1, 8, size))
    values = jax.random.normal(v_key, (1, 8, size))
    modules: dict[str, Attention] = {
        "sum": AdditiveAttention(size, use_tanh=False),
        "additive": AdditiveAttention(size),
        "scaled_dot": DotProductAttention(),
    }
    answers: Answers = {}
    shown = []
    for name, module in modules.items():
        params = module.init(jax.random.key(1), queries, keys, values)
        _, weights = jax.jit(module.apply)(params, queries, keys, values)
        answers[name] = {
            "between_queries": float(f"{np.ptp(np.asarray(weights), axis=1).max():.2e}"),
            "gradient_of_queries": float(f"{_gradient_of_queries(module, params, queries, keys, values):.2e}"),
        }
        shown.append(np.asarray(weights)[0])
    figure = show_heatmaps(
        np.array([shown]), "key", "query", ["vector sum", "additive", "scaled dot product"], (8.0, 2.4)
    )
    for axis in figure.axes[:-1]:
        axis.set_xticks(range(8))
        axis.set_yticks(range(5))
    save(figure, picture)
    return answers


def _gradient_of_queries(module: Attention, params: Any, queries: Array, keys: Array, values: Array) -> float:
    """The largest derivative of a loss of the context by any feature of a query."""

    def loss(queries: Array) -> Array:
        return (module.apply(params, queries, keys, values)[0] ** 2).sum()

    return float(jnp.abs(jax.jit(jax.grad(loss))(queries)).max())


def _table_of_sum(answers: Mapping[str, Any]) -> Table:
    rows: Table = [("score", "weights of two queries apart", "largest gradient of a query")]
    names = {"sum": "w · (W_q q + W_k k)", "additive": "w · tanh(W_q q + W_k k)", "scaled_dot": "q · k / √D"}
    for name, score in names.items():
        of_score = answers[name]
        rows.append((score, _size(of_score["between_queries"]), _size(of_score["gradient_of_queries"])))
    return rows


def _size(number: float) -> str:
    """Rounding is not far from nothing, and is told as what it is."""
    return f"{number:.2f}" if number >= 0.005 else f"{number:.0e}" if number else "0"


SHAPES = {"a decoder's step": (64, 1, 14), "a text": (8, 128, 128)}
"""Batch, queries and keys: a step of the demo's training, and 128 words attending to each other."""


def cost(size: int = 96, shapes: Mapping[str, tuple[int, int, int]] = SHAPES, seconds: float = 1.0) -> Answers:
    """Milliseconds for the gradients of each attention, the least of many calls; on a busy machine they mean little."""
    modules: dict[str, Attention] = {
        "dot": DotProductAttention(scaled=False),
        "scaled_dot": DotProductAttention(),
        "sum": AdditiveAttention(size, use_tanh=False),
        "bilinear": BilinearAttention(),
        "multi_head": MultiHeadAttention(size, 4),
        "gaussian": GaussianAttention(),
        "additive": AdditiveAttention(size),
    }
    times = {
        name: {shape: round(_milliseconds(module, *sizes, size, seconds), 4) for shape, sizes in shapes.items()}
        for name, module in modules.items()
    }
    return {"features": size, "shapes": {name: list(sizes) for name, sizes in shapes.items()}, "milliseconds": times}


def _milliseconds(module: Attention, batch: int, num_queries: int, num_keys: int, size: int, seconds: float) -> float:
    q_key, k_key = jax.random.split(jax.random.key(0))
    queries = jax.random.normal(q_key, (batch, num_queries, size))
    keys = jax.random.normal(k_key, (batch, num_keys, size))
    params = module.init(jax.random.key(1), queries, keys, keys)

    def loss(params: Any, queries: Array, keys: Array) -> Array:
        return (module.apply(params, queries, keys, keys, return_weights=False)[0] ** 2).sum()

    return _least(jax.jit(jax.grad(loss, argnums=(0, 1, 2))), (params, queries, keys), seconds) * 1e3


def _least(call: Callable[..., Any], arguments: tuple[Any, ...], seconds: float) -> float:
    """The shortest of the calls within so many seconds, the first of which compiles and does not count."""
    jax.block_until_ready(call(*arguments))
    least, end = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        jax.block_until_ready(call(*arguments))
        least = min(least, time.perf_counter() - start)
    return least


def _table_of_cost(answers: Mapping[str, Any]) -> Table:
    shapes = answers["shapes"]
    rows: Table = [("attention", *(f"{name}: {b} × {q} × {k}" for name, (b, q, k) in shapes.items()))]
    for name, times in answers["milliseconds"].items():
        rows.append((name, *(f"{times[shape]:.2f} ms" for shape in shapes)))
    return rows
