"""Greedy search: at each step the most probable token. It knows ids and scores, no model and no vocabulary.

Source: d2l.ai, "Beam Search", greedy search.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_ref.search.constraints import Constraints, make_constraints
from torch_ref.search.result import IMPOSSIBLE, UNKNOWN, Hypothesis, SearchResult, collect, last_token, sentence

Step = Callable[[Tensor, Any, Any], tuple[Tensor, Any, Tensor | None]]


@torch.no_grad()
def greedy_search(
    step: Step, state: Any, memory: Any, *, bos: int, eos: int, max_len: int, batch_size: int, **constraints: Any
) -> SearchResult:
    """ids[t] = argmax over allowed n of log p(n | ids[:t]), until eos or max_len; of equal tokens the lowest wins.

    step(tokens [1], state, memory) -> (log_probs [1, N], state, weights [1, K] or None): one sentence at a time.
    Shapes: every tensor of state and memory leads with batch_size. Returns SearchResult with n = 1 and
    scores = sum of log p. constraints: see make_constraints.
    """
    constraints_of = make_constraints(eos, batch_size, max_len, **constraints)
    found = []
    for b in range(batch_size):
        hypothesis, memory_b = Hypothesis(state=sentence(state, b)), sentence(memory, b)
        while not hypothesis.finished and len(hypothesis.ids) < max_len:
            hypothesis, outputs = extend(hypothesis, step, most_probable, memory_b, constraints_of[b], bos)
        found.append([hypothesis])
    return collect(found, outputs, eos=eos, max_len=max_len)


def most_probable(row: list[float]) -> int:
    return row.index(max(row))


def extend(
    hypothesis: Hypothesis,
    step: Step,
    choose: Callable[[list[float]], int],
    memory: Any,
    constraints: Constraints,
    bos: int,
) -> tuple[Hypothesis, tuple[Tensor, Tensor | None]]:
    """Extend by the token that `choose` takes from the constrained log_probs; return the step's outputs too."""
    log_probs, state, weights = step(last_token(hypothesis, memory, bos), hypothesis.state, memory)
    row = constraints.apply(log_probs[0].tolist(), hypothesis.ids)
    if any(math.isnan(log_prob) for log_prob in row):
        return UNKNOWN, (log_probs, weights)
    token = choose(row)
    if row[token] == -torch.inf:
        return IMPOSSIBLE, (log_probs, weights)
    attended = None if weights is None else weights[0]
    return hypothesis.extended(token, row[token], attended, state, constraints.eos), (log_probs, weights)
