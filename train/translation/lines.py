"""The lines of a text, one sentence each; one that is no UTF-8 is an error that says where."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class InputError(ValueError):
    """Input that cannot be read; the message says where and why."""


def open_text(path: Path) -> BinaryIO:
    """A file's bytes; InputError if it cannot be read."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise InputError(f"there is no file {path}; --file takes a text with one sentence a line") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def read_lines(file: BinaryIO | io.BufferedReader, name: str) -> Iterator[str]:
    """The lines as soon as they are there, without their ends (LF or CR LF) and without a byte order mark.

    Only a line feed ends a line: U+2028, form feeds and their like stand within sentences of real corpora, and a
    translation must stand on the line of its source.

    Raises:
        InputError: a line that is not UTF-8.
    """
    for number, raw in enumerate(file, 1):
        if number == 1:
            raw = raw.removeprefix(BYTE_ORDER_MARK)
        try:
            yield raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"line {number} of {name} is not UTF-8: byte {error.start + 1} of it is 0x{raw[error.start]:02x}; "
                "convert the text with iconv"
            ) from None


def batched(lines: Iterator[str], size: int) -> Iterator[Sequence[str]]:
    """So many lines at a time; where an error ends them, those before it come first."""
    batch: list[str] = []
    try:
        for line in lines:
            batch.append(line)
            if len(batch) == size:
                yield batch
                batch = []
    except InputError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch
