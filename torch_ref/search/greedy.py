"""Greedy search: at each step the most probable token. It knows ids and scores, no model and no vocabulary.

Source: d2l.ai, "Beam Search", greedy search.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_ref.search.constraints import Constraints, check_constraints
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

Step = Callable[[Tensor, Any, Any], tuple[Tensor, Any, Tensor | None]]


@torch.no_grad()
def greedy_search(
    step: Step,
    state: Any,
    memory: Any,
    *,
    bos: int,
    eos: int,
    max_len: int,
    batch_size: int,
    min_len: int = 0,
    no_repeat_ngram: int | None = None,
    prefix: Tensor | None = None,
    prefix_lens: Tensor | None = None,
) -> SearchResult:
    """ids[t] = argmax over allowed n of log p(n | ids[:t]), until eos or max_len; of equal tokens the lowest wins.

    step(tokens [1], state, memory) -> (log_probs [1, N], state, weights [1, K] or None): one sentence at a time.
    Shapes: every tensor of state and memory leads with batch_size. Returns SearchResult with n = 1 and
    scores = sum of log p.
    """
    check_search(state, memory, max_len, batch_size)
    constraints = check_constraints(
        eos=eos,
        max_len=max_len,
        batch_size=batch_size,
        min_len=min_len,
        no_repeat_ngram=no_repeat_ngram,
        prefix=prefix,
        prefix_lens=prefix_lens,
    )
    found = []
    for b in range(batch_size):
        hypothesis, memory_b = Hypothesis(state=sentence(state, b)), sentence(memory, b)
        while not hypothesis.finished and len(hypothesis.ids) < max_len:
            hypothesis, outputs = extend(hypothesis, step, likeliest, memory_b, constraints[b], bos)
        found.append([hypothesis])
    return collect(found, outputs, eos=eos, max_len=max_len)


def likeliest(row: list[float]) -> int:
    return row.index(max(row))


def extend(
    hypothesis: Hypothesis,
    step: Step,
    choose: Callable[[list[float]], int],
    memory: Any,
    constraints: Constraints,
    bos: int,
) -> tuple[Hypothesis, tuple[Tensor, Tensor | None]]:
    """One step with the token that `choose` takes from the constrained log_probs; and what the step returned."""
    token = token_tensor(hypothesis.ids[-1] if hypothesis.ids else bos, hypothesis.state, memory)
    log_probs, state, weights = step(token, hypothesis.state, memory)
    check_log_probs(log_probs, bos=bos, eos=constraints.eos)
    row = constraints.apply(log_probs[0].tolist(), hypothesis.ids)
    if any(math.isnan(log_prob) for log_prob in row):
        return UNKNOWN, (log_probs, weights)
    token_id = choose(row)
    if row[token_id] == -torch.inf:
        return IMPOSSIBLE, (log_probs, weights)
    attended = None if weights is None else weights[0]
    return hypothesis.extended(token_id, row[token_id], attended, state, constraints.eos), (log_probs, weights)
