"""Which line is the user's: not one of a library, and not one of this harness."""

import os
from importlib.util import find_spec
from pathlib import Path


def folders_of(*libraries: str) -> tuple[str, ...]:
    """Return the folders of libraries, wherever they are installed, and that of this harness."""
    files = [spec.origin for name in libraries if (spec := find_spec(name)) is not None and spec.origin is not None]
    return tuple(f"{folder}{os.sep}" for folder in (*(Path(file).parent for file in files), Path(__file__).parents[1]))


def is_users(file: str, folders: tuple[str, ...]) -> bool:
    """Whether a file is in none of the folders, or is a test."""
    return not file.startswith(folders) or file.endswith("_test.py")
