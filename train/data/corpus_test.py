from pathlib import Path

import pytest

from train.config import CorpusConfig
from train.data import corpus
from train.data.corpus import CorpusError


def read(path, max_words=30, train=None, valid=0, test=0):
    return corpus.read(path, CorpusConfig(train=train, valid=valid, test=test, max_words=max_words))


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "pairs.txt"
    path.write_bytes(content)
    return path


def test_a_plain_file_is_read_whole_and_in_order(tmp_path):
    found = read(write(tmp_path, "Go.\tVa !\nI won!\tJ'ai gagné !\n".encode()))
    assert [(pair.source, pair.target) for pair in found.train] == [
        (("go", "."), ("va", "!")),
        (("i", "won", "!"), ("j'", "ai", "gagné", "!")),
    ]
    assert found.report == {"pairs read": 2, "pairs for training": 2, "for validation": 0, "for test": 0}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"no tab here\n", "lines without a tab"),
        (b"\tva !\n", "lines with an empty side"),
        (b"go .\t \n", "lines with an empty side"),
        (b"go\xff\tva\n", "lines of invalid UTF-8"),
        (b"\n", "empty lines"),
        (b"hi\tsalu", "last line without an end, perhaps cut short, not used"),
    ],
)
def test_a_line_that_cannot_be_used_is_counted_and_the_rest_is_used(tmp_path, line, reason):
    found = read(write(tmp_path, b"go .\tva !\n" + line))
    assert len(found.train) == 1
    assert found.report[reason] == 1


def test_attribution_columns_byte_order_mark_and_windows_line_ends_are_reported_and_harmless(tmp_path):
    found = read(write(tmp_path, b"\xef\xbb\xbfgo .\tva !\tCC-BY 2.0\r\n"))
    assert (found.train[0].source, found.train[0].target) == (("go", "."), ("va", "!"))
    assert found.report["lines with more than two columns, the first two used"] == 1
    assert found.report["byte order mark, ignored"] == 1
    assert found.report["Windows line ends, ignored"] == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "it is empty"), (b"one\ntwo\n", "2 lines without a tab"), (b"\x1f\x8b\0\0", "is no text")],
)
def test_a_file_without_a_pair_says_what_was_found(tmp_path, content, said):
    with pytest.raises(CorpusError, match=said):
        read(write(tmp_path, content))


def test_a_path_that_is_no_file_is_an_error(tmp_path):
    with pytest.raises(CorpusError, match="there is no file"):
        read(tmp_path / "nowhere.txt")
    with pytest.raises(CorpusError, match="cannot be read"):
        read(tmp_path)


def test_longer_pairs_are_left_out_and_counted(tmp_path):
    found = read(write(tmp_path, b"a b c\tx\na b\tx\na\tx y z\n"), max_words=2)
    assert [pair.source for pair in found.train] == [("a", "b")]
    assert found.report["pairs longer than 2 words"] == 2


def test_held_out_pairs_share_no_sentence_on_either_side(tmp_path):
    lines = ["a\t1", "b\t2", "a\t3", "c\t1", "d\t4", "d\t5", "e\t4", "f\t6"]
    found = read(write(tmp_path, ("\n".join(lines) + "\n").encode()), train=2, valid=1, test=1)
    assert [pair.source[0] for pair in found.train] == ["a", "b"]
    assert [pair.source[0] for pair in found.valid] == ["d"]  # a and 1 are known from training
    assert [pair.source[0] for pair in found.test] == ["f"]  # d and 4 from validation


def test_without_a_number_for_training_held_out_pairs_come_from_the_whole_file(tmp_path):
    lines = [f"{i}\tn{i}" for i in range(100)] + ["1\tother"]
    path = write(tmp_path, ("\n".join(lines) + "\n").encode())
    found = read(path, valid=10, test=10)
    numbers = [int(pair.source[0]) for pair in found.valid + found.test]
    assert min(numbers) < 30
    assert max(numbers) > 70
    held_out = {pair.source for pair in found.valid + found.test}
    assert not held_out & {pair.source for pair in found.train}
    assert len(found.train) + 20 + found.report.get(
        "pairs left out of training, a sentence of theirs being held out", 0
    ) == len(lines)
    assert read(path, valid=10, test=10) == found


@pytest.mark.parametrize("train", [None, 1])
def test_too_few_pairs_to_hold_some_out_is_an_error(tmp_path, train):
    with pytest.raises(CorpusError, match="1 pairs are too few"):
        read(write(tmp_path, b"a\tb\n"), train=train, valid=1, test=1)


def test_old_mac_line_ends_are_named(tmp_path):
    with pytest.raises(CorpusError, match="CR alone"):
        read(write(tmp_path, b"a\tb\rc\td\r"))


def test_the_embedded_corpus_carries_alignments_and_shares_no_sentence():
    found = corpus.embedded(CorpusConfig(train=500, valid=50, test=50))
    assert [len(split) for split in (found.train, found.valid, found.test)] == [500, 50, 50]
    for side in ("source", "target"):
        train, valid, test = ({getattr(p, side) for p in split} for split in (found.train, found.valid, found.test))
        assert not train & valid
        assert not train & test
        assert not valid & test
    for pair in found.train:
        for i, j in pair.alignment.sure | pair.alignment.possible:
            assert i < len(pair.source)
            assert j < len(pair.target)
