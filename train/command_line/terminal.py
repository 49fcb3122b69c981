"""How the programs write: in UTF-8, an error on one line, and nothing that commands a terminal."""

import io
import os
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from jax_attn.compiler import DeviceError
from train.data.corpus import CorpusError
from train.setting import ConfigError
from train.translating.lines import InputError

CLOSED_PIPE = 141
"""The status of a program whose output is not read to its end, as `head` does: 128 + SIGPIPE."""

BIDIRECTIONAL = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that change the order in which a terminal shows what follows."""


def answer(work: Callable[[], object]) -> int:
    """Do the work of a program that answers on the standard output; return the exit status.

    What the user can mend is one line and status 2; an output that cannot be written is one line and status 1.
    """
    with plain_output():
        try:
            if sys.stdout is None or sys.stdin is None:
                raise InputError("standard input and standard output must be open")
            work()
            sys.stdout.flush()
        except (ConfigError, CorpusError, DeviceError, InputError, FloatingPointError) as error:
            show_error(error)
            return 2
        except BrokenPipeError:
            leave_output()
            return CLOSED_PIPE
        except OSError as error:
            show_error(f"{error.filename or 'the output'} cannot be written: {error.strerror}")
            leave_output()
            return 1
        except KeyboardInterrupt:
            return 130
    return 0


def leave_output() -> None:
    """Send to nowhere what Python still has to write when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_error(error: object) -> None:
    """Write an error on stderr."""
    print("error:", "\n".join(map(printable, str(error).split("\n"))), file=sys.stderr)


def printable(text: str) -> str:
    """Replace the characters of a text that could command a terminal or turn its line round."""
    return "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cs") or c in BIDIRECTIONAL else c for c in text)


@contextmanager
def plain_output() -> Iterator[None]:
    """Set the encodings of the output, and show each warning as one line on stderr while the block runs."""
    set_encodings()
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_: print(f"warning: {printable(str(message))}", file=sys.stderr)
        yield


def set_encodings() -> None:
    """Write UTF-8 to files and pipes, and the terminal's own encoding to a terminal."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")
