"""Read the lines of a text, one sentence each. A line that is not UTF-8 is an error that says where."""

from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


LONGEST = 2**24
"""Bytes of a line, at most: a file that never ends a line, such as /dev/zero, would fill the memory."""


class InputError(ValueError):
    """Input that cannot be read; the message says where and why."""


def read_lines(file: BinaryIO, name: str) -> Iterator[str]:
    """Yield lines as soon as they can be read, without line ends (LF or CR LF) and without a byte order mark.

    Only a line feed ends a line. U+2028, form feeds and the like occur within sentences of real corpora, and each
    translation must stand on the line of its source.

    Raises:
        InputError: a line is not UTF-8, or has more than `LONGEST` bytes.
    """
    for number, raw in enumerate(raw_lines(file, name), 1):
        if number == 1:
            raw = raw.removeprefix(BYTE_ORDER_MARK)
        try:
            yield raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"line {number} of {name} is not UTF-8: byte {error.start + 1} of it is 0x{raw[error.start]:02x}; "
                "convert the text with iconv"
            ) from None


def raw_lines(file: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield lines as they are; InputError for one of more than `LONGEST` bytes."""
    number = 0
    while raw := file.readline(LONGEST + 1):
        number += 1
        if len(raw) > LONGEST:
            raise InputError(f"line {number} of {name} has more than {LONGEST:,} bytes; is it a text?")
        yield raw


def batched(lines: Iterable[str], size: int) -> Iterator[Sequence[str]]:
    """Yield `size` lines at a time. If reading fails, yield the lines before the failure first."""
    batch: list[str] = []
    try:
        for line in lines:
            batch.append(line)
            if len(batch) == size:
                yield batch
                batch = []
    except InputError:
        yield batch
        raise
    if batch:
        yield batch
