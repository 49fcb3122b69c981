"""Beam search: the beam_size best hypotheses at each step. It knows ids and scores, no model and no vocabulary.

Source: d2l.ai, "Beam Search"; the penalties are those of Wu et al. 2016.
"""

import math
from typing import Any

import torch
from torch import Tensor

from torch_ref.functional.checks import check_count
from torch_ref.search.constraints import check_constraints
from torch_ref.search.greedy import Step
from torch_ref.search.penalties import check_coverage, check_penalties
from torch_ref.search.result import (
    IMPOSSIBLE,
    UNKNOWN,
    Hypothesis,
    SearchResult,
    check_log_probs,
    check_search,
    collect,
    sentence,
    token_tensor,
)


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
    min_len: int = 0,
    no_repeat_ngram: int | None = None,
    prefix: Tensor | None = None,
    prefix_lens: Tensor | None = None,
) -> SearchResult:
    """Keeps the beam_size hypotheses of the highest score, see Penalties.score.

    step(tokens [1], state, memory) -> (log_probs [1, N], state, weights [1, K] or None): one hypothesis at a time.
    A hypothesis that emitted eos is frozen: it competes with its own score and is extended no more. The search ends
    when all are frozen or at max_len. length counts eos; of equal scores the better hypothesis's continuation wins,
    then the likelier token, then the lower. A candidate of probability 0 is none; NaN among the candidates leaves
    nothing to choose.
    Shapes: every tensor of state and memory leads with batch_size. Returns SearchResult with n = beam_size, best first.
    """
    check_search(state, memory, max_len, batch_size)
    check_count("beam_size", beam_size, least=1)
    constraints = check_constraints(
        eos=eos,
        max_len=max_len,
        batch_size=batch_size,
        min_len=min_len,
        no_repeat_ngram=no_repeat_ngram,
        prefix=prefix,
        prefix_lens=prefix_lens,
    )
    penalties = check_penalties(
        batch_size=batch_size,
        length_penalty=length_penalty,
        length_norm=length_norm,
        coverage_penalty=coverage_penalty,
        source_lens=source_lens,
    )
    found = []
    for b in range(batch_size):
        memory_b = sentence(memory, b)
        beam = [Hypothesis(state=sentence(state, b))]
        for _ in range(max_len):
            if all(hypothesis.finished for hypothesis in beam):
                break
            candidates = []
            for hypothesis in beam:
                if hypothesis.finished:
                    candidates.append(hypothesis)
                    continue
                token = token_tensor(hypothesis.ids[-1] if hypothesis.ids else bos, state, memory)
                log_probs, new_state, weights = step(token, hypothesis.state, memory_b)
                check_log_probs(log_probs, bos=bos, eos=eos)
                check_coverage(penalties[b], weights)
                outputs = log_probs, weights
                attended = None if weights is None else weights[0]
                row = constraints[b].apply(log_probs[0].tolist(), hypothesis.ids)
                continued = [
                    hypothesis.extended(token_id, log_prob, attended, new_state, eos)
                    for token_id, log_prob in enumerate(row)
                    if log_prob != -torch.inf
                ]
                candidates += sorted(continued, key=lambda candidate: candidate.token_scores[-1], reverse=True)
            for candidate in candidates:
                candidate.score = penalties[b].score(candidate)
            if any(math.isnan(candidate.score) for candidate in candidates):
                beam = [UNKNOWN] * beam_size
                break
            # Python's sort is stable: of equal scores the better hypothesis's likelier token stays first.
            candidates.sort(key=lambda candidate: candidate.score, reverse=True)
            beam = candidates[:beam_size]
        found.append(beam + [IMPOSSIBLE] * (beam_size - len(beam)))
    return collect(found, outputs, eos=eos, max_len=max_len)
