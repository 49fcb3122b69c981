"""Turn words into ids and back."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PAD, BOS, EOS, UNKNOWN = range(4)
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")


@dataclass(frozen=True)
class Vocabulary:
    """The words that a model knows. A word's id is its index in `words`; the special words come first."""

    words: tuple[str, ...]
    ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.words[: len(SPECIAL)] != SPECIAL:
            raise ValueError(f"a vocabulary must begin with {SPECIAL}; got {self.words[: len(SPECIAL)]}")
        object.__setattr__(self, "ids", {word: i for i, word in enumerate(self.words)})
        if len(self.ids) != len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise ValueError(f"a vocabulary must hold each word once; it holds {twice!r} twice")

    @classmethod
    def build(cls, sentences: Iterable[Sequence[str]], min_freq: int = 1) -> "Vocabulary":
        """Take the words that occur at least `min_freq` times, by frequency and then by the alphabet."""
        counts = Counter(word for sentence in sentences for word in sentence if word not in SPECIAL)
        frequent = [word for word, count in counts.items() if count >= min_freq]
        return cls((*SPECIAL, *sorted(frequent, key=lambda word: (-counts[word], word))))

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Iterable[str]) -> list[int]:
        """Return the words' ids; an unknown word and the name of a special word become `<unk>`."""
        return [UNKNOWN if word in SPECIAL else self.ids.get(word, UNKNOWN) for word in words]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the ids' words up to `<eos>`; IndexError for an id out of range."""
        words = []
        for i in ids:
            if not 0 <= i < len(self.words):
                raise IndexError(f"ids must be in [0, {len(self.words)}); got {i}")
            if i == EOS:
                break
            words.append(self.words[i])
        return words

    def save(self, path: Path) -> None:
        """Write a JSON list with one word a line."""
        path.write_text(json.dumps(self.words, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Read the file that `save` wrote; ValueError if it is something else."""
        return cls(tuple(json.loads(path.read_text(encoding="utf-8"))))
