"""What the runs of a comparison come to: a row for each attention."""

import json
import os
import platform
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from train.compare_attention.bootstrap import SAMPLES, Draws, Interval, as_it_is, draw, interval, of_sample
from train.compare_attention.runs import Run
from train.data.corpus import Alignment, Pair
from train.data.tokens import detokenize
from train.translation.metrics import alignment_counts, alignment_error_of, bleu_counts, bleu_of

Row = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """A run that is done, and what came out on each test sentence."""

    attention: str
    summary: dict[str, Any]
    bleu: Int[np.ndarray, "sentence 10"]
    alignment: Int[np.ndarray, "sentence 2"] | None
    """None without attention, or without gold alignments."""


def read_test(folder: Path) -> Iterator[tuple[Pair, dict[str, Any]]]:
    """The lines of a run's `test.jsonl`, each with the pair that it tells of."""
    with (folder / "test.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            gold = None
            if "sure" in record:
                gold = Alignment(*(frozenset((i, j) for i, j in record[name]) for name in ("sure", "possible")))
            yield Pair(tuple(record["source"]), tuple(record["reference"]), gold), record


def read(run: Run) -> Outcome:
    """A run as it lies in its folder."""
    summary = json.loads((run.folder / "summary.json").read_text(encoding="utf-8"))
    tests = list(read_test(run.folder))
    said = [detokenize(record["translation"]) for _, record in tests]
    bleu = bleu_counts(said, [detokenize(list(pair.target)) for pair, _ in tests])
    gold = [pair.alignment for pair, _ in tests if pair.alignment is not None]
    alignment = None
    if summary["alignment_error_rate"] is not None:
        alignment = alignment_counts([{(i, j) for i, j in record["links"]} for _, record in tests], gold)
    return Outcome(run.attention, summary, bleu, alignment)


def compare(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """All that `--json` writes: what was done, where, and a row for each attention, with all its seeds."""
    attentions = list(dict.fromkeys(one.attention for one in outcomes))
    by_attention = [[one for one in outcomes if one.attention == attention] for attention in attentions]
    seeds = [one.summary["seed"] for one in by_attention[0]]
    first = outcomes[0].summary
    draws = draw(len(seeds), len(outcomes[0].bleu))
    rows = [_row(of_attention, by_attention[0], draws) for of_attention in by_attention]
    return {
        "preset": first["preset"],
        "epochs": first["epochs"],
        "seeds": seeds,
        "test_pairs": first["test_pairs"],
        "bleu_signature": first["bleu_signature"],
        "bootstrap_samples": SAMPLES,
        "alignment_error_of_diagonal": first.get("alignment_error_rate_of_diagonal"),
        "versions": first["versions"],
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "attentions": rows,
    }


def _row(runs: Sequence[Outcome], reference: Sequence[Outcome], draws: Draws) -> Row:
    """One attention's numbers, and its difference from the one that was named first."""

    def median(name: str) -> float | None:
        values = [run.summary[name] for run in runs]
        return None if None in values else statistics.median(values)

    bleu, beside_bleu = _intervals([run.bleu for run in runs], [run.bleu for run in reference], bleu_of, draws)
    error, beside_error = _intervals(
        [run.alignment for run in runs], [run.alignment for run in reference], alignment_error_of, draws
    )
    return {
        "attention": runs[0].attention,
        "bleu": bleu,
        "bleu_of_seeds": [run.summary["bleu"] for run in runs],
        "bleu_beside_first": beside_bleu,
        "alignment_error": error,
        "alignment_error_of_seeds": [run.summary["alignment_error_rate"] for run in runs],
        "alignment_error_beside_first": beside_error,
        "tokens_per_second": median("tokens_per_second"),
        "seconds": median("seconds"),
        "peak_memory_bytes": median("peak_memory_bytes"),
        "peak_device_memory_bytes": median("peak_device_memory_bytes"),
        "parameters": runs[0].summary["parameters"],
        "attention_parameters": runs[0].summary["attention_parameters"],
    }


def _intervals(
    counts: Sequence[Any], reference: Sequence[Any], score: Any, draws: Draws
) -> tuple[dict[str, float] | None, dict[str, float] | None]:
    """A score with its interval, and its difference from the reference's with its own; None where it is not known."""
    if any(of_run is None for of_run in counts):
        return None, None
    ours = np.stack(counts)
    value, samples = as_it_is(ours, score), of_sample(ours, score, draws)
    own = _as_json(interval(value, samples))
    if any(of_run is None for of_run in reference):
        return own, None
    theirs = np.stack(reference)
    difference = interval(value - as_it_is(theirs, score), samples - of_sample(theirs, score, draws))
    return own, _as_json(difference)


def _as_json(one: Interval) -> dict[str, float]:
    return {name: round(number, 6) for name, number in one._asdict().items()}
