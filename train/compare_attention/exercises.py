"""The exercises of the book's chapter on attention scoring functions, answered with numbers and pictures.

1. Change the keys of the example and look at the weights. Do additive and scaled dot-product attention still agree?
2. Find a scoring function for queries and keys of different length that uses matrix products only.
3. When both have the same length, is a sum of vectors a better design than the dot product?

Source: https://d2l.ai/chapter_attention-mechanisms-and-transformers/attention-scoring-functions.html
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from jax_attn import AdditiveAttention, DotProductAttention, show_heatmaps
from jax_attn.functional import bilinear_score, dot_score
from jax_attn.modules.attention import Attention, make_attention
from jax_attn.plots import save
from train.compare_attention.pictures import read_weights
from train.compare_attention.results import Table, read_test
from train.compare_attention.runs import Run
from train.runs.run_folder import RunFolder
from train.translating.metrics import alignment_error_rate, peaks
from train.translating.translator import load_model

VALID_LENS = (2, 6)
KINDS = ("additive", "scaled_dot")
SHAPES = {"a decoder's step": (64, 1, 14), "a text": (8, 128, 128)}
"""Batch, queries and keys: a step of the demo's training, and 128 words that attend to each other."""
COSTS = ("dot", "scaled_dot", "sum", "bilinear", "multi_head", "gaussian", "additive")


def answer(folder: Path) -> dict[str, Any]:
    """Compute all answers and draw their pictures into a folder."""
    return {
        "changed_keys": changed_keys(folder / "changed_keys.png"),
        "different_lengths": different_lengths(),
        "vector_sum": vector_sum(folder / "vector_sum.png"),
        "cost": cost(),
    }


def example_keys() -> dict[str, Float[Array, "2 10 2"]]:
    """Return the keys of the book's example, which are all equal, and random ones."""
    random = jax.random.normal(jax.random.key(2), (2, 10, 2))
    return {"ones": jnp.ones((2, 10, 2)), "normal": random, "normal × 10": 10 * random}


def example_weights(keys: Float[Array, "2 10 2"]) -> tuple[dict[str, Float[np.ndarray, "2 10"]], float]:
    """Compute the weights of both attentions in the book's example, and exp(2‖w‖₁) of the additive one.

    As in the book, a query has 20 features for additive attention and 2 for the dot product.
    """
    values, lens = jnp.tile(jnp.arange(40.0).reshape(1, 10, 4), (2, 1, 1)), jnp.array(VALID_LENS)
    additive, dot = AdditiveAttention(num_hiddens=8), DotProductAttention()
    long, short = (jax.random.normal(jax.random.key(seed), (2, 1, size)) for seed, size in ((0, 20), (3, 2)))
    params = additive.init(jax.random.key(1), long, keys, values, lens)
    _, by_sum = _forward(additive)(params, long, keys, values, lens)
    _, by_product = _forward(dot)({}, short, keys, values, lens)
    weights = (np.asarray(found, np.float64)[:, 0] for found in (by_sum, by_product))
    return dict(zip(KINDS, weights, strict=True)), math.exp(2 * float(jnp.abs(params["params"]["w_v"]["kernel"]).sum()))


@cache
def _forward(module: Attention) -> Callable[..., Any]:
    """Compile an attention module once for all kinds of keys."""
    return jax.jit(module.apply)


def changed_keys(picture: Path) -> dict[str, Any]:
    """Compare the weights of both attentions for each kind of keys."""
    answers: dict[str, Any] = {}
    grid = []
    for name, keys in example_keys().items():
        weights, answers["largest_additive_ratio"] = example_weights(keys)
        grid.append([weights[kind] for kind in KINDS])
        valid = {kind: [row[:n] for row, n in zip(weights[kind], VALID_LENS, strict=True)] for kind in KINDS}
        answers[name] = {
            "weights": {kind: [np.round(row, 4).tolist() for row in rows] for kind, rows in valid.items()},
            "largest_difference": round(float(np.abs(weights["additive"] - weights["scaled_dot"]).max()), 4),
            "largest_ratio": {kind: round(float(rows[1].max() / rows[1].min()), 2) for kind, rows in valid.items()},
        }
    answers["largest_additive_ratio"] = round(answers["largest_additive_ratio"], 1)
    figure = show_heatmaps(np.array(grid), "key", "", ["additive", "scaled dot product"], (8.0, 3.0))
    axes = np.array(figure.axes[:-1]).reshape(-1, 2)
    for axis, name in zip(axes[:, 0], example_keys(), strict=True):
        axis.set_ylabel(f"keys:\n{name}", rotation=0, ha="right", va="center", labelpad=16)
    for axis in axes[1:].flat:
        axis.set_title("")
    for axis in axes.flat:
        axis.set(xticks=range(10), yticks=range(2), yticklabels=[f"length {n}" for n in VALID_LENS])
    figure.axes[-1].set_ylabel("attention weight")
    save(figure, picture)
    return answers


def different_lengths(query_size: int = 20, key_size: int = 2) -> dict[str, Any]:
    """Compare qᵀ W k with the dot product of two projections: how many parameters each has, and its largest rank."""
    rng = np.random.default_rng(0)
    queries, keys = rng.normal(size=(3, query_size)), rng.normal(size=(5, key_size))
    projections = []
    for width in (1, 2, 8):
        W_q, W_k = rng.normal(size=(width, query_size)), rng.normal(size=(width, key_size))
        with jax.enable_x64(True):
            whole = bilinear_score(*map(jnp.asarray, (queries, keys, W_q.T @ W_k)))
            projected = dot_score(*map(jnp.asarray, (queries @ W_q.T, keys @ W_k.T)))
        projections.append({
            "num_hiddens": width,
            "parameters": width * (query_size + key_size),
            "rank": int(np.linalg.matrix_rank(W_q.T @ W_k)),
            "largest_difference": float(f"{np.abs(np.asarray(whole) - np.asarray(projected)).max():.1e}"),
        })  # fmt: skip
    bilinear = {"parameters": query_size * key_size, "rank": min(query_size, key_size)}
    return {"bilinear": bilinear, "two_projections": projections}


def bilinear_ranks(runs: Sequence[Run]) -> list[dict[str, float]]:
    """Compute the alignment error of trained bilinear attentions whose W keeps only its largest singular values.

    Two projections to r features are a bilinear score of rank r at most. So this shows how narrow they could be.

    Returns:
        For 1, 2, 4, … singular values: their share of ‖W‖² and the alignment error, as means over the runs. Empty
        without runs or without gold alignments.
    """
    by_run = [_ranks(run) for run in runs]
    return [
        {name: round(float(np.mean([row[name] for row in rows])), 6) for name in rows[0]}
        for rows in zip(*by_run, strict=True)
    ]


def _ranks(run: Run, kernel: str = "decoder.attention.W.weight") -> list[dict[str, float]]:
    saved = RunFolder(run.folder).load()
    pairs = [pair for pair, _ in read_test(run.folder)]
    gold = [pair.alignment for pair in pairs if pair.alignment is not None]
    if len(gold) < len(pairs):
        return []
    forward = jax.jit(load_model(saved)[0].apply)
    left, values, right = np.linalg.svd(saved.weights[kernel])
    size = len(values)
    found = []
    for rank in [2**i for i in range(size.bit_length()) if 2**i < size] + [size]:
        changed = saved.weights | {kernel: (left[:, :rank] * values[:rank]) @ right[:rank]}
        _, params = load_model(dataclasses.replace(saved, weights=changed))
        weights = read_weights(forward, params, saved, pairs)
        links = [
            peaks(w, len(pair.source.split()), len(pair.target.split())) for w, pair in zip(weights, pairs, strict=True)
        ]
        share = float((values[:rank] ** 2).sum() / (values**2).sum())
        found.append({"rank": rank, "share": share, "alignment_error": alignment_error_rate(links, gold)})
    return found


def vector_sum(picture: Path, size: int = 16) -> dict[str, Any]:
    """Compare how much the weights of five queries differ, and the largest gradient that reaches a query."""
    q_key, k_key, v_key = jax.random.split(jax.random.key(0), 3)
    queries, keys = jax.random.normal(q_key, (1, 5, size)), jax.random.normal(k_key, (1, 8, size))
    values = jax.random.normal(v_key, (1, 8, size))
    answers, shown = {}, []
    for name in ("sum", *KINDS):
        module = make_attention(name, size)
        params = module.init(jax.random.key(1), queries, keys, values)
        _, weights = jax.jit(module.apply)(params, queries, keys, values)
        d_queries = jax.jit(jax.grad(_loss(module), argnums=1))(params, queries, keys, values)
        answers[name] = {
            "between_queries": float(f"{np.ptp(np.asarray(weights), axis=1).max():.2e}"),
            "query_gradient": float(f"{jnp.abs(d_queries).max():.2e}"),
        }
        shown.append(np.asarray(weights)[0])
    titles = ["vector sum", "additive", "scaled dot product"]
    figure = show_heatmaps(np.array([shown]), "key", "query", titles, (8.0, 2.4))
    for axis in figure.axes[:-1]:
        axis.set(xticks=range(8), yticks=range(5))
    figure.axes[-1].set_ylabel("attention weight")
    save(figure, picture)
    return answers


def _loss(module: Attention, **options: Any) -> Any:
    """Return a function of the parameters and inputs whose gradients are measured."""
    return lambda params, *inputs: (module.apply(params, *inputs, **options)[0] ** 2).sum()


def cost(size: int = 96, shapes: Mapping[str, tuple[int, int, int]] = SHAPES, seconds: float = 1.0) -> dict[str, Any]:
    """Measure the milliseconds for the gradients of each attention; on a busy machine they mean little."""
    milliseconds = {}
    for name in COSTS:
        attention = make_attention(name, size)
        times = {shape: _milliseconds(attention, *axes, size, seconds) for shape, axes in shapes.items()}
        milliseconds[name] = {shape: round(time, 4) for shape, time in times.items()}
    return {"features": size, "shapes": {k: list(axes) for k, axes in shapes.items()}, "milliseconds": milliseconds}


def _milliseconds(module: Attention, batch: int, num_queries: int, num_keys: int, size: int, seconds: float) -> float:
    """Return the shortest of the calls within some seconds. The first call compiles and does not count."""
    q_key, k_key = jax.random.split(jax.random.key(0))
    queries = jax.random.normal(q_key, (batch, num_queries, size))
    keys = jax.random.normal(k_key, (batch, num_keys, size))
    inputs = module.init(jax.random.key(1), queries, keys, keys), queries, keys
    loss = _loss(module, return_weights=False)
    gradients = jax.jit(jax.grad(lambda params, queries, keys: loss(params, queries, keys, keys), argnums=(0, 1, 2)))
    jax.block_until_ready(gradients(*inputs))
    shortest, end = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        jax.block_until_ready(gradients(*inputs))
        shortest = min(shortest, time.perf_counter() - start)
    return shortest * 1e3


def tables(answers: Mapping[str, Any]) -> dict[str, Table]:
    """Build the tables of the answers, under the names that a page uses for them."""
    keys: Table = [("keys", "additive: weights of the 6", "scaled dot product", "largest difference")]
    for name in example_keys():
        found = answers["changed_keys"][name]
        weights = (" ".join(f"{w:.2f}" for w in found["weights"][kind][1]) for kind in KINDS)
        keys.append((name, *weights, f"{found['largest_difference']:.2f}"))
    lengths: Table = [("score", "parameters", "rank of W")]
    bilinear, projections = answers["different_lengths"].values()
    lengths.append(("qᵀ W k", f"{bilinear['parameters']}", f"{bilinear['rank']}"))
    for found in projections:
        label = f"(W_q q) · (W_k k), {found['num_hiddens']} feature{'s' * (found['num_hiddens'] > 1)}"
        lengths.append((label, f"{found['parameters']}", f"{found['rank']}"))
    sums: Table = [("score", "difference between queries", "largest gradient of a query")]
    for name, label in zip(
        ("sum", *KINDS), ("w · (W_q q + W_k k)", "w · tanh(W_q q + W_k k)", "q · k / √D"), strict=True
    ):
        numbers = answers["vector_sum"][name].values()
        sums.append((label, *(f"{number:.2f}" if number >= 0.005 else f"{number:.0e}" for number in numbers)))
    costs: Table = [
        ("attention", *(f"{name}: {b} × {q} × {k}" for name, (b, q, k) in answers["cost"]["shapes"].items()))
    ]
    for name, times in answers["cost"]["milliseconds"].items():
        costs.append((name, *(f"{time:.2f} ms" for time in times.values())))
    return {"changed keys": keys, "different lengths": lengths, "vector sum": sums, "cost": costs}


def rank_table(ranks: Sequence[Mapping[str, float]]) -> Table:
    """Build the table of `bilinear_ranks`."""
    rows: Table = [("singular values kept", "share of ‖W‖²", "alignment error")]
    return rows + [(f"{row['rank']:.0f}", f"{row['share']:.0%}", f"{row['alignment_error']:.3f}") for row in ranks]
