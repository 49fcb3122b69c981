"""What a hypothesis may say next, whatever its probability.

Source for n-grams: Paulus et al. 2018, "A Deep Reinforced Model for Abstractive Summarization", section 2.5.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_ref.functional.checks import check_count, check_ids, check_integer, check_shape, shape_text


@dataclass(frozen=True)
class Constraints:
    """The constraints of one sentence."""

    eos: int
    min_len: int = 0  # the fewest tokens, eos included
    no_repeat_ngram: int | None = None  # n: no n tokens in a row occur twice
    prefix: tuple[int, ...] = ()  # how every hypothesis begins

    def allow(self, token: int, ids: list[int]) -> bool:
        """Whether `token` may follow `ids`. The prefix is said whatever the rest demands."""
        if len(ids) < len(self.prefix):
            return token == self.prefix[len(ids)]
        if token == self.eos and len(ids) + 1 < self.min_len:
            return False
        return self.no_repeat_ngram is None or not repeats(ids, token, self.no_repeat_ngram)

    def apply(self, log_probs: Sequence[float], ids: list[int]) -> list[float]:
        """-inf for what may not come; the rest keeps its log probability."""
        if any(not 0 <= token < len(log_probs) for token in self.prefix):
            raise ValueError(f"prefix must lie in 0..{len(log_probs) - 1}; got {list(self.prefix)}")
        return [log_p if self.allow(token, ids) else -torch.inf for token, log_p in enumerate(log_probs)]


def repeats(ids: list[int], token: int, n: int) -> bool:
    """Whether `token` would complete an n-gram that `ids` hold already."""
    if len(ids) < n - 1:
        return False
    said = [ids[i : i + n] for i in range(len(ids) - n + 1)]
    return [*ids, token][-n:] in said


def check_constraints(
    *,
    eos: int,
    max_len: int,
    batch_size: int,
    min_len: int,
    no_repeat_ngram: int | None,
    prefix: Tensor | None,
    prefix_lens: Tensor | None,
) -> list[Constraints]:
    """One for each sentence. prefix [B, P] with P <= max_len, of which prefix_lens [B] count.

    Errors: ValueError for sizes and shapes, TypeError for dtypes.
    """
    check_count("min_len", min_len)
    if min_len > max_len:
        raise ValueError(f"min_len must be at most max_len, {max_len}; got {min_len}")
    if no_repeat_ngram is not None:
        check_count("no_repeat_ngram", no_repeat_ngram, least=1)
    if prefix is None:
        if prefix_lens is not None:
            raise ValueError("prefix_lens needs a prefix; got None")
        return [Constraints(eos, min_len, no_repeat_ngram) for _ in range(batch_size)]
    check_integer("prefix", prefix)
    check_shape("prefix", prefix, (batch_size, "P"))
    if prefix.shape[1] > max_len:
        raise ValueError(f"prefix must be [{batch_size}, at most {max_len}]; got {shape_text(prefix.shape)}")
    if prefix_lens is None:
        prefix_lens = torch.full((batch_size,), prefix.shape[1])
    check_shape("prefix_lens", prefix_lens, (batch_size,))
    check_ids("prefix_lens", prefix_lens, prefix.shape[1] + 1)
    rows = zip(prefix.tolist(), prefix_lens.tolist(), strict=True)
    return [Constraints(eos, min_len, no_repeat_ngram, tuple(row[:length])) for row, length in rows]
