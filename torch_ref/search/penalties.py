"""What a beam ranks hypotheses by.

Source: Wu et al. 2016, "Google's Neural Machine Translation System", equation 14; d2l.ai, "Beam Search", for the power.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_ref.functional.checks import check_choice, check_ids, check_shape
from torch_ref.search.result import Hypothesis

LEAST_COVERAGE = 1e-9  # what a position counts as that nobody attended to; log 0 is no number to rank by


@dataclass(frozen=True)
class Penalties:
    """How one sentence's hypotheses are scored."""

    length: float = 0.0  # alpha
    length_norm: str = "power"  # or "gnmt"
    coverage: float = 0.0  # beta
    source_len: int | None = None  # how many positions ought to be covered; None: all

    def score(self, hypothesis: Hypothesis) -> float:
        """sum of log p / norm(length) + beta * sum over source positions k of log min(sum_t weights[t, k], 1)"""
        length = len(hypothesis.ids)
        norm = ((5 + length) / 6) ** self.length if self.length_norm == "gnmt" else length**self.length
        score = hypothesis.total / norm
        if self.coverage:
            score += self.coverage * self.missing_coverage([w for w in hypothesis.weights if w is not None])
        return score

    def missing_coverage(self, weights: list[Tensor]) -> float:
        missing = 0.0
        for k in range(len(weights[0]) if self.source_len is None else self.source_len):
            attended = sum(float(weight[k]) for weight in weights)
            missing += math.log(min(max(attended, LEAST_COVERAGE), 1.0)) if attended == attended else torch.nan
        return missing


def check_penalties(
    *,
    batch_size: int,
    length_penalty: float,
    length_norm: str,
    coverage_penalty: float,
    source_lens: Tensor | None,
) -> list[Penalties]:
    """One for each sentence; source_lens [B]."""
    for name, penalty in (("length_penalty", length_penalty), ("coverage_penalty", coverage_penalty)):
        if not 0 <= penalty < math.inf:
            raise ValueError(f"{name} must be finite and at least 0; got {penalty}")
    check_choice("length_norm", length_norm, ("power", "gnmt"))
    if source_lens is None:
        return [Penalties(length_penalty, length_norm, coverage_penalty) for _ in range(batch_size)]
    check_shape("source_lens", source_lens, (batch_size,))
    check_ids("source_lens", source_lens, 1 << 31)
    return [Penalties(length_penalty, length_norm, coverage_penalty, n) for n in source_lens.tolist()]


def check_coverage(penalties: Penalties, weights: Tensor | None) -> None:
    """A step's weights [1, K] are what coverage is counted in."""
    if not penalties.coverage:
        return
    if weights is None:
        raise ValueError("coverage_penalty needs a step that returns weights; got None")
    if penalties.source_len is not None and penalties.source_len > weights.shape[-1]:
        raise ValueError(f"source_lens must be at most {weights.shape[-1]}; got {penalties.source_len}")
