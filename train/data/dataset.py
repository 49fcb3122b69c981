"""Everything that a run reads: the corpus, its vocabularies, and its sentences as padded ids."""

from dataclasses import dataclass
from itertools import chain

from train.config import Config, ConfigError
from train.data import corpus
from train.data.batches import Examples, encode
from train.data.corpus import Corpus
from train.data.vocabulary import Vocabulary


@dataclass(frozen=True)
class Data:
    """Sentence pairs as words and as ids. Sources are padded to S ids, targets to T."""

    corpus: Corpus
    source: Vocabulary
    target: Vocabulary
    train: Examples
    valid: Examples
    test: Examples

    @property
    def max_source_words(self) -> int:
        """The longest source that fits, beside its `<eos>`."""
        return self.train.sources.shape[1] - 1

    @property
    def max_target_len(self) -> int:
        """The longest translation, its `<eos>` counted in: as many steps as training saw."""
        return self.train.targets.shape[1] - 1


def load(config: Config) -> Data:
    """Read or generate the corpus and turn it into ids.

    Raises:
        CorpusError, ConfigError: what cannot be used, before anything is written.
    """
    c = config.corpus
    pairs = corpus.embedded(c) if config.data is None else corpus.read(config.data, c)
    source = Vocabulary.build((pair.source for pair in pairs.train), c.min_freq)
    target = Vocabulary.build((pair.target for pair in pairs.train), c.min_freq)
    everything = list(chain(pairs.train, pairs.valid, pairs.test))
    source_length = max(len(pair.source) for pair in everything) + 1  # <eos>
    target_length = max(len(pair.target) for pair in everything) + 2  # <bos>, <eos>
    if c.steps is not None:
        if c.steps < max(source_length, target_length):
            raise ConfigError(
                f"corpus.steps must be at least {max(source_length, target_length)} for these pairs; got {c.steps} "
                "(or leave longer pairs out with corpus.max-words)"
            )
        source_length = target_length = c.steps
    splits = (
        encode(split, source, target, source_length, target_length) for split in (pairs.train, pairs.valid, pairs.test)
    )
    return Data(pairs, source, target, *splits)
