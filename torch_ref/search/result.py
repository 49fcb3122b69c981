"""What a search returns, and the hypotheses it is made of."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_ref.functional.checks import check_count, check_floating, shape_text
from torch_ref.functional.trees import map_tensors


class SearchResult(NamedTuple):
    """B sentences, n hypotheses each (best first), L = max_len positions.

    A place that no hypothesis of positive probability fills has score -inf, length 0 and ids of eos. Where NaN was
    among the log probabilities to choose from, the score is NaN and the rest the same.
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
    state: Any = None  # what the decoder needs to take the next step; every tensor leads with 1
    total: float = 0.0
    score: float = 0.0  # what it is ranked by
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


IMPOSSIBLE = Hypothesis(score=-torch.inf, finished=True)  # nothing of positive probability could be said
UNKNOWN = Hypothesis(score=torch.nan, finished=True)  # NaN was among the log probabilities


def sentence(tree: Any, index: int) -> Any:
    """One sentence's part of a state or a memory, its batch axis kept with size 1."""
    return map_tensors(lambda x: x[index : index + 1], tree)


def token_tensor(token: int, *trees: Any) -> Tensor:
    """The token as a tensor [1], on the device where the state and the memory live."""
    devices: list[torch.device] = []

    def note(x: Tensor) -> Tensor:
        devices.append(x.device)
        return x

    map_tensors(note, trees)
    return torch.tensor([token], device=devices[0] if devices else None)


def check_search(state: Any, memory: Any, max_len: int, batch_size: int) -> None:
    check_count("max_len", max_len, least=1)
    check_count("batch_size", batch_size, least=1)

    def leads(name: str, x: Tensor) -> Tensor:
        if x.ndim == 0 or x.shape[0] != batch_size:
            raise ValueError(f"every tensor of {name} must be [{batch_size}, ...]; got {shape_text(x.shape)}")
        return x

    map_tensors(lambda x: leads("state", x), state)
    map_tensors(lambda x: leads("memory", x), memory)


def check_log_probs(log_probs: Tensor, *, bos: int, eos: int) -> None:
    """Only what a step returns tells how large the vocabulary is, and so whether bos and eos are in it."""
    check_floating("log_probs", log_probs)
    if log_probs.ndim != 2 or log_probs.shape[0] != 1:
        raise ValueError(f"the step's log_probs must be [1, N] for tokens [1]; got {shape_text(log_probs.shape)}")
    for name, token in (("bos", bos), ("eos", eos)):
        if not 0 <= token < log_probs.shape[1]:
            raise ValueError(f"{name} must be in [0, {log_probs.shape[1]}); got {token}")


def collect(
    found: list[list[Hypothesis]], step_outputs: tuple[Tensor, Tensor | None], *, eos: int, max_len: int
) -> SearchResult:
    """Lists of hypotheses -> tensors; the log_probs and weights of any step lend their dtype and device."""
    log_probs, weights = step_outputs
    real = {"dtype": log_probs.dtype, "device": log_probs.device}
    shape = (len(found), len(found[0]))
    ids = torch.full((*shape, max_len), eos, device=log_probs.device)
    lengths = torch.zeros(shape, dtype=torch.int64, device=log_probs.device)
    scores = torch.full(shape, -torch.inf, **real)
    token_scores = torch.zeros(*shape, max_len, **real)
    weights = None if weights is None else weights.new_zeros(*shape, max_len, weights.shape[-1])
    for b, hypotheses in enumerate(found):
        for n, hypothesis in enumerate(hypotheses):
            scores[b, n], length = hypothesis.score, len(hypothesis.ids)
            if length == 0:
                continue
            ids[b, n, :length] = torch.tensor(hypothesis.ids)
            lengths[b, n] = length
            token_scores[b, n, :length] = torch.tensor(hypothesis.token_scores, **real)
            if weights is not None:
                weights[b, n, :length] = torch.stack(hypothesis.weights)
    return SearchResult(ids, lengths, scores, token_scores, weights)
