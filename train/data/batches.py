"""Padded arrays of ids, and the plan of which examples stand in which batch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Int

from train.data.vocabulary import BOS, EOS, PAD, Vocabulary

if TYPE_CHECKING:
    from train.data.corpus import Pair  # who has batches already needs no corpus

Ids = Any
"""Integers, in NumPy on the host or in JAX within a step."""

NOBODY = -1
"""The example of a row that fills up the last batch: it has length 0 and counts for nothing."""


class Examples(NamedTuple):
    """Sentence pairs as ids; a source ends with `<eos>`, a target stands between `<bos>` and `<eos>`."""

    sources: Ids
    """`[examples, S]`"""
    source_lens: Ids
    """`[examples]`"""
    targets: Ids
    """`[examples, T]`"""
    target_lens: Ids
    """`[examples]`, `<bos>` and `<eos>` counted in."""


def pad(sentences: Sequence[Sequence[int]], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids `[len(sentences), length]` filled up with `<pad>`, and how long each sentence is.

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


def encode_sources(
    sentences: Sequence[Sequence[str]], vocabulary: Vocabulary, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Source words as padded ids with `<eos>`, and their lengths."""
    return pad([[*vocabulary.encode(words), EOS] for words in sentences], length)


def encode(
    pairs: Sequence["Pair"], source: Vocabulary, target: Vocabulary, source_length: int, target_length: int
) -> Examples:
    """Pairs as padded ids; the lengths count the special tokens."""
    sources, source_lens = encode_sources([pair.source for pair in pairs], source, source_length)
    targets, target_lens = pad([[BOS, *target.encode(pair.target), EOS] for pair in pairs], target_length)
    return Examples(sources, source_lens, targets, target_lens)


def plan(num_examples: int, batch_size: int, seed: int, epoch: int) -> Int[np.ndarray, "batch row"]:
    """Which example stands in which row of which batch of an epoch: a pure function of its arguments.

    Each example occurs once; the last batch is filled up with `NOBODY`. The global step is the position in the plan:
    step s is batch s % num_batches of epoch s // num_batches, on however many devices its rows are spread.
    """
    order = np.random.Generator(np.random.Philox([seed, epoch])).permutation(num_examples).astype(np.int32)
    rows = in_order(num_examples, batch_size)
    return np.where(rows == NOBODY, NOBODY, order[rows])


def in_order(num_examples: int, batch_size: int) -> Int[np.ndarray, "batch row"]:
    """The examples one after another, the last batch filled up with `NOBODY`: the plan of an evaluation."""
    num_batches = -(-num_examples // batch_size)
    rows = np.full(num_batches * batch_size, NOBODY, np.int32)
    rows[:num_examples] = np.arange(num_examples)
    return rows.reshape(num_batches, batch_size)
