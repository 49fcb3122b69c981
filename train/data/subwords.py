"""Subwords of sentencepiece (Kudo & Richardson, 2018): cased text in, text as people write it out."""

import io
import re
from array import array
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any

import numpy as np
import sentencepiece

from train.config import CorpusConfig
from train.data.corpus import Pairs
from train.data.pair_files import CUT
from train.data.tokens import clean
from train.data.vocabulary import EOS, SPECIAL, UNKNOWN, Vocabulary, until_eos
from train.setting import ConfigError

SPACE = "\u2581"
"""Stands for a space in a piece: a piece that begins with it begins a word."""

MAX_SENTENCES = 500_000
"""Sentences that pieces are learnt from, at most; of more pairs, every n-th is taken. (Sentencepiece would draw other
ones in each process, whatever its seed.)"""

NUM_CUTS = 16
"""Cuts of a word that are drawn from."""

MAX_WORDS = 2**16
"""Words whose cuts are kept in memory."""

NUM_THREADS = 8
"""Threads of the training. The pieces depend on it, and so it is the same on every machine."""


class PieceVocabulary(Vocabulary):
    """The pieces of a sentencepiece model. Words are what spaces separate.

    Every character of the training text is a piece. So <unk> is a character that the training text lacks, and no
    target of the training has one. Where the characters alone would fill the vocabulary, the rarest 0.05 % of the text
    is <unk> too. (sentencepiece's byte_fallback would give bytes whose embeddings are never trained, and translations
    that are no UTF-8.)
    """

    lower_case = False

    def __init__(self, model: bytes, sampling: float = 0.0) -> None:
        """Read a model.

        Args:
            model: the content of the model's file.
            sampling: of `sample_all`, for unigram pieces: the best cuts of a word are drawn with a probability
                proportional to theirs to the power of this number; 0 is off.

        Raises:
            ValueError: it is no such model, or one with other special ids.
        """
        self.model, self.sampling = model, sampling
        self._cuts = lru_cache(MAX_WORDS)(self._draw_cuts)
        try:
            self._pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        except (RuntimeError, OSError) as error:
            raise ValueError("it is no model of sentencepiece") from error
        self.tokens = tuple(self._pieces.id_to_piece(list(range(len(self._pieces)))))
        if (found := self.tokens[: len(SPECIAL)]) != SPECIAL:
            raise ValueError(f"its first pieces must be {SPECIAL}; got {found}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PieceVocabulary) and self.model == other.model

    def __hash__(self) -> int:
        return hash(self.model)

    def cut(self, text: str) -> list[str]:
        return self._pieces.encode(clean(text), out_type=str)

    def encode(self, text: str) -> list[int]:
        return self._pieces.encode(clean(text))

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return self._pieces.encode([clean(text) for text in texts])

    def sample_all(self, texts: Sequence[str], seed: int) -> list[list[int]]:
        """Draw the cut of each word from its `NUM_CUTS` best ones (Kudo, 2018); see `sampling`.

        Sentencepiece draws, too, but in each process differently, whatever its seed.
        """
        if not self.sampling:
            return self.encode_all(texts)
        words = [clean(text).split() for text in texts]
        draws = iter(np.random.default_rng(seed).random(sum(map(len, words))).tolist())
        found = []
        for sentence in words:
            ids: list[int] = []
            for word, draw in zip(sentence, draws, strict=False):
                cuts, bounds = self._cuts(word)
                ids.extend(cuts[bisect(bounds, draw)])
            found.append(ids)
        return found

    def _draw_cuts(self, word: str) -> tuple[list["array[int]"], "array[float]"]:
        """Return some cuts of a word, and the upper bounds in [0, 1] of the draws that give all but the last."""
        cuts = self._pieces.nbest_encode_as_ids(word, NUM_CUTS)
        logs = np.array([sum(self._scores[i] for i in cut) for cut in cuts]) * self.sampling
        weights = np.exp(logs - logs.max())
        bounds = np.cumsum(weights)[:-1] / weights.sum()
        return [array("i", cut) for cut in cuts], array("d", bounds)

    @cached_property
    def _scores(self) -> list[float]:
        return [self._pieces.get_score(i) for i in range(len(self))]

    def decode(self, ids: Iterable[int]) -> str:
        text: str = self._pieces.decode(until_eos(ids, len(self)))
        return " ".join(text.split())  # an untrained model may write several spaces

    def words(self, ids: Sequence[int]) -> list[range]:
        """Begin a word at each piece that begins with a space; spaces alone belong to the word after them."""
        starts: list[int] = []
        empty = False  # whether the word that began last has no letter yet
        for i, piece in enumerate(ids):
            name = self.tokens[piece]
            if piece == EOS and empty and len(starts) > 1:
                starts.pop()  # a space before the end belongs to the word before it
            if not starts or piece == EOS or (name.startswith(SPACE) and not empty):
                starts.append(i)
                empty = True
            empty = empty and name == SPACE
        ends = [*starts[1:], len(ids)]
        return [range(start, end) for start, end in zip(starts, ends, strict=False)]

    def word(self, tokens: Sequence[str]) -> str:
        return super().word(tokens).replace(SPACE, "")

    def join(self, words: Sequence[str]) -> str:
        return " ".join(words)

    def to_bytes(self) -> bytes:
        return self.model


def vocab_size_for(pairs: int) -> int:
    """Return the number of subwords to learn from so many pairs, where a configuration has None."""
    return min(8000, max(500, pairs // 5))


def train_pieces(config: CorpusConfig, pairs: Pairs) -> tuple[Vocabulary, Vocabulary]:
    """Learn the pieces of both languages together, or of each: the same pairs give the same bytes.

    Raises:
        ConfigError: the pairs are too few for `vocab_size`, or their characters too many.
    """
    if config.joint:
        both = PieceVocabulary(_learn(pairs, ("source", "target"), config), config.sampling)
        return both, both
    source, target = (PieceVocabulary(_learn(pairs, (side,), config), config.sampling) for side in ("source", "target"))
    return source, target


def _learn(pairs: Pairs, sides: Sequence[str], config: CorpusConfig) -> bytes:
    """Learn pieces with every character, or without the rarest ones where there are too many."""
    step = max(1, -(-len(pairs) * len(sides) // MAX_SENTENCES))
    size = config.vocab_size or vocab_size_for(len(pairs))
    for coverage in (1.0, 0.9995):
        try:
            texts = (getattr(pair, side) for pair in islice(pairs, 0, None, step) for side in sides)
            return _train(texts, config, size, coverage)
        except RuntimeError as error:
            message = str(error)
            if "smaller than required_chars" not in message:
                break
    raise ConfigError(_reason(message, size))


def _train(texts: Iterator[str], config: CorpusConfig, size: int, coverage: float) -> bytes:
    """Learn pieces of cleaned texts. There is no other normalisation, so that `decode` gives the text again."""
    model = io.BytesIO()
    special: dict[str, Any] = {f"{name[1:-1]}_piece": name for name in SPECIAL}
    special |= {f"{name[1:-1]}_id": i for i, name in enumerate(SPECIAL)}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=filter(None, map(clean, texts)),
        model_writer=model,
        model_type=config.tokenizer,
        vocab_size=size,
        hard_vocab_limit=config.vocab_size is not None,  # else fewer, if the text has no more pieces
        character_coverage=coverage,
        normalization_rule_name="identity",
        max_sentence_length=CUT,  # in bytes; by default sentencepiece leaves out sentences of more than 4,192
        **special,
        unk_surface=SPECIAL[UNKNOWN],
        shuffle_input_sentence=False,
        num_threads=NUM_THREADS,
        minloglevel=3,
    )
    return model.getvalue()


def _reason(message: str, size: int) -> str:
    """Say in the project's words why pieces cannot be learnt."""
    too_large = re.search(r"Vocabulary size too high .* value <= (\d+)", message)
    if too_large:
        return (
            f"corpus.vocab-size must be at most {too_large[1]}, since the training text has no more pieces; got {size}"
        )
    too_small = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if too_small:
        return f"corpus.vocab-size must be at least {too_small[1]}, since each character is a piece; got {size}"
    return f"corpus.tokenizer: sentencepiece cannot learn pieces from this text: {' '.join(message.split())}"
