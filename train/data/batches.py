"""Batches of padded ids, and the plan that says which pairs are in which batch."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from train.data.sentences import PairIds, Sentences
from train.data.vocabulary import BOS, EOS, PAD

Ids = Any
"""Integers: NumPy's on the host, JAX's within a step."""

PADDING_ROW = -1
"""In a plan: a row without a pair, which fills up a batch. Its sentences have length 0, so it has no loss."""

MAX_PLACES = 256
"""The widths that `make_buckets` chooses from, at most."""


class Examples(NamedTuple):
    """Sentence pairs as ids: sources with `<eos>` at the end, targets between `<bos>` and `<eos>`."""

    sources: Ids
    """`[examples, S]`"""
    source_lens: Ids
    """`[examples]`"""
    targets: Ids
    """`[examples, T]`"""
    target_lens: Ids
    """`[examples]`, `<bos>` and `<eos>` included."""


class Bucket(NamedTuple):
    """Pairs that are padded to the same widths."""

    source_width: int
    """With `<eos>`."""
    target_width: int
    """With `<bos>` and `<eos>`."""
    batch_size: int
    """Rows of a batch."""
    members: Int[np.ndarray, "example"]
    """Indices into the pairs."""


class Group(NamedTuple):
    """Batches of the same widths, which one call trains on."""

    bucket: Bucket
    rows: Int[np.ndarray, "step batch"]
    """Indices into the pairs, `PADDING_ROW` where there is none."""

    @property
    def num_steps(self) -> int:
        """The number of batches that are not padding rows alone."""
        return int((self.rows != PADDING_ROW).any(axis=1).sum())

    def part(self, start: int, end: int) -> "Group":
        """Return the group with the batches in [start, end) alone, filled up with batches of padding rows."""
        rows = np.full_like(self.rows, PADDING_ROW)
        rows[: end - start] = self.rows[start:end]
        return self._replace(rows=rows)


def make_buckets(
    train: PairIds,
    num_widths: int,
    batch_size: int = 64,
    batch_tokens: int | None = None,
    steps: int | None = None,
) -> tuple[Bucket, ...]:
    """Sort the pairs into at most `num_widths` buckets, whose widths are chosen so that little is padded.

    Args:
        batch_size: rows of a batch, if `batch_tokens` is None.
        batch_tokens: the target tokens of a batch with padding, at most: a bucket of short sentences has more rows.
        steps: the width of both sides of the last bucket, if sentences are padded to a given length.
    """
    source_lens, target_lens = train.source.lens + 1, train.target.lens + 2
    widths = _choose_widths(source_lens, target_lens, num_widths)
    if steps is not None:
        widths[-1] = steps, steps
    buckets = []
    for (source_width, target_width), members in zip(widths, _members(widths, train), strict=True):
        rows = batch_size if batch_tokens is None else max(1, batch_tokens // target_width)
        buckets.append(Bucket(source_width, target_width, rows, members))
    return tuple(bucket for bucket in buckets if bucket.members.size)


def refill(buckets: Sequence[Bucket], pairs: PairIds) -> tuple[Bucket, ...]:
    """Sort other pairs into the buckets; none of them may be longer than the widest bucket."""
    widths = [(bucket.source_width, bucket.target_width) for bucket in buckets]
    return tuple(
        bucket._replace(members=members) for bucket, members in zip(buckets, _members(widths, pairs), strict=True)
    )


def _members(widths: Sequence[tuple[int, int]], pairs: PairIds) -> list[Int[np.ndarray, "example"]]:
    """Return the indices of the pairs of each bucket: a pair is in the first that both of its sides fit."""
    source_widths, target_widths = zip(*widths, strict=True)
    first = np.maximum(
        np.searchsorted(source_widths, pairs.source.lens + 1), np.searchsorted(target_widths, pairs.target.lens + 2)
    )
    return [np.flatnonzero(first == i).astype(np.int32) for i in range(len(widths))]


def _choose_widths(
    source_lens: Int[np.ndarray, "pair"], target_lens: Int[np.ndarray, "pair"], num_widths: int
) -> list[tuple[int, int]]:
    """Choose ascending widths (source, target) that minimise the tokens with padding, by dynamic programming.

    Pairs are ordered by the larger of their sides' ranks, so that one order serves both sides. A bucket is a range of
    this order, and its widths are the longest sentences of the range and of those before.
    """
    # Few bytes for each pair, since there may be many millions: a rank is the number of sentences that are no longer.
    ranks = [np.cumsum(np.bincount(lens)).astype(np.int32)[lens] for lens in (source_lens, target_lens)]
    largest = np.maximum(*ranks)
    order = np.unique(largest)
    place = np.searchsorted(order, largest).astype(np.int32)
    if len(order) > MAX_PLACES:
        place = place * MAX_PLACES // len(order)
    num_places = int(place.max()) + 1
    widths = np.zeros((2, num_places), np.int64)
    for side, lens in zip(widths, (source_lens, target_lens), strict=True):
        np.maximum.at(side, place, lens)
    widths = np.maximum.accumulate(widths, axis=1)
    ends = _cheapest_ends(widths.sum(axis=0), np.bincount(place, minlength=num_places), num_widths)
    return [(int(source), int(target)) for source, target in widths[:, ends].T]


def _cheapest_ends(
    width: Int[np.ndarray, "place"], count: Int[np.ndarray, "place"], num_ranges: int
) -> Int[np.ndarray, "range"]:
    """Return the last places of at most `num_ranges` ranges with the smallest Σ count · (width at the range's end)."""
    total = np.concatenate([[0], np.cumsum(count)])
    cost: Float[np.ndarray, "start end"] = (total[None, 1:] - total[:-1, None]) * width[None, :].astype(float)
    cost[np.tril_indices(len(width), -1)] = np.inf  # a range does not end before it starts
    best = cost[0]  # the cost of everything up to an end, with the ranges so far
    starts = []
    for _ in range(1, min(num_ranges, len(width))):
        candidates = np.concatenate([[0.0], best[:-1]])[:, None] + cost
        starts.append(candidates.argmin(axis=0))
        best = candidates.min(axis=0)
    ends = [len(width) - 1]
    for start in reversed(starts):
        if start[ends[-1]] > 0:
            ends.append(int(start[ends[-1]]) - 1)
    return np.array(ends[::-1])


def padding_share(buckets: Sequence[Bucket], pairs: PairIds) -> float:
    """Return the share of a pass's tokens, of both sides, that are padding; rows without a pair count as padding."""
    real = int(pairs.source.ids.size + pairs.target.ids.size) + 3 * len(pairs)
    padded = sum(
        -(-bucket.members.size // bucket.batch_size) * bucket.batch_size * (bucket.source_width + bucket.target_width)
        for bucket in buckets
    )
    return 1 - real / padded


def plan(buckets: Sequence[Bucket], steps: int, seed: int, epoch: int) -> list[Group]:
    """Plan an epoch: a pure function of its arguments, in which each pair occurs once.

    Args:
        buckets: from `make_buckets`; the last batch of a bucket is filled up with `PADDING_ROW`.
        steps: batches of a group; the last group of a bucket is filled up with batches of padding rows alone.
        seed, epoch: what the order depends on, of the pairs within each bucket and of the groups.
    """
    random = np.random.Generator(np.random.Philox([seed, epoch]))
    groups = []
    for bucket in buckets:
        batches = in_order(bucket.members.size, bucket.batch_size)
        order = random.permutation(bucket.members)
        batches = np.where(batches == PADDING_ROW, PADDING_ROW, order[batches])
        missing = -len(batches) % steps
        batches = np.pad(batches, ((0, missing), (0, 0)), constant_values=PADDING_ROW)
        groups += [Group(bucket, rows) for rows in batches.reshape(-1, steps, bucket.batch_size)]
    return groups if len(buckets) == 1 else [groups[i] for i in random.permutation(len(groups))]


def in_order(num_examples: int, batch_size: int) -> Int[np.ndarray, "batch row"]:
    """Plan an evaluation: the examples one after another, the last batch filled up with `PADDING_ROW`."""
    num_batches = -(-num_examples // batch_size)
    rows = np.full(num_batches * batch_size, PADDING_ROW, np.int32)
    rows[:num_examples] = np.arange(num_examples)
    return rows.reshape(num_batches, batch_size)


def take(pairs: PairIds, rows: Int[np.ndarray, "*step batch"], bucket: Bucket) -> Examples:
    """Return the pairs of the given rows, padded to the widths of the bucket; a padding row has length 0."""
    sources, source_lens = _pad(pairs.source, rows, bucket.source_width, 0)
    targets, target_lens = _pad(pairs.target, rows, bucket.target_width, 1)
    targets[..., 0] = BOS
    return Examples(sources, source_lens, targets, target_lens)


def _pad(
    sentences: Sentences, rows: Int[np.ndarray, "*step batch"], width: int, first: int
) -> tuple[Int[np.ndarray, "*step batch {width}"], Int[np.ndarray, "*step batch"]]:
    """Pad sentences to `[*rows.shape, width]`, from the column `first` on, with `<eos>`; also return the lengths."""
    exists = rows != PADDING_ROW
    lens = np.where(exists, sentences.lens[rows], 0)
    if lens.size and lens.max() + first + 1 > width:
        raise ValueError(f"sentences must have at most {width - first - 1} tokens; got {lens.max()}")
    column = np.arange(width) - first
    ids = np.full((*rows.shape, width), PAD, np.int32)
    inside = (column >= 0) & (column < lens[..., None])
    ids[inside] = sentences.ids[(sentences.offsets[rows][..., None] + column)[inside]]
    ids[(column == lens[..., None]) & exists[..., None]] = EOS
    return ids, np.where(exists, lens + first + 1, 0).astype(np.int32)


def pad(sentences: Sequence[Sequence[int]], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Pad sentences to ids `[len(sentences), length]`; also return their lengths.

    Raises:
        ValueError: a sentence longer than `length`.
    """
    lens = np.array([len(sentence) for sentence in sentences], np.int32)
    if lens.size and lens.max() > length:
        raise ValueError(f"sentences must have at most {length} tokens; got {lens.max()}")
    ids = np.full((len(sentences), length), PAD, np.int32)
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = sentence
    return ids, lens
