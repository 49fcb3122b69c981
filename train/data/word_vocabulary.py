"""A vocabulary of words, in lower case."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from train.config import Tokenizer
from train.data.tokens import detokenize, tokenize
from train.data.vocabulary import SPECIAL, UNKNOWN, Vocabulary, until_eos


@dataclass(frozen=True)
class WordVocabulary(Vocabulary):
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

    def cut(self, text: str) -> list[str]:
        return tokenize(text, self.tokenizer)

    def encode(self, text: str) -> list[int]:
        """Return the words' ids; an unknown word and the name of a special word become `<unk>`."""
        known = self.ids
        return [max(known.get(word, UNKNOWN), UNKNOWN) for word in tokenize(text, self.tokenizer)]

    def decode(self, ids: Iterable[int]) -> str:
        return detokenize([self.tokens[i] for i in until_eos(ids, len(self.tokens))])

    def join(self, words: Sequence[str]) -> str:
        return detokenize(words)

    def to_bytes(self) -> bytes:
        """Return a JSON list with one word a line."""
        return (json.dumps(self.tokens, ensure_ascii=False, indent=0) + "\n").encode()
