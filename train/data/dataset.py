"""The data of a run: the corpus, its vocabularies, and its sentences as padded ids."""

from dataclasses import dataclass
from hashlib import sha256
from itertools import chain

import numpy as np

from train.config import Config, ConfigError
from train.data import corpus
from train.data.batches import Examples, encode
from train.data.corpus import Corpus, Pair
from train.data.vocabulary import Vocabulary, build_vocabularies


@dataclass(frozen=True)
class Data:
    """Sentence pairs as words and as ids; sources are padded to S ids, targets to T."""

    corpus: Corpus
    source: Vocabulary
    target: Vocabulary
    train: Examples
    valid: Examples
    test: Examples

    @property
    def valid_pairs(self) -> tuple[Pair, ...]:
        """The validation pairs as text."""
        return self.corpus.valid

    @property
    def test_pairs(self) -> tuple[Pair, ...]:
        """The test pairs as text."""
        return self.corpus.test

    @property
    def max_source_len(self) -> int:
        """The most tokens of a source, without its `<eos>`."""
        return self.train.sources.shape[1] - 1

    @property
    def max_target_len(self) -> int:
        """The most tokens of a translation, its `<eos>` included: as many as the decoder's steps in training."""
        return self.train.targets.shape[1] - 1

    def digest(self) -> str:
        """Return a SHA-256 of all ids, by which a run that goes on knows its data."""
        digest = sha256()
        for examples in (self.train, self.valid, self.test):
            for array in examples:
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def load(config: Config) -> Data:
    """Read or generate the corpus, and turn it into ids; CorpusError or ConfigError if it cannot be used."""
    settings = config.corpus
    pairs = corpus.embedded(settings) if config.data is None else corpus.read(config.data, settings)
    source, target = build_vocabularies(settings, pairs.train)
    everything = list(chain(pairs.train, pairs.valid, pairs.test))
    source_length = max(map(len, source.encode_all([pair.source for pair in everything]))) + 1  # <eos>
    target_length = max(map(len, target.encode_all([pair.target for pair in everything]))) + 2  # <bos>, <eos>
    if settings.steps is not None:
        longest = max(source_length, target_length)
        if settings.steps < longest:
            raise ConfigError(
                f"corpus.steps must be at least {longest} for these pairs; got {settings.steps} "
                "(or leave longer pairs out with corpus.max-words)"
            )
        source_length = target_length = settings.steps
    splits = (
        encode(split, source, target, source_length, target_length) for split in (pairs.train, pairs.valid, pairs.test)
    )
    return Data(pairs, source, target, *splits)
