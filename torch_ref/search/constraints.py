"""The tokens that may come next in a hypothesis, whatever their probability.

Source for n-grams: Paulus et al. 2018, "A Deep Reinforced Model for Abstractive Summarization", section 2.5.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Constraints:
    """The constraints of one sentence."""

    eos: int
    min_len: int = 0  # the fewest tokens, eos included
    no_repeat_ngram: int | None = None  # n: no n tokens in a row occur twice
    prefix: tuple[int, ...] = ()  # the first tokens of every hypothesis
    last: int | None = None  # the place of the token that must be eos, at no cost

    def allow(self, token: int, ids: list[int]) -> bool:
        """Decide whether `token` may follow `ids`. The prefix overrules the other constraints."""
        if len(ids) < len(self.prefix):
            return token == self.prefix[len(ids)]
        if token == self.eos and len(ids) + 1 < self.min_len:
            return False
        return self.no_repeat_ngram is None or not repeats(ids, token, self.no_repeat_ngram)

    def apply(self, log_probs: Sequence[float], ids: list[int]) -> list[float]:
        """Set the log probability of forbidden tokens to -inf."""
        if len(ids) == self.last and len(ids) >= len(self.prefix):
            return [0.0 if token == self.eos else -torch.inf for token in range(len(log_probs))]
        return [log_p if self.allow(token, ids) else -torch.inf for token, log_p in enumerate(log_probs)]


def repeats(ids: list[int], token: int, n: int) -> bool:
    """Decide whether `token` would complete an n-gram that `ids` already contain."""
    if len(ids) < n - 1:
        return False
    earlier = [ids[i : i + n] for i in range(len(ids) - n + 1)]
    return [*ids, token][-n:] in earlier


def make_constraints(
    eos: int,
    batch_size: int,
    max_len: int,
    *,
    min_len: int = 0,
    no_repeat_ngram: int | None = None,
    prefix: Tensor | None = None,
    prefix_lens: Tensor | None = None,
    force_end: bool = False,
) -> list[Constraints]:
    """Make the constraints of each sentence; of prefix [B, P] the first prefix_lens [B] tokens count, or all."""
    last = max_len - 1 if force_end else None
    if prefix is None:
        return [Constraints(eos, min_len, no_repeat_ngram, last=last)] * batch_size
    lens = [prefix.shape[1]] * batch_size if prefix_lens is None else prefix_lens.tolist()
    rows = zip(prefix.tolist(), lens, strict=True)
    return [Constraints(eos, min_len, no_repeat_ngram, tuple(row[:length]), last) for row, length in rows]
