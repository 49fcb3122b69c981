"""Turn text into ids and back: the interface of a vocabulary, and the vocabulary of words."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from train.config import ConfigError, CorpusConfig
from train.data.corpus import Pairs
from train.data.tokens import SUBWORDS, Tokenizer, detokenize, tokenize

PAD, BOS, EOS, UNKNOWN = range(4)
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
FILES = {
    "book": ("source.json", "target.json"),
    "words": ("source.json", "target.json"),
    "unigram": ("source.model", "target.model"),
    "bpe": ("source.model", "target.model"),
}
"""The files of a run folder that hold the two vocabularies, by tokenizer."""


class Vocabulary(Protocol):
    """The tokens of one language. The ids of `SPECIAL` are 0 to 3; no text is encoded as <pad>, <bos> or <eos>."""

    lower_case: bool
    """Whether the case of letters is lost."""

    @property
    def tokens(self) -> Sequence[str]:
        """A name for each id."""

    def __len__(self) -> int: ...

    def cut(self, text: str) -> list[str]:
        """Cut text into tokens, unknown ones as they stand in the text; one for each id of `encode`."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without <bos> and <eos>."""

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of many texts."""

    def sample_all(self, texts: Sequence[str], seed: int) -> list[list[int]]:
        """Return ids with random cuts, where the vocabulary has them: a pure function of texts and seed."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids up to `<eos>`; IndexError for an id out of range."""

    def words(self, ids: Sequence[int]) -> list[range]:
        """Return the tokens of each word: every token is in exactly one, and <eos> is a word."""

    def word(self, tokens: Sequence[str]) -> str:
        """Join the tokens of one word."""

    def join(self, words: Sequence[str]) -> str:
        """Join words to text, as `decode` does."""

    def to_bytes(self) -> bytes:
        """Return the content of the vocabulary's file."""


@dataclass(frozen=True)
class WordVocabulary:
    """The words that a model knows, in lower case. A word's id is its index; the special words come first."""

    tokens: tuple[str, ...]
    tokenizer: Tokenizer = "words"
    ids: dict[str, int] = field(init=False, repr=False, compare=False)
    lower_case = True

    def __post_init__(self) -> None:
        if self.tokens[: len(SPECIAL)] != SPECIAL:
            raise ValueError(f"a vocabulary must begin with {SPECIAL}; got {self.tokens[: len(SPECIAL)]}")
        wrong = [token for token in self.tokens if not isinstance(token, str)]
        if wrong:
            raise ValueError(f"a vocabulary must hold words; it holds {wrong[0]!r}")
        object.__setattr__(self, "ids", {word: i for i, word in enumerate(self.tokens)})
        if len(self.ids) != len(self.tokens):
            twice = next(word for word, count in Counter(self.tokens).items() if count > 1)
            raise ValueError(f"a vocabulary must hold each word once; it holds {twice!r} twice")

    @classmethod
    def of_counts(cls, counts: Counter[str], min_freq: int, tokenizer: Tokenizer) -> "WordVocabulary":
        """Take the words that are counted at least `min_freq` times, by frequency and then by the alphabet."""
        frequent = [word for word, count in counts.items() if count >= min_freq and word not in SPECIAL]
        return cls((*SPECIAL, *sorted(frequent, key=lambda word: (-counts[word], word))), tokenizer)

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, text: str) -> list[str]:
        return tokenize(text, self.tokenizer)

    def encode(self, text: str) -> list[int]:
        """Return the words' ids; an unknown word and the name of a special word become `<unk>`."""
        known = self.ids
        return [max(known.get(word, UNKNOWN), UNKNOWN) for word in tokenize(text, self.tokenizer)]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def sample_all(self, texts: Sequence[str], seed: int) -> list[list[int]]:
        return self.encode_all(texts)

    def decode(self, ids: Iterable[int]) -> str:
        return detokenize([self.tokens[i] for i in until_eos(ids, len(self.tokens))])

    def words(self, ids: Sequence[int]) -> list[range]:
        return [range(i, i + 1) for i in range(len(ids))]

    def word(self, tokens: Sequence[str]) -> str:
        return "".join(tokens)

    def join(self, words: Sequence[str]) -> str:
        return detokenize(words)

    def to_bytes(self) -> bytes:
        """Return a JSON list with one word a line."""
        return (json.dumps(self.tokens, ensure_ascii=False, indent=0) + "\n").encode()


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


def build_vocabularies(config: CorpusConfig, pairs: Pairs) -> tuple[Vocabulary, Vocabulary]:
    """Learn both vocabularies from the training pairs; ConfigError if they are too few for the size asked for."""
    if config.tokenizer in SUBWORDS:
        from train.data.subwords import train_pieces

        return train_pieces(config, pairs)
    counts: tuple[Counter[str], Counter[str]] = Counter(), Counter()
    for pair in pairs:
        counts[0].update(tokenize(pair.source, config.tokenizer))
        counts[1].update(tokenize(pair.target, config.tokenizer))
    source, target = (WordVocabulary.of_counts(words, config.min_freq, config.tokenizer) for words in counts)
    return source, target


def save_vocabularies(folder: Path, source: Vocabulary, target: Vocabulary) -> None:
    """Write the two files of a run folder. A joint vocabulary is written twice."""
    names = FILES["words" if isinstance(source, WordVocabulary) else "unigram"]
    for name, vocabulary in zip(names, (source, target), strict=True):
        (folder / name).write_bytes(vocabulary.to_bytes())


def load_vocabularies(folder: Path, tokenizer: Tokenizer, sampling: float = 0.0) -> tuple[Vocabulary, Vocabulary]:
    """Read the two files that `save_vocabularies` wrote; a training that goes on gives its `sampling`.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: a file is damaged, or holds something else.
    """
    source, target = (_load(folder / name, tokenizer, sampling) for name in FILES[tokenizer])
    return source, target


def _load(path: Path, tokenizer: Tokenizer, sampling: float) -> Vocabulary:
    content = path.read_bytes()
    try:
        if tokenizer in SUBWORDS:
            from train.data.subwords import PieceVocabulary

            return PieceVocabulary(content, sampling)
        try:
            words = json.loads(content.decode())
        except ValueError as error:
            raise ValueError(f"it is not JSON ({error})") from error
        if not isinstance(words, list):
            raise ValueError("it must hold a JSON list")
        return WordVocabulary(tuple(words), tokenizer)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path.name} is damaged: {error}; copy the folder again") from error
