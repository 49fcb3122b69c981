"""Read the lines of a text, one sentence each. A line that is not UTF-8 is an error that says where."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

LONGEST = 2**24
"""Bytes of a line, at most: a file that never ends a line, such as /dev/zero, would fill the memory."""


class InputError(ValueError):
    """Input that cannot be read; the message says where and why."""


class TextPosition:
    """The lines and the bytes of a text until now, and their SHA-256."""

    def __init__(self) -> None:
        self.lines = self.bytes = 0
        self._digest = hashlib.sha256()

    def add(self, part: bytes) -> None:
        """Count a further part."""
        self.lines += part.count(b"\n")
        self.bytes += len(part)
        self._digest.update(part)

    def state(self) -> dict[str, Any]:
        """Return the numbers as JSON."""
        return {"lines": self.lines, "bytes": self.bytes, "sha256": self._digest.hexdigest()}


def read_every_line(file: BinaryIO, name: str, read: TextPosition) -> Iterator[str]:
    """Yield lines as soon as they can be read, without line ends (LF or CR LF) and without a byte order mark.

    Only a line feed ends a line. U+2028, form feeds and the like occur within sentences of real corpora, and each
    translation must stand on the line of its source.

    Args:
        file: the text, or what is left of it.
        read: what was read before; each line is counted there before it is yielded.

    Raises:
        InputError: a line is not UTF-8, or has more than `LONGEST` bytes.
    """
    while line := file.readline(LONGEST + 1):
        if len(line) > LONGEST:
            raise InputError(f"line {read.lines + 1} of {name} has more than {LONGEST:,} bytes; is it a text?")
        raw = line if read.bytes else line.removeprefix(BYTE_ORDER_MARK)
        try:
            text = raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            byte = f"byte {error.start + 1} of it is 0x{raw[error.start]:02x}"
            raise InputError(
                f"line {read.lines + 1} of {name} is not UTF-8: {byte}; convert the text with iconv"
            ) from None
        read.add(line)
        yield text


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
        if batch:
            yield batch
        raise
    if batch:
        yield batch
