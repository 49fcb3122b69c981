"""The results of the runs: scores with bootstrap intervals, as numbers and as a table.

The intervals are those of the percentile bootstrap (Efron, 1979; for BLEU, Koehn, 2004). Each sample draws as many
seeds and test sentences as there are, with replacement, and takes the mean over the drawn seeds of the score on the
drawn sentences. 95 % of the samples lie within the interval. All attentions use the same draws, so the difference of
two has an interval of its own. It is narrower than their two intervals suggest: a hard sentence is hard for both.

With n seeds, the variance between the seeds comes out too small by (n − 1) / n.
"""

import json
import os
import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from train.compare_attention.runs import Run
from train.data.corpus import Alignment, Pair
from train.data.tokens import detokenize
from train.translating.metrics import alignment_counts, alignment_error_of, bleu_counts, bleu_of

SAMPLES = 2000
Table = list[tuple[str, ...]]
Counts = Int[np.ndarray, "seed sentence part"]
"""The numbers that a score is computed from, for each seed and sentence."""
Score = Callable[[Int[np.ndarray, "part"]], float]
"""Computes the score of a corpus from the counts, summed over its sentences."""
SCORES: dict[str, Score] = {"bleu": bleu_of, "alignment_error": alignment_error_of}


class Draws(NamedTuple):
    """The samples of a bootstrap."""

    seeds: Int[np.ndarray, "sample seed"]
    """Which seeds are drawn."""
    times: Int[np.ndarray, "sample sentence"]
    """How often each sentence is drawn."""


def draw(num_seeds: int, num_sentences: int, samples: int = SAMPLES) -> Draws:
    """Draw seeds and sentences; the same numbers always give the same draws."""
    rng = np.random.default_rng(0)
    seeds = rng.integers(num_seeds, size=(samples, num_seeds))
    return Draws(seeds, rng.multinomial(num_sentences, np.full(num_sentences, 1 / num_sentences), size=samples))


def bootstrap(counts: Counts, score: Score, draws: Draws) -> Float[np.ndarray, "sample"]:
    """Compute the mean score of each sample."""
    sums = np.einsum("rn,snp->rsp", draws.times, counts)
    scores = np.array([[score(parts) for parts in by_seed] for by_seed in sums])
    return np.take_along_axis(scores, draws.seeds, axis=1).mean(axis=1)


def mean_score(counts: Counts, score: Score) -> float:
    """Compute the mean over the seeds of the score on all sentences."""
    return float(np.mean([score(parts) for parts in counts.sum(axis=1)]))


def interval(value: float, samples: Float[np.ndarray, "sample"]) -> dict[str, float]:
    """Return a value with the bounds of the middle 95 % of its samples."""
    low, high = np.quantile(samples, [0.025, 0.975]).tolist()
    return {"value": round(value, 6), "low": round(low, 6), "high": round(high, 6)}


@dataclass(frozen=True)
class Outcome:
    """The result of one run."""

    attention: str
    summary: dict[str, Any]
    counts: Mapping[str, Int[np.ndarray, "sentence part"] | None]
    """For each name in `SCORES`; None without attention or without gold alignments."""


def read_test(folder: Path) -> Iterator[tuple[Pair, dict[str, Any]]]:
    """Yield the lines of a run's `test.jsonl`, each with its sentence pair."""
    with (folder / "test.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            gold = None
            if "sure" in record:
                gold = Alignment(*(frozenset((i, j) for i, j in record[name]) for name in ("sure", "possible")))
            yield Pair(" ".join(record["source"]), " ".join(record["reference"]), gold), record


def read_outcome(run: Run) -> Outcome:
    """Read a run's results from its folder."""
    summary = json.loads((run.folder / "summary.json").read_text(encoding="utf-8"))
    tests = list(read_test(run.folder))
    translations = [detokenize(record["translation"]) for _, record in tests]
    bleu = bleu_counts(translations, [detokenize(pair.target.split()) for pair, _ in tests])
    alignment = None
    if summary["alignment_error_rate"] is not None:
        gold = [pair.alignment for pair, _ in tests if pair.alignment is not None]
        alignment = alignment_counts([{(i, j) for i, j in record["links"]} for _, record in tests], gold)
    return Outcome(run.attention, summary, {"bleu": bleu, "alignment_error": alignment})


def compare(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Build the content of `comparison.json`: the settings, and one row for each attention."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.attention, []).append(outcome)
    first = outcomes[0].summary
    seeds = [outcome.summary["seed"] for outcome in groups[outcomes[0].attention]]
    rows = [_summarize(runs) for runs in groups.values()]
    draws = draw(len(seeds), first["test_pairs"])
    for name in SCORES:
        _add_score(name, rows, list(groups.values()), draws)
    return {name: first[name] for name in ("preset", "epochs", "test_pairs", "bleu_signature", "versions")} | {
        "seeds": seeds,
        "bootstrap_samples": SAMPLES,
        "diagonal_alignment_error": first.get("alignment_error_rate_of_diagonal"),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "attentions": rows,
    }


def _summarize(runs: Sequence[Outcome]) -> dict[str, Any]:
    """Build the part of a row that needs no bootstrap."""
    names = {"bleu_by_seed": "bleu", "alignment_error_by_seed": "alignment_error_rate"}
    row: dict[str, Any] = {"attention": runs[0].attention}
    row |= {ours: [run.summary[name] for run in runs] for ours, name in names.items()}
    for name in ("tokens_per_second", "seconds", "peak_memory_bytes", "peak_device_memory_bytes"):
        values = [run.summary[name] for run in runs]
        row[name] = None if None in values else statistics.median(values)
    return row | {name: runs[0].summary[name] for name in ("parameters", "attention_parameters")}


def _add_score(name: str, rows: list[dict[str, Any]], groups: Sequence[Sequence[Outcome]], draws: Draws) -> None:
    """Add a score and its difference from the first row's, both with intervals; None where a score is not known."""
    reference = None
    for row, runs in zip(rows, groups, strict=True):
        row[name] = row[f"{name}_minus_first"] = None
        counts = [run.counts[name] for run in runs]
        if any(parts is None for parts in counts):
            continue
        stacked = np.array(counts)
        value, samples = mean_score(stacked, SCORES[name]), bootstrap(stacked, SCORES[name], draws)
        row[name] = interval(value, samples)
        if row is rows[0]:
            reference = value, samples
        if reference is not None:
            row[f"{name}_minus_first"] = interval(value - reference[0], samples - reference[1])


def table(comparison: Mapping[str, Any]) -> Table:
    """Build the table of the comparison; – stands for a number that is not known."""
    rows: Table = [
        ("attention", "BLEU", "alignment error", "tokens/s", "peak memory", "parameters", "attention parameters")
    ]
    for row in comparison["attentions"]:
        memory = row["peak_device_memory_bytes"] or row["peak_memory_bytes"]
        rows.append((
            row["attention"],
            _with_interval(row["bleu"], 1),
            _with_interval(row["alignment_error"], 3),
            f"{row['tokens_per_second']:,.0f}",
            "–" if memory is None else f"{memory / 1e6:,.0f} MB",
            f"{row['parameters']:,}",
            f"{row['attention_parameters']:,}",
        ))  # fmt: skip
    return rows


def _with_interval(score: Mapping[str, float] | None, digits: int) -> str:
    """Format a score as `96.5 [95.9, 97.0]`."""
    if score is None:
        return "–"
    return f"{score['value']:.{digits}f} [{score['low']:.{digits}f}, {score['high']:.{digits}f}]"


def notes(comparison: Mapping[str, Any]) -> list[str]:
    """Explain how to read the table, in lines to be printed below it."""
    first, *others = comparison["attentions"]
    lines = [
        f"BLEU and alignment error: means over {len(comparison['seeds'])} seed(s), with 95 % intervals of a bootstrap",
        f"over seeds and {comparison['test_pairs']} test sentences. Speed and memory: medians.",
    ]
    diagonal = comparison["diagonal_alignment_error"]
    if diagonal is not None:
        lines.append(f"Linking each word to the same place of its sentence has an alignment error of {diagonal:.3f}.")
    for name, label in (("bleu", "BLEU"), ("alignment_error", "alignment error")):
        differences = {row["attention"]: row[f"{name}_minus_first"] for row in others}
        same = [attention for attention, d in differences.items() if d is not None and d["low"] <= 0 <= d["high"]]
        if same:
            lines.append(f"No difference in {label} from {first['attention']} was found for: {', '.join(same)}.")
    return lines


def as_markdown(rows: Table) -> str:
    """Format a table with aligned columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
    cells.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)
