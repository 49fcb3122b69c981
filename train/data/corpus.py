"""Sentence pairs, and their division into training, validation and test."""

from collections.abc import Iterator
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
