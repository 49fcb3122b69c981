"""The result of a search, and the hypotheses that it consists of."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_ref.functional.trees import map_tensors


class SearchResult(NamedTuple):
    """B sentences, n hypotheses each (best first), L = max_len positions.

    A place that no hypothesis of positive probability fills has score -inf, length 0 and ids of eos. If NaN was among
    the log probabilities to choose from, the score is NaN and the rest the same.
    """

    ids: Tensor  # int64 [B, n, L], eos past the end
    lengths: Tensor  # int64 [B, n], eos counted when it was reached
    scores: Tensor  # [B, n], sum of log p; of a beam, with its penalties
    token_scores: Tensor  # [B, n, L], log p of each token, 0 past the end
    weights: Tensor | None  # [B, n, L, K], attention, 0 past the end


@dataclass
class Hypothesis:
    """One translation under construction."""

    ids: list[int] = field(default_factory=list)
    token_scores: list[float] = field(default_factory=list)
    weights: list[Tensor | None] = field(default_factory=list)  # each [K]
    state: Any = None  # the decoder's state after the last token; every tensor leads with 1
    total: float = 0.0  # sum of log p
    score: float = 0.0  # the score by which it is ranked
    finished: bool = False

    def extended(self, token: int, log_prob: float, weights: Tensor | None, state: Any, eos: int) -> "Hypothesis":
        total = self.total + log_prob
        return Hypothesis(
            ids=[*self.ids, token],
            token_scores=[*self.token_scores, log_prob],
            weights=[*self.weights, weights],
            state=state,
            total=total,
            score=total,
            finished=token == eos,
        )


IMPOSSIBLE = Hypothesis(score=-torch.inf, finished=True)  # no token had a positive probability
UNKNOWN = Hypothesis(score=torch.nan, finished=True)  # NaN was among the log probabilities


def sentence(tree: Any, index: int) -> Any:
    """Take one sentence's part of a state or a memory, its batch axis kept with size 1."""
    return map_tensors(lambda x: x[index : index + 1], tree)


def last_token(hypothesis: Hypothesis, memory: Any, bos: int) -> Tensor:
    """Make a tensor [1] of the last token, or of bos, on the device of the state and the memory."""
    devices: list[Any] = []
    map_tensors(lambda x: devices.append(x.device), (hypothesis.state, memory))
    return torch.tensor([hypothesis.ids[-1] if hypothesis.ids else bos], device=devices[0] if devices else None)


def collect(
    found: list[list[Hypothesis]], step_outputs: tuple[Tensor, Tensor | None], *, eos: int, max_len: int
) -> SearchResult:
    """Turn lists of hypotheses into tensors, with dtype and device of the log_probs and weights of any step."""
    log_probs, weights = step_outputs
    real = {"dtype": log_probs.dtype, "device": log_probs.device}
    shape = (len(found), len(found[0]))
    ids = torch.full((*shape, max_len), eos, device=log_probs.device)
    lengths = torch.zeros(shape, dtype=torch.int64, device=log_probs.device)
    scores = torch.zeros(shape, **real)
    token_scores = torch.zeros(*shape, max_len, **real)
    weights = None if weights is None else weights.new_zeros(*shape, max_len, weights.shape[-1])
    for b, hypotheses in enumerate(found):
        for n, hypothesis in enumerate(hypotheses):
            scores[b, n] = hypothesis.score
            lengths[b, n] = length = len(hypothesis.ids)
            ids[b, n, :length] = torch.tensor(hypothesis.ids)
            token_scores[b, n, :length] = torch.tensor(hypothesis.token_scores, **real)
            if weights is not None and length > 0:
                weights[b, n, :length] = torch.stack(hypothesis.weights)
    return SearchResult(ids, lengths, scores, token_scores, weights)
