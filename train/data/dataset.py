"""The data of a run: its pairs as text, the vocabularies, and the pairs as ids."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from threading import Event
from typing import Any

import numpy as np

from train.config import Config
from train.data.corpus import Corpus, CorpusError, Pair
from train.data.load_corpus import load_corpus
from train.data.prefetch import prefetch
from train.data.sentences import PairIds, SentenceWriter
from train.data.vocabularies import build_vocabularies
from train.data.vocabulary import Vocabulary
from train.setting import ConfigError

BATCH = 4096
"""Pairs that are turned into ids at a time."""

Vocabularies = tuple[Vocabulary, Vocabulary]
IdLists = list[list[int]]


@dataclass(frozen=True)
class Data:
    """The pairs of a run. Text of the training pairs is read from the file when it is needed."""

    corpus: Corpus
    source: Vocabulary
    target: Vocabulary
    train: PairIds
    valid: PairIds
    test: PairIds
    report: dict[str, int]
    """Counts of the lines and pairs that were used and, by reason, of those that were not."""
    max_source_len: int
    """The most tokens of a source in training, without its `<eos>`. The model reads no more of any sentence."""
    max_target_len: int
    """The most tokens of a target in training, with its `<eos>`: as many as the decoder's steps in training."""
    max_len: int
    sampling: bool
    """Whether words are cut into other pieces in each epoch."""
    seed: int

    def epochs(self, first: int, end: int) -> Iterator[PairIds]:
        """Yield `train_at` of the epochs in [first, end); the next one is made while the present one is used."""
        stop = Event()
        coming = prefetch((self.train_at(epoch, stop) for epoch in range(first, end)), 1)
        try:
            for pairs in coming:  # noqa: UP028  `yield from` would wait for the next epoch before it stops
                yield pairs
        finally:
            stop.set()
            coming.close()

    def train_at(self, epoch: int, stop: Event | None = None) -> PairIds:
        """Return the ids of the training pairs in an epoch: the same in each, unless words are cut at random.

        A sentence that is longer than the longest of `train`, since it was cut into many pieces, is shortened as there.

        Args:
            stop: when it is set, nobody needs the pairs any more, and the rest of them is left out.
        """
        if not self.sampling:
            return self.train
        vocabularies = self.source, self.target
        limits = self.max_source_len, self.max_target_len - 1
        writers = tuple(SentenceWriter(len(vocabulary), vocabulary.prefix) for vocabulary in vocabularies)
        for i, sides in enumerate(_encode(self.corpus.train, vocabularies, self.max_len, Counter())):
            if stop is not None and stop.is_set():
                break
            for side, (texts, found) in enumerate(sides):
                seed = int(np.random.SeedSequence([self.seed, epoch, i, side]).generate_state(1)[0])
                sampled = zip(vocabularies[side].sample_all(texts, seed), found, strict=True)
                writers[side].extend([s if len(s) <= limits[side] else ids for s, ids in sampled])
        return PairIds(*(writer.finish() for writer in writers))

    def facts(self) -> dict[str, Any]:
        """Return what a run folder says of its data: the longest lengths, and a hash."""
        lengths = {"max_source_len": self.max_source_len, "max_target_len": self.max_target_len}
        return lengths | {"data_sha256": self.digest()}

    def digest(self) -> str:
        """Return a SHA-256 of all ids and of the held-out text, by which a run that goes on knows its data."""
        digest = sha256(repr([(pair.source, pair.target) for pair in self.corpus.valid + self.corpus.test]).encode())
        for pairs in (self.train, self.valid, self.test):
            for array in (pairs.source.ids, pairs.source.offsets, pairs.target.ids, pairs.target.offsets):
                digest.update(array.data)
        return digest.hexdigest()


def load(config: Config, vocabularies: Vocabularies | None = None) -> Data:
    """Read or generate the corpus, and turn it into ids.

    Args:
        vocabularies: of a run that goes on; they are learnt from the training pairs if there are none yet.

    Raises:
        CorpusError, ConfigError: the corpus cannot be used.
    """
    settings = config.corpus
    corpus = load_corpus(config)
    vocabularies = vocabularies or build_vocabularies(settings, corpus.train)
    report = Counter(corpus.report)
    train = _encode_training(corpus, vocabularies, settings.max_len, report)
    longest = int(train.source.lens.max()), int(train.target.lens.max())
    if settings.steps is not None:
        if settings.steps < max(longest[0] + 1, longest[1] + 2):
            raise ConfigError(
                f"corpus.steps must be at least {max(longest[0] + 1, longest[1] + 2)} for these pairs; got "
                f"{settings.steps} (or leave longer pairs out with corpus.max-len)"
            )
        longest = settings.steps - 1, settings.steps - 2
    if not vocabularies[0].shortens:
        # An imported model reads as much as before.
        longest = settings.max_len + len(vocabularies[0].prefix), longest[1]
    valid, test = (
        _encode_held_out(name, pairs, vocabularies, longest[0], report)
        for name, pairs in (("validation", corpus.valid), ("test", corpus.test))
    )
    longest_of_all = max(*longest, *(int(part.target.lens.max(initial=0)) for part in (valid, test)))
    if config.model.longest is not None and longest_of_all >= config.model.longest:
        raise ConfigError(
            f"model.max-len, the number of learnt positions, must be at least {longest_of_all + 1} for these pairs; "
            f"got {config.model.longest} (or take other model.positions)"
        )
    return Data(
        corpus=corpus,
        source=vocabularies[0],
        target=vocabularies[1],
        train=train,
        valid=valid,
        test=test,
        report={reason: count for reason, count in report.items() if count},
        max_source_len=longest[0],
        max_target_len=longest[1] + 1,
        max_len=settings.max_len,
        sampling=settings.sampling > 0,
        seed=config.seed,
    )


def _encode(
    pairs: Iterable[Pair], vocabularies: Vocabularies, max_len: int, report: Counter[str]
) -> Iterator[list[tuple[list[str], IdLists]]]:
    """Yield the pairs of at most `max_len` tokens a side in batches: each side's texts and ids. Count the others."""
    iterator = iter(pairs)
    while batch := list(islice(iterator, BATCH)):
        texts = [pair.source for pair in batch], [pair.target for pair in batch]
        sides = [vocabulary.encode_all(side) for vocabulary, side in zip(vocabularies, texts, strict=True)]
        kept = [i for i, lens in enumerate(zip(*sides, strict=True)) if max(map(len, lens)) <= max_len]
        report[f"training pairs with a side of more than {max_len} tokens, left out"] += len(batch) - len(kept)
        yield [([text[i] for i in kept], [ids[i] for i in kept]) for text, ids in zip(texts, sides, strict=True)]


def _encode_training(corpus: Corpus, vocabularies: Vocabularies, max_len: int, report: Counter[str]) -> PairIds:
    """Turn the training pairs into ids; count those that are too long."""
    source, target = (SentenceWriter(len(vocabulary), vocabulary.prefix) for vocabulary in vocabularies)
    for (_, sources), (_, targets) in _encode(corpus.train, vocabularies, max_len, report):
        source.extend(sources)
        target.extend(targets)
    train = PairIds(source.finish(), target.finish())
    if not len(train):
        raise CorpusError(
            f"every pair for training has a side of more than {max_len} tokens; raise --corpus.max-len, or cut the "
            "text into sentences"
        )
    if "pairs for training" in report:
        report["pairs for training"] = len(train)
    return train


def _encode_held_out(
    name: str, pairs: Sequence[Pair], vocabularies: Vocabularies, max_source_len: int, report: Counter[str]
) -> PairIds:
    """Turn all pairs for validation or test into ids; shorten sources that the model cannot read to their end."""
    source, target = (SentenceWriter(len(vocabulary), vocabulary.prefix) for vocabulary in vocabularies)
    ids = vocabularies[0].encode_all([pair.source for pair in pairs])
    longest = max_source_len - len(vocabularies[0].prefix)
    shortened = sum(len(sentence) > longest for sentence in ids)
    if shortened:
        report[f"{name} sources of more than {longest} tokens, the longest in training, shortened"] += shortened
    source.extend([sentence[:longest] for sentence in ids])
    target.extend(vocabularies[1].encode_all([pair.target for pair in pairs]))
    return PairIds(source.finish(), target.finish())
