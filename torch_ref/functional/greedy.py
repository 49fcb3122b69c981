"""Greedy search: at each step the most probable token. It knows ids and scores, no model and no vocabulary.

Source: d2l.ai, "Beam Search", greedy search.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_ref.functional.search_result import (
    Hypothesis,
    SearchResult,
    check_log_probs,
    check_search,
    collect,
    sentence,
    token_tensor,
)

Step = Callable[[Tensor, Any, Any], tuple[Tensor, Any, Tensor | None]]


@torch.no_grad()
def greedy_search(
    step: Step, state: Any, memory: Any, *, bos: int, eos: int, max_len: int, batch_size: int
) -> SearchResult:
    """ids[t] = argmax over n of log p(n | ids[:t]), until eos or max_len; of equal tokens the lowest wins.

    step(tokens [1], state, memory) -> (log_probs [1, N], state, weights [1, K] or None): one sentence at a time.
    Shapes: every tensor of state and memory leads with batch_size. Returns SearchResult with n = 1 and
    scores = sum of log p.
    """
    check_search(state, memory, max_len, batch_size)
    found = []
    for b in range(batch_size):
        hypothesis, memory_b = Hypothesis(state=sentence(state, b)), sentence(memory, b)
        token = bos
        while not hypothesis.finished and len(hypothesis.ids) < max_len:
            log_probs, new_state, weights = step(token_tensor(token, state, memory), hypothesis.state, memory_b)
            check_log_probs(log_probs)
            row = log_probs[0].tolist()
            token = row.index(max(row))
            hypothesis = hypothesis.extended(token, row[token], None if weights is None else weights[0], new_state, eos)
        found.append([hypothesis])
    return collect(found, log_probs, eos=eos, max_len=max_len, penalty=0.0)
