"""Padded arrays of ids, and the plan that says which examples are in which batch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Int

from train.data.vocabulary import BOS, EOS, PAD, Vocabulary

if TYPE_CHECKING:
    from train.data.corpus import Pair

Ids = Any
"""Integers: NumPy's on the host, JAX's within a step."""

PADDING_ROW = -1
"""In a plan: a row without an example, which fills up a batch. Its sentences have length 0, so it has no loss."""


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


def encode(
    pairs: Sequence["Pair"], source: Vocabulary, target: Vocabulary, source_length: int, target_length: int
) -> Examples:
    """Turn pairs into padded ids; the lengths include the special tokens."""
    sources, source_lens = pad([[*source.encode(pair.source), EOS] for pair in pairs], source_length)
    targets, target_lens = pad([[BOS, *target.encode(pair.target), EOS] for pair in pairs], target_length)
    return Examples(sources, source_lens, targets, target_lens)


class Bucket(NamedTuple):
    """Examples that are padded to the same widths."""

    source_width: int
    target_width: int
    members: Int[np.ndarray, "example"]
    """Indices into the examples."""


class Group(NamedTuple):
    """Batches of the same widths, which one call trains on."""

    bucket: Bucket
    rows: Int[np.ndarray, "step batch"]
    """Indices into the examples, `PADDING_ROW` where there is none."""


def make_buckets(examples: Examples, num_widths: int) -> tuple[Bucket, ...]:
    """Sort the examples into at most `num_widths` buckets by their lengths; the last one has the full widths.

    A width is a quantile of the lengths: with four, a quarter of the sources is no longer than the first width. A pair
    is in the first bucket that both of its sides fit.
    """
    shares = np.arange(1, num_widths) / num_widths
    widths = [
        [*np.quantile(lens, shares, method="higher").tolist(), ids.shape[1]]
        for lens, ids in ((examples.source_lens, examples.sources), (examples.target_lens, examples.targets))
    ]
    first = np.maximum(*(np.searchsorted(w, lens) for w, lens in zip(widths, examples[1::2], strict=True)))
    buckets = (
        Bucket(source_width, target_width, np.flatnonzero(first == i).astype(np.int32))
        for i, (source_width, target_width) in enumerate(zip(*widths, strict=True))
    )
    return tuple(bucket for bucket in buckets if bucket.members.size)


def plan(buckets: Sequence[Bucket], batch_size: int, steps: int, seed: int, epoch: int) -> list[Group]:
    """Plan an epoch: a pure function of its arguments, in which each example occurs once.

    Args:
        buckets: from `make_buckets`.
        batch_size: rows of a batch; the last batch of a bucket is filled up with `PADDING_ROW`.
        steps: batches of a group; the last group of a bucket is filled up with batches of padding rows alone.
        seed, epoch: what the order depends on, of the examples within each bucket and of the groups.
    """
    random = np.random.Generator(np.random.Philox([seed, epoch]))
    groups = []
    for bucket in buckets:
        batches = in_order(bucket.members.size, batch_size)
        order = random.permutation(bucket.members)
        batches = np.where(batches == PADDING_ROW, PADDING_ROW, order[batches])
        missing = -len(batches) % steps
        batches = np.pad(batches, ((0, missing), (0, 0)), constant_values=PADDING_ROW)
        groups += [Group(bucket, rows) for rows in batches.reshape(-1, steps, batch_size)]
    return groups if len(buckets) == 1 else [groups[i] for i in random.permutation(len(groups))]


def in_order(num_examples: int, batch_size: int) -> Int[np.ndarray, "batch row"]:
    """Plan an evaluation: the examples one after another, the last batch filled up with `PADDING_ROW`."""
    num_batches = -(-num_examples // batch_size)
    rows = np.full(num_batches * batch_size, PADDING_ROW, np.int32)
    rows[:num_examples] = np.arange(num_examples)
    return rows.reshape(num_batches, batch_size)


def take(examples: Examples, rows: Int[np.ndarray, "*step batch"], bucket: Bucket | None = None) -> Examples:
    """Return the examples of the given rows, cut to the widths of their bucket; a padding row has length 0."""
    sources, targets = examples.sources, examples.targets
    if bucket is not None:
        sources, targets = sources[:, : bucket.source_width], targets[:, : bucket.target_width]
    exists = rows != PADDING_ROW
    return Examples(
        sources[rows], examples.source_lens[rows] * exists, targets[rows], examples.target_lens[rows] * exists
    )
