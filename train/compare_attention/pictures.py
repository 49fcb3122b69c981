"""Pictures of a comparison: the scores, and the attention weights of one sentence."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from jax_attn.plots import save, show_alignments
from train.compare_attention.results import read_test
from train.compare_attention.runs import Run
from train.data.batches import pad
from train.data.corpus import Alignment, Pair
from train.data.vocabulary import BOS, EOS
from train.runs.run_folder import RunFolder, SavedRun
from train.translating.translator import load_model

MAX_WORDS = 7
"""How long the sentence of attention.png may be."""
MAX_DISTANCE = {"bleu": 15.0, "alignment_error": 0.15}
"""A score that is further from the best is written at the edge, so that the others can be told apart."""

Weights = list[Float[np.ndarray, "target source"]]


def draw(comparison: Mapping[str, Any], runs: Sequence[Run], folder: Path) -> None:
    """Draw scores.png, and attention.png with the weights of every attention for one test sentence."""
    draw_scores(comparison, folder / "scores.png")
    pair = choose_pair([pair for pair, _ in read_test(runs[0].folder)])
    shown = [run for run in runs if run.seed == runs[0].seed and run.attention != "none"]
    if pair is None or not shown:
        return
    weights: Weights = []
    for run in shown:
        saved = RunFolder(run.folder).load()
        model, params = load_model(saved)
        weights += read_weights(jax.jit(model.apply), params, saved, [pair])
    words = (*pair.source.split(), "<eos>"), (*pair.target.split(), "<eos>")
    gold = pair.alignment or Alignment(frozenset(), frozenset())
    links = {"sure": gold.sure, "possible": gold.possible - gold.sure}
    figure = show_alignments(
        [(*words, matrix) for matrix in weights],
        columns=4,
        titles=[run.attention for run in shown],
        links={name: [cells] * len(shown) for name, cells in links.items() if cells},
        ylabel="reference",
    )
    save(figure, folder / "attention.png")


def choose_pair(pairs: Sequence[Pair]) -> Pair | None:
    """Choose the short pair whose words change their order most, by the gold alignment if there is one."""
    short = [pair for pair in pairs if max(len(pair.source.split()), len(pair.target.split())) <= MAX_WORDS]
    return max(short, key=_steps_back, default=None)


def _steps_back(pair: Pair) -> int:
    """Count the target words that are linked to an earlier source word than the target word before."""
    if pair.alignment is None:
        return 0
    first = {j: min(i for i, k in pair.alignment.sure if k == j) for _, j in pair.alignment.sure}
    return int((np.diff([first[j] for j in sorted(first)]) < 0).sum())


def read_weights(forward: Callable[..., Any], params: Any, run: SavedRun, pairs: Sequence[Pair]) -> Weights:
    """Feed the targets of the pairs to a run's model, 100 at a time, and return the attention weights.

    Each result has one row for each target token and one column for each source token, `<eos>` included.

    Args:
        forward: the jitted `apply` of the model.
        params: the parameters to use.
    """
    found: Weights = []
    for start in range(0, len(pairs), 100):
        batch = pairs[start : start + 100]
        sources, lens = pad([[*run.source.encode(p.source), EOS] for p in batch], run.max_source_len + 1)
        targets, _ = pad([[BOS, *run.target.encode(p.target)] for p in batch], run.max_target_len)
        weights = np.asarray(forward(params, sources, targets, lens)[1])
        found += [
            w[: len(p.target.split()) + 1, : len(p.source.split()) + 1] for w, p in zip(weights, batch, strict=True)
        ]
    return found


def draw_scores(comparison: Mapping[str, Any], path: Path) -> None:
    """Draw BLEU, and the alignment error where it is known, with an interval for each attention."""
    rows = comparison["attentions"][::-1]
    labels = {"bleu": "BLEU (higher is better)", "alignment_error": "alignment error (lower is better)"}
    names = [name for name in labels if any(row[name] for row in rows)]
    figure = Figure(figsize=(4.2 * len(names) + 0.8, 0.36 * len(rows) + 1.2), layout="constrained")
    for axis, name in zip(figure.subplots(1, len(names), sharey=True, squeeze=False)[0], names, strict=True):
        _draw_score(axis, rows, name)
        axis.set(xlabel=labels[name], ylim=(-0.6, len(rows) - 0.4))
        axis.set_yticks(range(len(rows)), [row["attention"] for row in rows])
        axis.grid(axis="x", color="0.9")
    figure.supxlabel("dot: mean over the seeds; bar: 95 % interval; ticks: single seeds", fontsize="small")
    save(figure, path)


def _draw_score(axis: Any, rows: Sequence[Mapping[str, Any]], name: str) -> None:
    values = {y: row[name]["value"] for y, row in enumerate(rows) if row[name] is not None}
    best = max(values.values()) if name == "bleu" else min(values.values())
    for y, value in values.items():
        if abs(value - best) > MAX_DISTANCE[name]:
            text, x, side = (f"← {value:.1f}", 0, "left") if name == "bleu" else (f"{value:.3f} →", 1, "right")
            axis.text(x, y, text, transform=axis.get_yaxis_transform(), ha=side, va="center", color="tab:blue")
            continue
        by_seed = rows[y][f"{name}_by_seed"]
        axis.plot([rows[y][name]["low"], rows[y][name]["high"]], [y, y], color="tab:blue", linewidth=2)
        axis.plot(by_seed, [y] * len(by_seed), "|", color="0.35", markersize=9)
        axis.plot(value, y, "o", color="tab:blue", markersize=6)
