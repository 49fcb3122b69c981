"""Files that are whole, and a list of their SHA-256 by which damage is found."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


class DamageError(ValueError):
    """A file that is missing or is not what was written; the message names it."""


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, and move it to `path` when its bytes are on the disk.

    Whenever the process ends, or if the disk is full, `path` holds the old content or the new one. An OSError names it.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(beside)
        _sync(beside)
        os.replace(beside, path)
    except OSError as error:  # which names the temporary file, or none
        error.filename = str(path)
        raise
    finally:
        beside.unlink(missing_ok=True)
    _sync(path.parent)


def require_space(folder: Path, size: int) -> None:
    """Raise OSError unless a file of so many bytes fits into a folder: on its disk, and within a quota."""
    with tempfile.TemporaryFile(dir=folder) as file:
        if hasattr(os, "posix_fallocate"):  # not on macOS
            os.posix_fallocate(file.fileno(), 0, max(1, size))


def write_json(path: Path, content: object) -> None:
    """Write JSON, whole or not at all."""
    text = json.dumps(content, ensure_ascii=False, indent=2, default=str, allow_nan=False) + "\n"
    write_whole(path, lambda beside: beside.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; DamageError if the file is missing, holds something else, or names a key twice."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=without_repetition)
    except FileNotFoundError:
        raise DamageError(f"{path.name} is missing") from None
    except (ValueError, RecursionError) as error:
        raise DamageError(f"{path.name} is damaged, it is not JSON ({error}); copy the folder again") from error
    if not isinstance(content, dict):
        raise DamageError(f"{path.name} is damaged: it must hold a JSON dict; copy the folder again")
    return content


def without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the keys and values as a dict; ValueError if a key stands there twice."""
    found = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"it has {key!r} twice")
        found[key] = value
    return found


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_tree(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file under a folder, by its path within the folder."""
    return {path.relative_to(folder).as_posix(): sha256(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def check(folder: Path, files: Mapping[str, str | Sequence[str]]) -> None:
    """Compare the files of a folder with their SHA-256. A file that is being replaced has two: the old and the new.

    Raises:
        DamageError: a file is missing, or differs.
    """
    for name, digests in files.items():
        path = folder / name
        if not path.is_file():
            raise DamageError(f"{name} is missing")
        if sha256(path) not in ([digests] if isinstance(digests, str) else digests):
            raise DamageError(f"{name} is damaged: its bytes are not those that were written; copy the folder again")


def _sync(path: Path) -> None:
    """Wait until a file or a folder's entries are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
