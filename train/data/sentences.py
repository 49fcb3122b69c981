"""Sentences as ids in one flat array."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True)
class Sentences:
    """Ids without <bos> and <eos>; sentence `i` is `ids[offsets[i] : offsets[i + 1]]`."""

    ids: Int[np.ndarray, "token"]
    """uint16 where the vocabulary fits, else int32."""
    offsets: Int[np.ndarray, "sentence+1"]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lens(self) -> Int[np.ndarray, "sentence"]:
        """The number of tokens of each sentence."""
        return np.diff(self.offsets).astype(np.int32)


@dataclass(frozen=True)
class PairIds:
    """The two sides of pairs as ids."""

    source: Sentences
    target: Sentences

    def __len__(self) -> int:
        return len(self.source)


class SentenceWriter:
    """Collect sentences one batch after another, each after the prefix of its vocabulary."""

    def __init__(self, vocabulary_size: int, prefix: Sequence[int] = ()) -> None:
        self._dtype, self._prefix = np.dtype(np.uint16 if vocabulary_size <= 2**16 else np.int32), prefix
        self._ids = [np.empty(0, self._dtype)]
        self._lens = array("i")

    def extend(self, sentences: Sequence[Sequence[int]]) -> None:
        """Add sentences."""
        if self._prefix:
            sentences = [[*self._prefix, *sentence] for sentence in sentences]
        lens = list(map(len, sentences))
        self._ids.append(np.fromiter(chain.from_iterable(sentences), self._dtype, sum(lens)))
        self._lens.extend(lens)

    def finish(self) -> Sentences:
        """Return all sentences."""
        offsets = np.concatenate([[0], np.cumsum(self._lens, dtype=np.int64)])
        return Sentences(np.concatenate(self._ids), offsets)
