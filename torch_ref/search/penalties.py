"""The score by which a beam ranks its hypotheses.

Source: Wu et al. 2016, "Google's Neural Machine Translation System", equation 14; d2l.ai, "Beam Search", for the power.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_ref.search.result import Hypothesis

LEAST_COVERAGE = 1e-9  # the coverage of a position without any attention; hypotheses cannot be ranked by log 0


@dataclass(frozen=True)
class Penalties:
    """The settings by which one sentence's hypotheses are scored."""

    length: float = 0.0  # alpha
    length_norm: str = "power"  # or "gnmt"
    coverage: float = 0.0  # beta
    source_len: int | None = None  # how many positions count for the coverage; None: all

    def score(self, hypothesis: Hypothesis) -> float:
        """sum of log p / norm(length) + beta * sum over source positions k of log min(sum_t weights[t, k], 1)"""
        score = self.normalized(hypothesis.total, len(hypothesis.ids))
        if self.coverage:
            score += self.coverage * self.missing_coverage(hypothesis.weights)
        return score

    def normalized(self, total: float, length: int) -> float:
        """sum of log p / norm(length)"""
        return total / (((5 + length) / 6) ** self.length if self.length_norm == "gnmt" else length**self.length)

    def missing_coverage(self, weights: list[Tensor]) -> float:
        missing = 0.0
        for k in range(len(weights[0]) if self.source_len is None else self.source_len):
            attended = sum(float(weight[k]) for weight in weights)
            missing += math.log(min(max(attended, LEAST_COVERAGE), 1.0)) if attended == attended else torch.nan
        return missing


def make_penalties(
    batch_size: int, length_penalty: float, length_norm: str, coverage_penalty: float, source_lens: Tensor | None
) -> list[Penalties]:
    """Make the penalties of each sentence; source_lens [B]."""
    if length_norm not in ("power", "gnmt"):
        raise ValueError(f"length_norm must be power or gnmt; got {length_norm!r}")
    lens = [None] * batch_size if source_lens is None else source_lens.tolist()
    return [Penalties(length_penalty, length_norm, coverage_penalty, source_len) for source_len in lens]
