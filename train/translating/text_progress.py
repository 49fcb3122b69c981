"""Show on stderr how far the translation of a text is."""

import sys
import time
from datetime import timedelta

from train.progress import Bar

EVERY = 60.0
"""Seconds between two lines where stderr is no terminal."""


class TextProgress:
    """A bar at a terminal; else a line on stderr each minute.

    Args:
        size: the bytes of the text; None if that is not known.
        done: the bytes of it that were translated before.
    """

    def __init__(self, size: int | None, done: int) -> None:
        self.size, self.first = size, done
        self.lines = 0
        self.started = self.shown = time.monotonic()
        self.bar = Bar("translating", size, done)

    def __enter__(self) -> "TextProgress":
        self.bar.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.__exit__()

    def update(self, lines: int, done: int) -> None:
        """Take note of further lines; `done` bytes of the text are translated now."""
        now = time.monotonic()
        self.lines += lines
        seconds = max(now - self.started, 1e-9)
        numbers = f"{self.lines:,} lines, {self.lines / seconds:,.0f} a second"
        share = f"{done / self.size:.1%}" if self.size else ""
        self.bar.update(done, f"{share}  {numbers}")
        if not self.bar.is_shown and now - self.shown >= EVERY:
            self.shown = now
            if self.size:
                left = timedelta(seconds=round(seconds * (self.size - done) / max(done - self.first, 1)))
                numbers += f", {share} of the text, about {left} left"
            print(f"translated {numbers}", file=sys.stderr, flush=True)
