"""Beam search: the beam_size best hypotheses at each step. It knows ids and scores, no model and no vocabulary.

Source: d2l.ai, "Beam Search"; the length penalty divides by length**alpha as there.
"""

from typing import Any

import torch

from torch_ref.functional.checks import check_count
from torch_ref.functional.greedy import Step
from torch_ref.functional.search_result import (
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
) -> SearchResult:
    """Keeps the beam_size hypotheses of the highest score = sum of log p / length**length_penalty.

    step(tokens [1], state, memory) -> (log_probs [1, N], state, weights [1, K] or None): one hypothesis at a time.
    A hypothesis that emitted eos is frozen: it competes with its own score and is extended no more. The search ends
    when all are frozen or at max_len. length counts eos; of equal scores the lower (beam, token) wins. A candidate of
    probability 0 is none.
    Shapes: every tensor of state and memory leads with batch_size. Returns SearchResult with n = beam_size, best first.
    """
    check_search(state, memory, max_len, batch_size)
    check_count("beam_size", beam_size, least=1)
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
                check_log_probs(log_probs)
                weights = None if weights is None else weights[0]
                for token_id, log_prob in enumerate(log_probs[0].tolist()):
                    if log_prob > -torch.inf:
                        candidates.append(hypothesis.extended(token_id, log_prob, weights, new_state, eos))
            # Python's sort is stable: of equal scores the lower beam, then the lower token, stays first.
            candidates.sort(key=lambda hypothesis: hypothesis.score(length_penalty), reverse=True)
            beam = candidates[:beam_size]
        found.append(beam + [Hypothesis() for _ in range(beam_size - len(beam))])
    return collect(found, log_probs, eos=eos, max_len=max_len, penalty=length_penalty)
