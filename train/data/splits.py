"""Divide pairs into training, validation and test, by a hash of their sentences or by their order in the file."""

import math
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, UInt64

from train.data.corpus import CorpusError, Pair

Hashes = UInt64[np.ndarray, "pair"]
Indices = Int[np.ndarray, "chosen"]

SPARE = 1.5
"""A region is expected to hold this many times the pairs that are taken from it."""

MOST, SHARE = 1000, 50
"""By default one in `SHARE` source sentences is held out for validation, and one for test, but at most `MOST`."""


class Parts(NamedTuple):
    """The indices of the pairs of each part, in the order of the file (validation and test: in the order of use)."""

    train: Indices
    valid: Indices
    test: Indices


def hash_pairs(pairs: Iterable[Pair]) -> tuple[Hashes, Hashes]:
    """Hash the source and the target of each pair to a number in [0, 2⁶⁴), the same on every machine.

    Sentences that differ only in case or spaces have the same hash.
    """
    digests = bytearray(), bytearray()
    for source, target, _ in pairs:
        digests[0].extend(_digest(source))
        digests[1].extend(_digest(target))
    sources, targets = (np.frombuffer(bytes(side), ">u8").astype(np.uint64) for side in digests)
    return sources, targets


def _digest(text: str) -> bytes:
    return blake2b(" ".join(text.lower().split()).encode(), digest_size=8).digest()


def split_by_hash(
    sources: Hashes, targets: Hashes, train: int | None, valid: int | None, test: int | None, report: Counter[str]
) -> Parts:
    """Hold out the sources with the smallest hashes for test and those with the largest for validation.

    A region at each end is kept out of training. Its edge is a power of 1/2, and the sentences nearest the end are
    used, one pair of each source. So until a file has grown by half, no sentence that was held out is trained on, and
    none is held out that was trained on. Targets of a region are kept out of training too.

    Args:
        train: the number of pairs for training, drawn from all over the file; None takes all.
        valid, test: the numbers of pairs; None holds out one in `SHARE` of the sources, at most `MOST`.

    Raises:
        CorpusError: there are too few different sources.
    """
    distinct, first = np.unique(sources, return_index=True)
    default = min(MOST, max(1, len(distinct) // SHARE))
    valid, test = (default if size is None else size for size in (valid, test))
    try:
        test_region, test_part = _hold_out(distinct, first, test, np.ones(len(first), bool))
        fresh = ~np.isin(targets[first], targets[test_part])
        # The largest hashes become the smallest.
        valid_region, valid_part = _hold_out(~distinct[::-1], first[::-1], valid, fresh[::-1])
        held = np.isin(sources, np.concatenate([sources[test_region], sources[valid_region]]))
        shared = ~held & np.isin(targets, targets[held])
        rest = np.flatnonzero(~held & ~shared)
        if train is not None:
            smallest = np.argsort(sources[rest], kind="stable")[:train]
            report["pairs not drawn for training"] += len(rest) - len(smallest)
            rest = np.sort(rest[smallest])
        if not len(rest) or len(rest) < (train or 1):
            raise ValueError(f"{len(rest)} pairs are left for training")
    except ValueError as error:
        raise _too_few(len(sources), len(distinct), train, valid, test, str(error)) from None
    report["pairs near the held-out ones, kept for a larger file"] += int(held.sum()) - len(valid_part) - len(test_part)
    report["pairs left out of training for a target that is held out"] += int(shared.sum())
    return Parts(rest, valid_part, test_part)


def _hold_out(hashes: Hashes, pairs: Indices, size: int, usable: Bool[np.ndarray, "source"]) -> tuple[Indices, Indices]:
    """Return the pairs of the region of the smallest hashes, and the first `size` usable ones of them.

    Args:
        hashes: of the different sources, in ascending order.
        pairs: a pair of each source.

    Raises:
        ValueError: not even half of all sources holds enough.
    """
    if not size:
        return pairs[:0], pairs[:0]
    halvings = max(1, math.floor(math.log2(max(1.0, len(hashes) / (SPARE * size)))))
    for halving in range(halvings, 0, -1):
        region = int(np.searchsorted(hashes, np.uint64(2 ** (64 - halving))))
        found = pairs[:region][usable[:region]]
        if len(found) >= size:
            return pairs[:region], found[:size]
    raise ValueError(f"only {len(found)} can be held out where {size} are needed")


def _too_few(pairs: int, distinct: int, train: int | None, valid: int, test: int, found: str) -> CorpusError:
    sources = "source sentence" if distinct == 1 else "source sentences"
    return CorpusError(
        f"{pairs} pairs with only {distinct} different {sources} are too few: it takes "
        f"{'at least 1' if train is None else train} for training, {valid} for validation and {test} for test "
        f"({found}); ask for fewer with --corpus.train, --corpus.valid or --corpus.test, or give files with --valid "
        "and --test"
    )


def split_in_order(
    sources: Hashes, targets: Hashes, train: int, valid: int | None, test: int | None, report: Counter[str]
) -> Parts:
    """Take the first pairs for training, the next ones that share no sentence with them for validation, then for test.

    Raises:
        CorpusError: there are too few pairs.
    """
    default = min(MOST, max(1, train // SHARE))
    valid, test = (default if size is None else size for size in (valid, test))
    parts = [np.arange(min(train, len(sources)))]
    start = train
    for size in (valid, test):
        known = np.concatenate(parts)
        fresh = ~np.isin(sources[start:], sources[known]) & ~np.isin(targets[start:], targets[known])
        part = start + np.flatnonzero(fresh)[:size]
        if len(part):
            report["held-out pairs passed over for a sentence that is known"] += int(part[-1]) + 1 - start - len(part)
            start = int(part[-1]) + 1
        parts.append(part)
    if [len(part) for part in parts] != [train, valid, test]:
        found = f"they give {len(parts[0])}, {len(parts[1])} and {len(parts[2])}"
        raise _too_few(len(sources), len(np.unique(sources)), train, valid, test, found)
    return Parts(*parts)
