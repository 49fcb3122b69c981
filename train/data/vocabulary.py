"""Turn text into ids and back: what every vocabulary has."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Self

from train.setting import ConfigError

PAD, BOS, EOS, UNKNOWN = range(4)
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")


class Vocabulary(ABC):
    """The tokens of one language. The ids of `SPECIAL` are 0 to 3; no text is encoded as <pad>, <bos> or <eos>."""

    tokens: Sequence[str]
    """A name for each id."""
    lower_case: bool
    """Whether the case of letters is lost."""
    shortens = True
    """Whether a text that is too long for the model is read in part; else it is an error."""
    languages: Sequence[str] = ()
    """The codes of the languages that the vocabulary knows, if text begins with a token that names its language."""

    @property
    def prefix(self) -> list[int]:
        """The ids that a model reads before those of a text, or must write: that of the language."""
        return []

    def in_language(self, code: str) -> Self:
        """Return the vocabulary for text in another language; ConfigError if it does not know that."""
        raise ConfigError(f"the vocabulary has no languages to choose from; got {code}")

    def __len__(self) -> int:
        return len(self.tokens)

    @abstractmethod
    def cut(self, text: str) -> list[str]:
        """Cut text into tokens, unknown ones as they stand in the text; one for each id of `encode`."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without <bos> and <eos>."""

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of many texts."""
        return [self.encode(text) for text in texts]

    def sample_all(self, texts: Sequence[str], seed: int) -> list[list[int]]:
        """Return ids with random cuts, where the vocabulary has them: a pure function of texts and seed."""
        return self.encode_all(texts)

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids up to `<eos>`; IndexError for an id out of range."""

    def words(self, ids: Sequence[int]) -> list[range]:
        """Return the tokens of each word: every token is in exactly one, and <eos> is a word."""
        return [range(i, i + 1) for i in range(len(ids))]

    def word(self, tokens: Sequence[str]) -> str:
        """Join the tokens of one word."""
        return "".join(tokens)

    @abstractmethod
    def join(self, words: Sequence[str]) -> str:
        """Join words to text, as `decode` does."""

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Return the content of the vocabulary's file."""


def until_eos(ids: Iterable[int], size: int) -> list[int]:
    """Return the ids before `<eos>`; IndexError for one that is not in [0, size)."""
    found = []
    for i in ids:
        if not 0 <= i < size:
            raise IndexError(f"ids must be in [0, {size}); got {i}")
        if i == EOS:
            break
        found.append(int(i))
    return found
