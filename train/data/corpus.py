"""Sentence pairs, and the three parts of a corpus: training, validation and test."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


class CorpusError(ValueError):
    """A corpus that cannot be used; the message says what was found and what to do."""


@dataclass(frozen=True)
class Alignment:
    """Gold links (source position, target position) between the words of a pair."""

    sure: frozenset[tuple[int, int]]
    possible: frozenset[tuple[int, int]]
    """Further links that are not wrong; the sure ones need not be repeated."""


class Pair(NamedTuple):
    """A sentence and its translation as text (NFC, without spaces around). The alignment serves the evaluation only."""

    source: str
    target: str
    alignment: Alignment | None = None


class Pairs(Protocol):
    """Pairs that can be read again and again. Those of a file are read from the file each time."""

    def __iter__(self) -> Iterator[Pair]: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Corpus:
    """Pairs for training, validation and test."""

    train: Pairs
    valid: tuple[Pair, ...]
    test: tuple[Pair, ...]
    report: dict[str, int] = field(default_factory=dict)
    """Counts of the lines and pairs that were used and, by reason, of those that were not."""


def counted(report: Mapping[str, int]) -> Iterator[str]:
    """Yield each count that is not 0 with its reason, whose plural becomes a singular after a one."""
    for reason, count in report.items():
        if count:
            one = re.sub(r"\b(line end|line|pair|sentence|source)s\b", r"\1", reason, count=1)
            yield f"{count} {one if count == 1 else reason}"
