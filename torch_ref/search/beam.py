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
    stop other than "all": see leave_beam.
    Returns SearchResult with n = beam_size, best first.
    """
    constraints_of = make_constraints(eos, batch_size, max_len, **constraints)
    penalties_of = make_penalties(batch_size, length_penalty, length_norm, coverage_penalty, source_lens)
    found = []
    for b in range(batch_size):
        memory_b = sentence(memory, b)
        beam = [Hypothesis(state=sentence(state, b))]
        if stop != "all":
            beam, outputs = leave_beam(
                beam, lambda h: continuations(h, step, memory_b, constraints_of[b], bos),  # noqa: B023
                penalties_of[b], stop=stop, max_len=max_len, beam_size=beam_size,
            )  # fmt: skip
            found.append(beam + [IMPOSSIBLE] * (beam_size - len(beam)))
            continue
        for _ in range(max_len):
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
                beam = [UNKNOWN] * beam_size
                break
            # Python's sort is stable: of equal scores the better hypothesis's more probable token stays first.
            candidates.sort(key=lambda candidate: candidate.score, reverse=True)
            beam = candidates[:beam_size]
        found.append(beam + [IMPOSSIBLE] * (beam_size - len(beam)))
    return collect(found, outputs, eos=eos, max_len=max_len)


def leave_beam(
    beam: list[Hypothesis], extend: Any, penalties: Any, *, stop: str, max_len: int, beam_size: int
) -> tuple[list[Hypothesis], Any]:
    """Search with a beam that finished hypotheses leave. It ranks by log p alone.

    Of the 2 * beam_size best candidates the finished ones among the first beam_size leave, and the best others go on.
    Ends when beam_size have left and (stop="first") or the best of the beam is no better than the worst of them, at
    its present length ("likely") or at max_len ("never"). Returns those that left, best first, and a step's outputs.
    Source: transformers.GenerationMixin._beam_search.
    """
    finished: list[Hypothesis] = []
    for length in range(1, max_len + 1):
        extended = [extend(hypothesis) for hypothesis in beam]
        outputs = extended[0][1]
        candidates = [candidate for continued, _ in extended for candidate in continued]
        if any(math.isnan(candidate.total) for candidate in candidates):
            return [UNKNOWN] * beam_size, outputs
        candidates.sort(key=lambda candidate: candidate.total, reverse=True)
        ends = [candidate.finished or length == max_len for candidate in candidates]
        for candidate, ended in zip(candidates[:beam_size], ends, strict=False):
            if ended:
                candidate.score = penalties.score(candidate)
                finished.append(candidate)
        finished = sorted(finished, key=lambda hypothesis: hypothesis.score, reverse=True)[:beam_size]
        going_on = zip(candidates[: 2 * beam_size], ends, strict=False)
        beam = [candidate for candidate, ended in going_on if not ended][:beam_size]
        if not beam:
            break
        if len(finished) == beam_size:
            hoped = penalties.normalized(beam[0].total, max_len if stop == "never" else length)
            if stop == "first" or hoped <= finished[-1].score:
                break
    return finished, outputs


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
