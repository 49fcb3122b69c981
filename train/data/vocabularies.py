"""Learn, write and read the two vocabularies of a run."""

import json
from collections import Counter
from pathlib import Path

from train.config import SUBWORDS, CorpusConfig, Tokenizer
from train.data.corpus import Pairs
from train.data.tokens import tokenize
from train.data.vocabulary import Vocabulary
from train.data.word_vocabulary import WordVocabulary
from train.setting import ConfigError

FILES = {
    "book": ("source.json", "target.json"),
    "words": ("source.json", "target.json"),
    "unigram": ("source.model", "target.model"),
    "bpe": ("source.model", "target.model"),
    "pretrained": ("source.vocabulary.json", "target.vocabulary.json"),
}
"""The files of a run folder that hold the two vocabularies, by tokenizer."""


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


def save_vocabularies(folder: Path, tokenizer: Tokenizer, source: Vocabulary, target: Vocabulary) -> None:
    """Write the two files of a run folder. A joint vocabulary is written twice."""
    for name, vocabulary in zip(FILES[tokenizer], (source, target), strict=True):
        (folder / name).write_bytes(vocabulary.to_bytes())


def load_vocabularies(
    folder: Path,
    tokenizer: Tokenizer,
    sampling: float = 0.0,
    languages: tuple[str | None, str | None] = (None, None),
) -> tuple[Vocabulary, Vocabulary]:
    """Read the two files that `save_vocabularies` wrote; a training that goes on gives its `sampling`.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: a file is damaged, or holds something else, or does not know a language.
    """
    names = FILES[tokenizer]
    contents = [(folder / name).read_bytes() for name in names]
    source = _load(names[0], contents[0], tokenizer, sampling)
    target = source if contents[0] == contents[1] else _load(names[1], contents[1], tokenizer, sampling)
    return in_languages((source, target), *languages)


def in_languages(
    vocabularies: tuple[Vocabulary, Vocabulary], source: str | None, target: str | None
) -> tuple[Vocabulary, Vocabulary]:
    """Choose the languages of vocabularies that have several; ConfigError if there is no such language."""
    first, second = (
        vocabulary if code is None else vocabulary.in_language(code)
        for vocabulary, code in zip(vocabularies, (source, target), strict=True)
    )
    return first, second


def _load(name: str, content: bytes, tokenizer: Tokenizer, sampling: float) -> Vocabulary:
    try:
        if tokenizer == "pretrained":
            from train.data.foreign import ForeignVocabulary

            return ForeignVocabulary.read(content)
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
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{name} is damaged: {error}; copy the folder again") from error
