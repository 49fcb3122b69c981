"""How many directions a trained bilinear attention uses: its W with the largest singular values alone.

Two projections to r features, (W_q q) · (W_k k), are the bilinear score of W_qᵀ W_k, whose rank is at most r. So what
is lost when W keeps r singular values tells how narrow two projections might be; nothing is trained anew.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from train.compare_attention.results import read_test
from train.compare_attention.runs import Run
from train.data.batches import encode, in_order
from train.step import make_force_decode
from train.translation.metrics import alignment_error_rate, peaks
from train.translation.saved_run import SavedRun
from train.translation.translator import load_model

KERNEL = "decoder.attention.W.weight"


def of_bilinear(runs: Sequence[Run]) -> list[dict[str, float]]:
    """For 1, 2, 4, … singular values: their share of ‖W‖² and the alignment error, means over the runs.

    Empty without runs, or where the test set has no gold alignment.
    """
    of_runs = [_of_run(run) for run in runs]
    return [
        {name: round(float(np.mean([row[name] for row in rows])), 6) for name in rows[0]} | {"rank": rows[0]["rank"]}
        for rows in zip(*of_runs, strict=True)
    ]


def _of_run(run: Run) -> list[dict[str, float]]:
    saved = SavedRun.load(run.folder)
    pairs = [pair for pair, _ in read_test(run.folder)]
    gold = [pair.alignment for pair in pairs if pair.alignment is not None]
    if len(gold) < len(pairs):
        return []
    examples = encode(pairs, saved.source, saved.target, saved.max_source_words + 1, saved.max_target_len + 1)
    rows = in_order(len(pairs), saved.search.batch_size)
    force_decode = make_force_decode(load_model(saved)[0])
    left, values, right = np.linalg.svd(saved.weights[KERNEL])
    size = len(values)
    found = []
    for rank in [2**i for i in range(size.bit_length()) if 2**i < size] + [size]:
        kernel = (left[:, :rank] * values[:rank]) @ right[:rank]
        _, params = load_model(dataclasses.replace(saved, weights=saved.weights | {KERNEL: kernel}))
        weights: Any = force_decode(params, examples, rows)
        links = [
            peaks(matrix, len(pair.source), len(pair.target))
            for matrix, pair in zip(np.asarray(weights), pairs, strict=False)  # rows that nobody fills come last
        ]
        share = float((values[:rank] ** 2).sum() / (values**2).sum())
        found.append({"rank": rank, "share": share, "alignment_error": alignment_error_rate(links, gold)})
    return found
