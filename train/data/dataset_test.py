import json
from dataclasses import replace

import numpy as np
import pytest

from train.config import Config, CorpusConfig
from train.data import dataset
from train.data.corpus import CorpusError
from train.data.sentences import SentenceWriter
from train.setting import ConfigError


@pytest.fixture
def config(tmp_path) -> Config:
    """A file of 200 pairs."""
    (tmp_path / "pairs.txt").write_text("".join(f"satz {i}\tsentence {i}\n" for i in range(200)))
    return Config(data=(str(tmp_path / "pairs.txt"),))


def test_long_training_pairs_are_left_out_and_held_out_sources_are_shortened_and_counted(tmp_path):
    train, valid = tmp_path / "train.txt", tmp_path / "valid.txt"
    train.write_text("a b\ta b\na b c d e f\ta b c d e f\n")
    valid.write_text("a b c de\ta b c en\n")
    config = Config(data=(str(train),), valid=(str(valid),), corpus=CorpusConfig(test=0, max_len=5))
    data = dataset.load(config)
    assert (len(data.train), len(data.valid), data.max_source_len, data.max_target_len) == (1, 1, 2, 3)
    assert data.valid.source.lens.tolist() == [2]
    assert data.valid.target.lens.tolist() == [4]
    assert data.report["training pairs with a side of more than 5 tokens, left out"] == 1
    assert data.report["validation sources of more than 2 tokens, the longest in training, shortened"] == 1
    with pytest.raises(CorpusError, match=r"every pair for training has a side of more than 1 tokens"):
        dataset.load(replace(config, corpus=CorpusConfig(test=0, max_len=1)))
    with pytest.raises(ConfigError, match=r"corpus\.steps must be at least 4 for these pairs; got 3"):
        dataset.load(replace(config, corpus=CorpusConfig(test=0, max_len=5, steps=3)))


def test_ids_take_two_bytes_where_the_vocabulary_fits():
    for size, dtype in ((2**16, np.uint16), (2**16 + 1, np.int32)):
        writer = SentenceWriter(size, prefix=(9,))
        writer.extend([[size - 1, 4], []])
        writer.extend([[5]])
        found = writer.finish()
        assert found.ids.dtype == dtype
        assert found.ids.tolist() == [9, size - 1, 4, 9, 9, 5]
        assert found.offsets.tolist() == [0, 3, 4, 6]
    assert len(SentenceWriter(5).finish()) == 0


def test_a_run_that_goes_on_keeps_its_vocabularies_and_sees_that_its_data_changed(config, tmp_path, monkeypatch):
    config = replace(config, corpus=CorpusConfig(min_freq=2))  # the numbers are <unk>
    data = dataset.load(config)
    monkeypatch.setattr(dataset, "build_vocabularies", None)
    again = dataset.load(config, (data.source, data.target))
    assert again.source is data.source
    assert again.digest() == data.digest()
    text = (tmp_path / "pairs.txt").read_text()
    for old, new in ((data.corpus.valid[0].target, "sentence one"), (next(iter(data.corpus.train)).target, "one")):
        (tmp_path / "pairs.txt").write_text(text.replace(f"\t{old}\n", f"\t{new}\n"))
        assert dataset.load(config, (data.source, data.target)).digest() != data.digest()


class Sampled:
    """A vocabulary that cuts words into another number of pieces in each epoch."""

    prefix = ()

    def __init__(self, vocabulary):
        self.encode_all, self.size = vocabulary.encode_all, len(vocabulary)

    def __len__(self):
        return self.size

    def sample_all(self, texts, seed):
        random = np.random.default_rng(seed)
        return [[4] * int(random.integers(1, 4)) for _ in texts]


def test_words_cut_at_random_depend_on_the_epoch_alone_and_are_never_longer_than_the_widths(config):
    data = dataset.load(config)
    assert data.train_at(1) is data.train
    data = replace(data, sampling=True, source=Sampled(data.source), target=Sampled(data.target))
    one, again, other = (data.train_at(epoch).source for epoch in (1, 1, 2))
    assert one.ids.tolist() == again.ids.tolist()
    assert one.ids.tolist() != other.ids.tolist()
    assert [pairs.source.ids.tolist() for pairs in data.epochs(1, 3)] == [one.ids.tolist(), other.ids.tolist()]
    assert len(one) == len(data.train)
    assert one.lens.max() == data.max_source_len == 2
    assert one.lens.min() == 1
    assert json.dumps(data.report)
