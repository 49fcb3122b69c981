"""Greedy search: at each step the most probable token. It knows ids and scores, no model and no vocabulary.

Source: d2l.ai, "Beam Search", greedy search.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from torch_ref.functional.trees import map_tensors

__all__ = ["SearchResult", "greedy_search"]

Step = Callable[[Tensor, Any, Any], tuple[Tensor, Any, Tensor | None]]


class SearchResult(NamedTuple):
    """B sentences, n = 1 hypothesis each, L = max_len positions."""

    ids: Tensor  # int64 [B, n, L], eos past the end
    lengths: Tensor  # int64 [B, n], eos counted when it was reached
    scores: Tensor  # [B, n], sum of log p
    token_scores: Tensor  # [B, n, L], log p of each token, 0 past the end
    weights: Tensor | None  # [B, n, L, K], attention, 0 past the end


@torch.no_grad()
def greedy_search(
    step: Step, state: Any, memory: Any, *, bos: int, eos: int, max_len: int, batch_size: int, min_len: int = 0
) -> SearchResult:
    """ids[t] = argmax over n of log p(n | ids[:t]), until eos or max_len; of equal tokens the lowest wins.

    step(tokens [1], state, memory) -> (log_probs [1, N], state, weights [1, K] or None): one sentence at a time.
    Shapes: every tensor of state and memory leads with batch_size. min_len: the fewest tokens, eos included.
    """
    found = []
    for b in range(batch_size):
        own_state, own_memory = (map_tensors(lambda x, b=b: x[b : b + 1], tree) for tree in (state, memory))
        found.append(search_sentence(step, own_state, own_memory, bos, eos, max_len, min_len))
    return SearchResult(*(None if parts[0] is None else torch.stack(parts) for parts in zip(*found, strict=True)))


def search_sentence(
    step: Step, state: Any, memory: Any, bos: int, eos: int, max_len: int, min_len: int
) -> SearchResult:
    """Search one sentence: the result without its axis B."""
    devices: list[Any] = []
    map_tensors(lambda x: devices.append(x.device), (state, memory))
    token = torch.tensor([bos], device=devices[0] if devices else None)
    ids: list[Tensor] = []
    scores, weights = [], []
    while len(ids) < max_len and (not ids or token != eos):
        log_probs, state, attended = step(token, state, memory)
        if len(ids) + 1 < min_len:
            log_probs = log_probs.index_fill(-1, torch.tensor([eos], device=log_probs.device), -torch.inf)
        token = log_probs.argmax(-1)
        ids.append(token)
        scores.append(log_probs[0, token])
        weights.append(attended)
    rest, token_scores = max_len - len(ids), torch.cat(scores)
    return SearchResult(
        ids=pad(torch.cat(ids), (0, rest), value=eos)[None],
        lengths=torch.tensor([len(ids)], device=token.device),
        scores=token_scores.sum()[None],
        token_scores=pad(token_scores, (0, rest))[None],
        weights=None if weights[0] is None else pad(torch.cat(weights), (0, 0, 0, rest))[None],
    )
