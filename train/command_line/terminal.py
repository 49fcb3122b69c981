"""How the programs write: UTF-8 into files and pipes, and a warning on one line."""

import io
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def plain_output() -> Iterator[None]:
    """Set the encodings of the output, and show each warning as one line on stderr while the block runs."""
    set_encodings()
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
        yield


def set_encodings() -> None:
    """Write UTF-8 to files and pipes, and the terminal's own encoding to a terminal."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")
