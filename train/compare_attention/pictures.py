"""The comparison in pictures: the scores, and what each attention looks at in the same sentences."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from jax_attn.plots import save, show_alignments
from train.compare_attention.results import read_test
from train.compare_attention.runs import Run
from train.data.batches import encode, in_order
from train.data.corpus import Alignment, Pair
from train.step import make_force_decode
from train.translation.saved_run import SavedRun
from train.translation.translator import load_model

SENTENCES, LONGEST = 3, 7
"""How many sentences are shown, and of how many words on either side."""


def draw(comparison: Mapping[str, Any], runs: Sequence[Run], folder: Path) -> None:
    """scores.png; attention-NAME.png, three test sentences; attention.png, the first of them under every attention."""
    _draw_scores(comparison, folder / "scores.png")
    pairs = telling([pair for pair, _ in read_test(runs[0].folder)])
    attending = [run for run in runs if run.seed == runs[0].seed and run.attention != "none"]
    if not pairs or not attending:
        return
    weights = {run.attention: read_along(SavedRun.load(run.folder), pairs) for run in attending}
    for name, of_attention in weights.items():
        save(_show(pairs, of_attention, len(pairs)), folder / f"attention-{name}.png")
    first = [pairs[0]] * len(weights)
    save(_show(first, [w[0] for w in weights.values()], 4, list(weights)), folder / "attention.png")


def telling(pairs: Sequence[Pair]) -> list[Pair]:
    """The short pairs whose words change their order most, by the gold alignment where there is one."""
    short = [pair for pair in pairs if max(len(pair.source), len(pair.target)) <= LONGEST]
    return sorted(short, key=_steps_back, reverse=True)[:SENTENCES]


def _steps_back(pair: Pair) -> int:
    """How often the sure links lead to an earlier source word than those of the target word before."""
    if pair.alignment is None:
        return 0
    first = {j: min(i for i, k in pair.alignment.sure if k == j) for _, j in pair.alignment.sure}
    return int((np.diff([first[j] for j in sorted(first)]) < 0).sum())


def read_along(run: SavedRun, pairs: Sequence[Pair]) -> list[Float[np.ndarray, "target source"]]:
    """A run's attention while the pairs' targets are read: a row for each target token, `<eos>` last on both sides."""
    model, params = load_model(run)
    examples = encode(pairs, run.source, run.target, run.max_source_words + 1, run.max_target_len + 1)
    found: Any = make_force_decode(model)(params, examples, in_order(len(pairs), len(pairs)))
    weights = np.asarray(jax.device_get(found))
    return [w[: len(p.target) + 1, : len(p.source) + 1] for w, p in zip(weights, pairs, strict=True)]


def _show(pairs: Sequence[Pair], weights: Sequence[Any], columns: int, titles: Sequence[str] | None = None) -> Any:
    """Heatmaps with the gold alignment's links framed."""
    examples = [((*pair.source, "<eos>"), (*pair.target, "<eos>"), w) for pair, w in zip(pairs, weights, strict=True)]
    gold = [pair.alignment or Alignment(frozenset(), frozenset()) for pair in pairs]
    links = {"sure": [a.sure for a in gold], "possible": [a.possible - a.sure for a in gold]}
    known = any(pair.alignment for pair in pairs)
    return show_alignments(examples, columns, titles=titles, links=links if known else None)


NEAR = {"bleu": 15.0, "alignment_error": 0.15}
"""What is further from the best is a number at the edge, so that the others can be told apart."""


def _draw_scores(comparison: Mapping[str, Any], path: Path) -> None:
    """A dot and its interval for each attention: BLEU, and the alignment error where it is known."""
    from matplotlib.figure import Figure

    rows = comparison["attentions"][::-1]
    kinds = [("bleu", "BLEU"), ("alignment_error", "alignment error")]
    shown = [(name, label) for name, label in kinds if any(row[name] for row in rows)]
    figure = Figure(figsize=(4.2 * len(shown) + 0.8, 0.36 * len(rows) + 1.2), layout="constrained")
    for axis, (name, label) in zip(figure.subplots(1, len(shown), sharey=True, squeeze=False)[0], shown, strict=True):
        _draw_score(axis, rows, name)
        axis.set_yticks(range(len(rows)), [row["attention"] for row in rows])
        axis.set_ylim(-0.6, len(rows) - 0.4)
        axis.set_xlabel(label)
        axis.grid(axis="x", color="0.9")
        axis.set_axisbelow(True)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
    figure.supxlabel("dot: mean over the seeds; bar: 95 % of the bootstrap; ticks: single seeds", fontsize="small")
    save(figure, path)


def _draw_score(axis: Any, rows: Sequence[Mapping[str, Any]], name: str) -> None:
    values = {y: row[name]["value"] for y, row in enumerate(rows) if row[name] is not None}
    best = max(values.values()) if name == "bleu" else min(values.values())
    for y, value in values.items():
        if abs(value - best) > NEAR[name]:
            text, x, side = (f"← {value:.1f}", 0, "left") if name == "bleu" else (f"{value:.3f} →", 1, "right")
            axis.text(x, y, text, transform=axis.get_yaxis_transform(), ha=side, va="center", color="tab:blue")
            continue
        of_seeds = rows[y][f"{name}_of_seeds"]
        axis.plot([rows[y][name]["low"], rows[y][name]["high"]], [y, y], color="tab:blue", linewidth=2)
        axis.plot(of_seeds, [y] * len(of_seeds), "|", color="0.35", markersize=9)
        axis.plot(value, y, "o", color="tab:blue", markersize=6)
