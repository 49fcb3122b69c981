"""Show on stderr how far the translation of a text is."""

import sys
import time
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

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
        columns = (
            TextColumn("translating"),
            BarColumn(),
            TextColumn("{task.percentage:.1f} %  {task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        console = Console(stderr=True)
        self.bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.task = self.bar.add_task("", total=size, completed=done, numbers="")

    def __enter__(self) -> "TextProgress":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def update(self, lines: int, done: int) -> None:
        """Take note of further lines; `done` bytes of the text are translated now."""
        now = time.monotonic()
        self.lines += lines
        seconds = max(now - self.started, 1e-9)
        numbers = f"{self.lines:,} lines, {self.lines / seconds:,.0f} a second"
        self.bar.update(self.task, completed=done, numbers=numbers)
        if self.bar.disable and now - self.shown >= EVERY:
            self.shown = now
            if self.size:
                left = timedelta(seconds=round(seconds * (self.size - done) / max(done - self.first, 1)))
                numbers += f", {done / self.size:.1%} of the text, about {left} left"
            print(f"translated {numbers}", file=sys.stderr, flush=True)
