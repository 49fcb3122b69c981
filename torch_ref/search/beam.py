"""Beam search: the beam_size best hypotheses at each step. It knows ids and scores, no model and no vocabulary.

Source: d2l.ai, "Beam Search"; the penalties are those of Wu et al. 2016.
"""

import math
from typing import Any

import torch
from torch import Tensor

from torch_ref.search.constraints import Constraints, make_constraints
from torch_ref.search.greedy import Step
from torch_ref.search.penalties import make_penalties
from torch_ref.search.result import IMPOSSIBLE, UNKNOWN, Hypothesis, SearchResult, collect, last_token, sentence


@torch.no_grad()
def beam_search(
    step: Step,
    state: Any,
    memory: Any,
    *,
    bos: int,
    eos: int,
    max_len: int,
    batch_size: int,
    beam_size: int = 5,
    length_penalty: float = 0.0,
    length_norm: str = "power",
    coverage_penalty: float = 0.0,
    source_lens: Tensor | None = None,
    stop: str = "all",
    **constraints: Any,
) -> SearchResult:
    """Keep the beam_size hypotheses of the highest score, see Penalties.score.

    step, state, memory and constraints as in greedy_search; the step takes one hypothesis at a time.
    A hypothesis that emitted eos is finished: it competes with its own score and is extended no more. The search ends
    when all are finished or at max_len. The length counts eos. Of equal scores the continuation of the better
    hypothesis wins, then the more probable token, then the lower. A candidate of probability 0 is left out. If a
    candidate's score is NaN, the sentence has no result.
    With stop other than "all" the beam ranks by log p alone, and finished hypotheses leave it, if they are among the
    best beam_size candidates. It ends when beam_size have left and (stop="first") or the best of the beam is no better
    than the worst of them, at its present length ("likely") or at max_len ("never"). The result is those that left.
    Source: transformers.GenerationMixin._beam_search.
    Returns SearchResult with n = beam_size, best first.
    """
    constraints_of = make_constraints(eos, batch_size, max_len, **constraints)
    penalties_of = make_penalties(batch_size, length_penalty, length_norm, coverage_penalty, source_lens)
    found = []
    for b in range(batch_size):
        memory_b = sentence(memory, b)
        beam = [Hypothesis(state=sentence(state, b))]
        left: list[Hypothesis] = []  # finished hypotheses outside the beam
        for length in range(1, max_len + 1):
            if all(hypothesis.finished for hypothesis in beam):
                break
            candidates = []
            for hypothesis in beam:
                if hypothesis.finished:
                    candidates.append(hypothesis)
                else:
                    continued, outputs = continuations(hypothesis, step, memory_b, constraints_of[b], bos)
                    candidates += continued
            for candidate in candidates:
                candidate.score = penalties_of[b].score(candidate)
            if any(math.isnan(candidate.score) for candidate in candidates):
                beam = left = [UNKNOWN] * beam_size
                break
            # Python's sort is stable: of equal scores the better hypothesis's more probable token stays first.
            if stop == "all":
                candidates.sort(key=lambda candidate: candidate.score, reverse=True)
                beam = candidates[:beam_size]
                continue
            candidates.sort(key=lambda candidate: candidate.total, reverse=True)
            left += [candidate for candidate in candidates[:beam_size] if candidate.finished or length == max_len]
            beam = [candidate for candidate in candidates if not candidate.finished and length < max_len][:beam_size]
            left = sorted(left, key=lambda candidate: candidate.score, reverse=True)[:beam_size]
            if beam and len(left) == beam_size:
                hoped = penalties_of[b].normalized(beam[0].total, max_len if stop == "never" else length)
                if stop == "first" or hoped <= left[-1].score:
                    break
        best = beam if stop == "all" else left
        found.append(best + [IMPOSSIBLE] * (beam_size - len(best)))
    return collect(found, outputs, eos=eos, max_len=max_len)


def continuations(
    hypothesis: Hypothesis, step: Step, memory: Any, constraints: Constraints, bos: int
) -> tuple[list[Hypothesis], tuple[Tensor, Tensor | None]]:
    """Extend the hypothesis by each possible token, the most probable first; return the step's outputs too."""
    log_probs, state, weights = step(last_token(hypothesis, memory, bos), hypothesis.state, memory)
    row = constraints.apply(log_probs[0].tolist(), hypothesis.ids)
    attended = None if weights is None else weights[0]
    continued = [
        hypothesis.extended(token, log_prob, attended, state, constraints.eos)
        for token, log_prob in enumerate(row)
        if log_prob != -torch.inf
    ]
    continued.sort(key=lambda candidate: candidate.token_scores[-1], reverse=True)
    return continued, (log_probs, weights)
