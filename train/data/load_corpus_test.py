"""Corpora as the configuration names them."""

import gzip
from pathlib import Path

import pytest

from train.config import Config, CorpusConfig
from train.data.corpus import CorpusError
from train.data.embedded import embedded_pairs
from train.data.load_corpus import load_corpus


def lines(start: int, end: int, side: str) -> str:
    return "".join(f"{side} {i}\n" for i in range(start, end))


@pytest.fixture
def folder(tmp_path) -> Path:
    """Parallel files of 200 pairs for training, one of them gzipped, and of 20 for validation with 3 of training."""
    (tmp_path / "train.de").write_text(lines(0, 200, "satz"))
    (tmp_path / "train.en.gz").write_bytes(gzip.compress(lines(0, 200, "sentence").encode()))
    (tmp_path / "valid.de").write_text(lines(197, 217, "Satz"))
    (tmp_path / "valid.en").write_text(lines(197, 217, "other"))
    return tmp_path


def stem(folder, **options):
    return Config(data=(str(folder / "train"),), languages=("de", "en"), **options)


def test_a_stem_is_split_by_hash_and_can_be_read_again(folder):
    corpus = load_corpus(stem(folder))
    assert (len(corpus.valid), len(corpus.test)) == (4, 4)
    pairs = list(corpus.train)
    assert pairs == list(corpus.train)
    assert [pair.target.split()[1] for pair in pairs] == [pair.source.split()[1] for pair in pairs]
    assert corpus.report["pairs for training"] == len(pairs) < 200


def test_a_file_for_validation_is_read_whole_and_a_leak_is_counted(folder):
    corpus = load_corpus(stem(folder, valid=(str(folder / "valid"),), corpus=CorpusConfig(test=0)))
    assert [pair.source for pair in corpus.valid] == lines(197, 217, "Satz").splitlines()
    assert len(list(corpus.train)) == 200
    assert {reason: n for reason, n in corpus.report.items() if "too" in reason} == {
        "source sentences of validation found in training too": 3
    }
    with pytest.raises(CorpusError, match=r"--corpus.valid is a number of pairs held out of --data"):
        load_corpus(stem(folder, valid=(str(folder / "valid"),), corpus=CorpusConfig(valid=5)))


def test_the_order_of_the_file_needs_a_number_for_training(folder):
    corpus = load_corpus(stem(folder, corpus=CorpusConfig("first", train=100, valid=1, test=2)))
    assert [pair.source for pair in (*corpus.train, *corpus.valid, *corpus.test)] == lines(0, 103, "satz").splitlines()
    with pytest.raises(CorpusError, match=r"split first needs --corpus\.train"):
        load_corpus(stem(folder, corpus=CorpusConfig("first")))


def test_a_file_that_changes_while_it_is_read_is_an_error(folder):
    corpus = load_corpus(stem(folder))
    for name, content in (("train.de", b"satz 0\n"), ("train.en.gz", gzip.compress(b"sentence 0\n"))):
        (folder / name).write_bytes(content)
    with pytest.raises(CorpusError, match="changed while it was read"):
        list(corpus.train)


def test_the_embedded_corpus_is_taken_in_its_order_until_it_ends():
    corpus = load_corpus(Config(corpus=CorpusConfig(train=20_000, valid=999, test=1)))
    parts = (corpus.train, corpus.valid, corpus.test)
    assert [len(part) for part in parts] == [20_000, 999, 1]
    assert sum(parts, ()) == embedded_pairs()
    with pytest.raises(
        CorpusError, match="has 21000 pairs, too few for 20000 for training, 1000 for validation and 500"
    ):
        load_corpus(Config(corpus=CorpusConfig(valid=1000)))
