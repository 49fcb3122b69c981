"""Files of pairs: what is read, counted and refused."""

import gzip
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from train.data.corpus import CorpusError
from train.data.pair_files import MAX_LINE, PairFiles, find_files, read_pairs


def read(path: Path, *others: Path) -> tuple[list[tuple[str, str]], Counter]:
    report: Counter[str] = Counter()
    return [pair[:2] for pair in read_pairs(PairFiles((path, *others)), report)], report


def write(folder: Path, content: bytes, name: str = "pairs.txt") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_file_is_read_in_order_to_its_last_line_plain_or_gzipped(tmp_path, pack):
    pairs, report = read(write(tmp_path, pack("Go.\tVa !\nA cafe\u0301\tJ'ai gagne\u0301 !".encode())))
    assert pairs == [("Go.", "Va !"), ("A café", "J'ai gagné !")]  # composed (NFC)
    assert report == {"pairs read": 2}


@pytest.mark.parametrize(
    ("line", "reason", "read_too"),
    [
        (b"no tab here\n", "lines without a tab", None),
        (b"\tva !\n", "lines with an empty side", None),
        (b"go .\t \n", "lines with an empty side", None),
        (b"go\xff\tva\n", "lines of invalid UTF-8", None),
        (b"\n", "empty lines", None),
        (b"a\tb\tCC-BY 2.0\n", "lines with more than two columns, the first two used", ("a", "b")),
        (b"a\tb\r\n", "Windows line ends, ignored", ("a", "b")),
        (
            b"a\x1b[31m\tb\x07 \xe2\x80\xa8c",
            "lines with control characters, replaced by spaces",
            ("a [31m", "b  \u0020c"),
        ),
        (b"a" * (MAX_LINE + 1) + b"\tb\n", f"lines of more than {MAX_LINE:,} characters", None),
        (b"a" * 3_000_000 + b"\tb\n", f"lines of more than {MAX_LINE:,} characters", None),
    ],
)
def test_a_line_that_is_unusual_is_counted_and_the_rest_is_used(tmp_path, line, reason, read_too):
    pairs, report = read(write(tmp_path, b"\xef\xbb\xbf" + b"go .\tva !\n" * 99 + line))
    assert pairs == [("go .", "va !")] * 99 + ([read_too] if read_too else [])
    assert report == {reason: 1, "byte order mark, ignored": 1, "pairs read": len(pairs)}


def test_parallel_files_keep_step_where_lines_of_one_cannot_be_used(tmp_path):
    source = write(tmp_path, b"1\n\xff\n3\n4\n5\t!\n" + b"6\n" * 95, "a.de")
    target = write(tmp_path, b"a\nb\n\nd\ne\n" + b"f\n" * 95, "a.en")
    pairs, report = read(source, target)
    assert pairs == [("1", "a"), ("4", "d"), ("5 !", "e")] + [("6", "f")] * 95
    assert report == {"lines of invalid UTF-8": 1, "lines with an empty side": 1, "pairs read": 98}


def test_parallel_files_of_different_length_say_where_they_part(tmp_path):
    source, target = write(tmp_path, b"1\n2\n3\n", "a.de"), write(tmp_path, b"a\nb\nc\nd\ne\n", "a.en")
    with pytest.raises(CorpusError, match=r"a\.de ends after line 3, and .*a\.en has 5 lines"):
        read(source, target)


LATIN = b"go .\tva !\n" * 100 + "hello .\tça va, garçon ?\n".encode("latin-1") * 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"one\ntwo\n", "2 lines without a tab"),
        (b"a\tb\n\0", "is no text"),
        ("a\tb\n".encode("utf-16"), "seems to be UTF-16; convert it with iconv -f UTF-16 "),
        ("a\tb\n".encode("utf-16-be"), "seems to be UTF-16; "),
        ("龍\t龍\n".encode("utf-16"), "seems to be UTF-16; "),
        (LATIN, "^2 of the 102 lines of .*pairs.txt are no UTF-8; convert it with iconv -f ENCODING -t UTF-8$"),
        (gzip.compress(LATIN, mtime=0), "are no UTF-8; convert it with "),
        (b"PK\x03\x04rest", "zip archive"),
        (b"a\tb\rc\td\r", "CR alone"),
        (gzip.compress(b"a\tb\n" * 1000, mtime=0)[:-20], "is damaged"),
        (gzip.compress(b"a\tb\n" * 1000, mtime=0)[:20] + b"\xff" * 30, "is damaged"),
    ],
)
def test_a_file_that_cannot_be_used_says_what_was_found(tmp_path, content, said):
    with pytest.raises(CorpusError, match=said):
        read(write(tmp_path, content))


def test_a_csv_file_says_how_to_save_it(tmp_path):
    with pytest.raises(CorpusError, match=r"1 line without a tab\); .*; this is a CSV file: save it with tabs"):
        read(write(tmp_path, b"go .,va !\n", "pairs.csv"))


def test_one_line_in_a_hundred_may_be_no_utf_8_and_two_files_are_counted_each(tmp_path):
    good, bad = write(tmp_path, b"a\n" * 200, "a.de"), write(tmp_path, b"a\n" * 197 + b"\xe9\n" * 3, "a.en")
    with pytest.raises(CorpusError, match=r"^3 of the 200 lines of .*a\.en are no UTF-8"):
        read(good, bad)
    bad.write_bytes(b"a\n" * 198 + b"\xe9\n" * 2)
    assert read(good, bad)[1] == {"lines of invalid UTF-8": 2, "pairs read": 198}


def test_a_path_that_is_no_file_is_an_error_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, said in (
        (tmp_path / "nowhere.txt", "there is no file"),
        (tmp_path, "it is a folder"),
        (tmp_path / "pipe", "no regular file"),
        (Path("/dev/zero"), "no regular file"),
    ):
        with pytest.raises(CorpusError, match=said):
            read(path)


def test_a_stem_finds_both_languages_plain_or_gzipped(tmp_path):
    source, target = write(tmp_path, b"1\n", "train.de"), write(tmp_path, gzip.compress(b"a\n"), "train.en.gz")
    stem = str(tmp_path / "train")
    assert find_files((stem,), ("de", "en"), "--data").paths == (source, target)
    with pytest.raises(CorpusError, match=r"no file .*train\.fr, and no train\.fr\.gz"):
        find_files((stem,), ("de", "fr"), "--data")
    with pytest.raises(CorpusError, match="languages must be the source's and the target's, as in de en; got de en fr"):
        find_files((stem,), ("de", "en", "fr"), "--data")
    with pytest.raises(CorpusError, match=r"--valid takes one file .*got 3 names: a b c"):
        find_files(("a", "b", "c"), (), "--valid")
    with pytest.raises(
        CorpusError, match=r"--data: there is no file .*/train, but one for each of de, en; .* --languages de en$"
    ):
        find_files((stem,), (), "--data")
    with pytest.raises(CorpusError, match="not UTF-8; rename it"):
        find_files(("a\udcff",), (), "--data")


PIECES = [b"a", b"\xc3\xa9", b"e\xcc\x81", b"\t", b"\n", b"\r", b"\r\n", b"\0", b"\x1b", b"\xff", b" "]
PIECES += [b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xf0\x9f\x91\xa9", b"\x1f\x8b", b"PK\x03\x04"]
PIECES += [b"b" * (MAX_LINE + 1)]
CONTENT = st.lists(st.sampled_from(PIECES) | st.binary(max_size=6), max_size=30).map(b"".join)


@settings(
    max_examples=int(os.environ.get("FUZZ", "150")),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(contents=st.lists(CONTENT, min_size=1, max_size=2), pack=st.booleans())
def test_any_bytes_are_read_or_refused_with_one_line(tmp_path_factory, contents, pack):
    folder = tmp_path_factory.getbasetemp()
    paths = [write(folder, gzip.compress(c) if pack else c, f"fuzz{i}") for i, c in enumerate(contents)]
    try:
        pairs, report = read(*paths)
    except CorpusError as refusal:
        said = str(refusal)
        assert "\n" not in said
        return
    assert report["pairs read"] == len(pairs) > 0
    for side in (side for pair in pairs for side in pair):
        assert 0 < len(side) <= MAX_LINE
        assert side == side.strip()
        assert not set(side) & set("\0\x1b\r\n\t\u2028")
        side.encode()
