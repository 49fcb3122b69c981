"""Sentences as ids in one flat array, which lies in a temporary file beyond a size."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from tempfile import SpooledTemporaryFile

import numpy as np
from jaxtyping import Int

from train.data.corpus import CorpusError

IN_MEMORY = 64 * 2**20
"""Bytes of ids that are held in memory. More are in a file without a name, which ends with the program."""


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
        self._file = SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115  it is open as long as the array that it holds
        self._lens = array("i")

    def extend(self, sentences: Sequence[Sequence[int]]) -> None:
        """Add sentences; CorpusError if the temporary file cannot hold them."""
        if self._prefix:
            sentences = [[*self._prefix, *sentence] for sentence in sentences]
        lens = list(map(len, sentences))
        ids = np.fromiter(chain.from_iterable(sentences), self._dtype, sum(lens))
        try:
            self._file.write(ids.tobytes())
        except OSError as error:
            raise CorpusError(
                f"the ids of the sentences cannot be written to a temporary file: {error.strerror}; "
                "name a folder with more space by the environment's TMPDIR"
            ) from error
        self._lens.extend(lens)

    def finish(self) -> Sentences:
        """Return all sentences."""
        offsets = np.concatenate([[0], np.cumsum(self._lens, dtype=np.int64)])
        size = int(offsets[-1])
        if size * self._dtype.itemsize > IN_MEMORY:
            self._file.flush()
            ids: np.ndarray = np.memmap(self._file, self._dtype, "r", shape=(size,))  # type: ignore[call-overload]
        else:
            self._file.seek(0)
            ids = np.frombuffer(self._file.read(), self._dtype)
        self._file.close()  # a mapped file stays until the array is gone
        return Sentences(ids, offsets)
