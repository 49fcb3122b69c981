"""Read sentence pairs from text files, plain or gzipped, a block of lines at a time."""

import gzip
import os
import re
import stat
import unicodedata
import zlib
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from glob import escape, glob
from itertools import chain, zip_longest
from pathlib import Path
from typing import IO, Any

from train.data.corpus import CorpusError, Pair, counted

MAX_LINE = 10_000
"""Longer lines, in characters, are left out."""

BLOCK = 2**20
"""Bytes that are read at a time."""

CUT = 4 * (MAX_LINE + 1)
"""A line without an end in sight is cut to this many bytes, which are more than `MAX_LINE` characters in any case."""

MAX_INVALID = 0.01
"""The share of a file's lines that may be no UTF-8. They are left out; a file with more of them is refused."""

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that would move a terminal's cursor or end a line elsewhere."""

INVALID = re.compile("[\udc80-\udcff]")
"""What `surrogateescape` makes of bytes that are not UTF-8."""

NO_UTF8 = "lines of invalid UTF-8"

UNUSUAL = re.compile(f"{CONTROL.pattern}|{INVALID.pattern}")


@dataclass(frozen=True)
class PairFiles:
    """The files of a corpus: one with `source<TAB>target` on each line, or two with one sentence on each line."""

    paths: tuple[Path, ...]
    swapped: bool = False
    """The file has the target first."""

    def __str__(self) -> str:
        return " and ".join(map(str, self.paths))


def find_files(names: tuple[str, ...], languages: tuple[str, ...], option: str) -> PairFiles:
    """Return the files that an option names: one file, two, or a stem with languages.

    Raises:
        CorpusError: another number of names or languages, or a stem without files.
    """
    for name in names:
        if INVALID.search(name):
            raise CorpusError(f"{option}: the path {name!r} holds bytes that are not UTF-8; rename it")
    if len(languages) not in (0, 2):
        raise CorpusError(f"languages must be the source's and the target's, as in de en; got {' '.join(languages)}")
    if len(names) == 1 and languages:
        return PairFiles(tuple(_with_language(names[0], language) for language in languages))
    if len(names) not in (1, 2):
        raise CorpusError(
            f"{option} takes one file with source<TAB>target on each line, two files with one sentence on each line, "
            f"or a stem with --languages SOURCE TARGET; got {len(names)} names: {' '.join(names)}"
        )
    if len(names) == 1 and not os.path.exists(names[0]):
        form = re.compile(re.escape(names[0]) + r"\.(\w{2,3})(\.gz)?")
        endings = sorted({found[1] for path in glob(escape(names[0]) + ".*") if (found := form.fullmatch(path))})
        if len(endings) > 1:
            raise CorpusError(
                f"{option}: there is no file {names[0]}, but one for each of {', '.join(endings)}; name the "
                f"source's and the target's language, as in --languages {endings[0]} {endings[1]}"
            )
    return PairFiles(tuple(map(Path, names)))


def _with_language(stem: str, language: str) -> Path:
    candidates = [Path(f"{stem}.{language}{end}") for end in ("", ".gz")]
    for path in candidates:
        if path.exists():
            return path
    raise CorpusError(f"there is no file {candidates[0]}, and no {candidates[1].name} beside it")


def read_pairs(files: PairFiles, report: Counter[str]) -> Iterator[Pair]:
    """Yield the pairs of the files in their order; count all lines by what becomes of them.

    Raises:
        CorpusError: a file does not exist, is no text, is damaged, or two files have different numbers of lines.
    """
    sides = _read_columns(files.paths[0], report) if len(files.paths) == 1 else _read_parallel(files.paths, report)
    pairs = 0
    for source, target in sides:
        source, target = source.strip(), target.strip()
        if not source or not target:
            report["lines with an empty side" if source or target else "empty lines"] += 1
            continue
        if not source.isascii():
            source = unicodedata.normalize("NFC", source)
        if not target.isascii():
            target = unicodedata.normalize("NFC", target)
        pairs += 1
        yield Pair(target, source) if files.swapped else Pair(source, target)
    report["pairs read"] += pairs
    if not pairs:
        found = ", ".join(counted(report)) or "it is empty"
        needed = "each line must be: source, a tab, target" if len(files.paths) == 1 else "no line has two sides"
        if len(files.paths) == 1 and files.paths[0].suffix.lower() == ".csv":
            needed += "; this is a CSV file: save it with tabs between the columns, as a spreadsheet can"
        raise CorpusError(f"no pair in {files} ({found}); {needed}")


def _read_columns(path: Path, report: Counter[str]) -> Iterator[tuple[str, str]]:
    """Yield the first two columns of the lines of a tab-separated file."""
    for lines in read_usable_lines(path, report):
        for line in lines:
            if line is None:
                continue
            columns = line.split("\t", 2)
            if len(columns) == 1:
                report["lines without a tab" if line.strip() else "empty lines"] += 1
                continue
            if len(columns) == 3:
                report["lines with more than two columns, the first two used"] += 1
            yield columns[0], columns[1]


def _read_parallel(paths: tuple[Path, ...], report: Counter[str]) -> Iterator[tuple[str, str]]:
    """Yield the lines of two files, side by side; CorpusError if one of them ends before the other."""
    with closing(read_usable_lines(paths[0], report)) as first, closing(read_usable_lines(paths[1], report)) as second:
        lines = [chain.from_iterable(blocks) for blocks in (first, second)]
        missing: Any = object()
        for common, sides in enumerate(zip_longest(*lines, fillvalue=missing)):
            if missing in sides:
                shorter = sides.index(missing)
                longer = common + 1 + sum(1 for _ in lines[1 - shorter])
                raise CorpusError(
                    f"{paths[shorter]} ends after line {common}, and {paths[1 - shorter]} has {longer} lines; each "
                    "line of one file must be the translation of the same line of the other"
                )
            source, target = sides
            if source is not None and target is not None:
                yield source.replace("\t", " "), target.replace("\t", " ")


def read_usable_lines(path: Path, report: Counter[str]) -> Generator[list[str | None]]:
    """Yield a file's lines, many at a time. A line that cannot be used is None, and is counted.

    Raises:
        CorpusError: the file does not exist, cannot be read, is no text, is damaged, or is no UTF-8.
    """
    total = invalid = 0
    try:
        for block in _read_blocks(path, report):
            found = Counter[str]()
            lines = _decode(block, found)
            report.update(found)
            total += len(lines)
            invalid += found[NO_UTF8]
            yield lines
    except FileNotFoundError:
        raise CorpusError(f"there is no file {path}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CorpusError(f"{path} is damaged: gzip cannot unpack it ({error}); copy or download it again") from error
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror or error}") from error
    if invalid > MAX_INVALID * total:
        raise CorpusError(
            f"{invalid:,} of the {total:,} lines of {path} are no UTF-8; convert it with iconv -f ENCODING -t UTF-8"
        )


def _read_blocks(path: Path, report: Counter[str]) -> Iterator[bytes]:
    """Yield a file in blocks of whole lines, of which the last may lack its end; cut long lines to `CUT` bytes."""
    rest = b""
    ended = False
    with open_file(path) as file:
        first = file.read(3)
        if first == b"\xef\xbb\xbf":
            report["byte order mark, ignored"] += 1
        else:
            rest = first
        while data := file.read(BLOCK):
            data = rest + data
            _require_text(data, path)
            end = data.rfind(b"\n") + 1
            rest = data[end:][:CUT]
            if end:
                ended = True
                yield data[:end]
    if not ended and b"\r" in rest:
        raise CorpusError(f"{path} ends its lines with CR alone, as old Macs did; convert it to LF")
    if rest:
        _require_text(rest, path)
        yield rest


def _require_text(data: bytes, path: Path) -> None:
    """Raise CorpusError for NUL bytes, of which UTF-16 has many."""
    if b"\0" in data:
        if data.startswith((b"\xff\xfe", b"\xfe\xff")) or data.count(0) > len(data) / 4:
            raise CorpusError(f"{path} seems to be UTF-16; convert it with iconv -f UTF-16 -t UTF-8")
        raise CorpusError(f"{path} is no text: it holds NUL bytes (is it compressed? it must be UTF-8)")


def open_file(path: Path) -> IO[bytes] | gzip.GzipFile:
    """Open a regular file, and unpack it if it is gzipped, whatever its name; CorpusError for another kind of file."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "no regular file (a pipe or a device)"
        raise CorpusError(f"{path} cannot be read: it is {kind}, and a file that can be read several times is needed")
    file = path.open("rb")
    magic = file.read(4)
    file.seek(0)
    if magic[:2] == b"\x1f\x8b":
        file.close()
        return gzip.open(path)
    if magic == b"PK\x03\x04":
        file.close()
        raise CorpusError(f"{path} is no text: it is a zip archive; unpack it, and name the text file in it")
    return file


def _decode(block: bytes, report: Counter[str]) -> list[str | None]:
    text = block.decode("utf-8", "surrogateescape")
    if "\r\n" in text or text.endswith("\r"):
        report["Windows line ends, ignored"] += text.count("\r\n") + text.endswith("\r")
        text = text.replace("\r\n", "\n").removesuffix("\r")
    lines = text.removesuffix("\n").split("\n")
    if UNUSUAL.search(text) or max(map(len, lines)) > MAX_LINE:
        return [_clean(line, report) for line in lines]
    return list(lines)


def _clean(line: str, report: Counter[str]) -> str | None:
    """Replace control characters by spaces; return None for a line that cannot be used."""
    if len(line) > MAX_LINE:
        report[f"lines of more than {MAX_LINE:,} characters"] += 1
        return None
    if INVALID.search(line):
        report[NO_UTF8] += 1
        return None
    line, count = CONTROL.subn(" ", line)
    if count:
        report["lines with control characters, replaced by spaces"] += 1
    return line
