"""Write a long translation a block at a time, with a record beside it from which to go on."""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import Any, BinaryIO

from train.machine.whole_files import DamageError, read_json, write_json
from train.setting import ConfigError
from train.translating.lines import TextPosition

CHUNK = 2**20
"""Bytes that are read at a time of what is done."""


@dataclass(frozen=True)
class OutputFile:
    """A file of translations, and the record FILE.progress.json beside it.

    The record says what was asked for, how much of the text was read, and how much was written. It is replaced when a
    block is on the disk. So whenever the program is killed, the file holds what the record says, and perhaps more,
    which is cut off when the program goes on.
    """

    path: Path
    file: BinaryIO
    settings: Mapping[str, Any]
    read: TextPosition
    written: TextPosition = field(default_factory=TextPosition)

    @property
    def record(self) -> Path:
        return self.path.with_name(self.path.name + ".progress.json")

    def write(self, text: str) -> None:
        """Write the translations of what was read since the last call, and wait until they are on the disk."""
        content = text.encode()
        self.file.write(content)
        self.written.add(content)
        self.file.flush()
        os.fsync(self.file.fileno())
        self.save_record()

    def save_record(self) -> None:
        """Write how far the file is."""
        state = {"settings": self.settings, "read": self.read.state(), "written": self.written.state()}
        write_json(self.record, state)

    def go_on(self, text: BinaryIO) -> None:
        """Pass over what is translated, and cut off what the record does not know.

        Raises:
            ConfigError: the file does not belong to this text and these settings.
        """
        try:
            record = read_json(self.record)
            settings, read, written = dict(record["settings"]), record["read"], record["written"]
            sizes = int(read["bytes"]), int(written["bytes"])
        except (DamageError, KeyError, TypeError, ValueError) as error:
            raise self._refusal(f"{self.record} does not say how far it is ({error})") from error
        names = settings.keys() | self.settings.keys()
        different = sorted(name for name in names if settings.get(name) != self.settings.get(name))
        if different:
            raise self._refusal(f"it was begun with another {' and another '.join(different)}")
        ended = True
        while part := text.read(max(0, min(CHUNK, sizes[0] - self.read.bytes))):
            self.read.add(part)
            ended = part.endswith(b"\n")
        if self.read.state() != read or (not ended and text.read(1)):
            raise self._refusal("the text that was translated has changed since")
        while part := self.file.read(max(0, min(CHUNK, sizes[1] - self.written.bytes))):
            self.written.add(part)
        if self.written.state() != written:
            raise self._refusal("its lines are not those that were written")
        self.file.truncate(self.written.bytes)

    def _refusal(self, reason: str) -> ConfigError:
        return ConfigError(f"--resume cannot go on with {self.path}: {reason}; name another file with --out")


@contextmanager
def open_output(
    path: Path, settings: Mapping[str, Any], text: BinaryIO, read: TextPosition, *, resume: bool
) -> Iterator[OutputFile]:
    """Open a file for translations. Where it goes on, the lines that are translated are passed over.

    Args:
        settings: all that the translations depend on beside the text, as JSON.
        text: what is translated.
        read: how much of it was read.
        resume: go on where the file ends, if there is one.

    Raises:
        FileExistsError: the file exists, and is not to go on.
        ConfigError: it is in use, or does not belong to this text and these settings.
    """
    goes_on = resume and path.exists()
    with path.open("r+b" if goes_on else "xb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{path} is in use: another process writes it") from None
        output = OutputFile(path, file, settings, read)
        for unfinished in path.absolute().parent.glob(f".{escape(output.record.name)}.[0-9]*"):
            unfinished.unlink()  # a killed program was writing it
        if goes_on and (output.record.exists() or path.stat().st_size):
            output.go_on(text)
        else:  # it is new, or the program was killed just after it had made it
            output.save_record()
        yield output
