"""The progress of all programs: how far a training, a text, a corpus or a download is."""

import math
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from threading import current_thread, main_thread
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Item = TypeVar("Item")

REDRAW = 0.1
"""Seconds between two updates, at least."""
PATIENCE = 1.0
"""Seconds before the reading of a corpus shows a bar."""
LINE_EVERY = 60.0
"""Seconds between two lines where there is no terminal."""
SPEED_OVER = 300.0
"""The time that is left goes by the speed of so many seconds."""


class Bar:
    """A bar at a terminal, which vanishes at its end; a line each minute elsewhere, as in the file of a cluster's job.

    Args:
        task: what is done.
        total: how much there is to do; None if that is not known.
        done: how much of it was done before.
        console: by default that of stderr.
    """

    def __init__(self, task: str, total: float | None = None, done: int = 0, console: Console | None = None) -> None:
        console = Console(stderr=True) if console is None else console
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),  # a file's name may have brackets
            BarColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            speed_estimate_period=SPEED_OVER,
            get_time=time.monotonic,
        )
        self.task = self.bar.add_task(task, total=total, completed=done, numbers="")
        self.drawn, self.printed = -math.inf, time.monotonic()

    def __enter__(self) -> "Bar":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def update(self, done: int | None, numbers: str, total: float | None = None, at_once: bool = False) -> None:
        """Move the bar, at most ten times a second, or print a line: cheap enough to be called after every step.

        Args:
            done: how much is done; None leaves the bar where it is.
            numbers: what stands behind the bar.
            total: how much there is to do, where that was not known.
            at_once: show it even if the last update was a moment ago.
        """
        now = time.monotonic()
        if now - self.drawn >= REDRAW or at_once:
            self.drawn = now
            self.bar.update(self.task, completed=done, numbers=numbers, total=total)
        if self.bar.disable and now - self.printed >= LINE_EVERY:
            self.printed = now
            task = self.bar.tasks[0]
            left = "" if task.time_remaining is None else f"  about {timedelta(seconds=task.time_remaining)} left"
            self.bar.console.print(
                f"{task.description}: {numbers}{left}", markup=False, highlight=False, soft_wrap=True
            )


def show_progress(items: Iterable[Item], task: str, total: int | None = None) -> Iterator[Item]:
    """Yield the items. If that takes more than a second, their progress is shown.

    In the background nothing is shown.
    """
    if current_thread() is not main_thread():
        yield from items
        return
    started, bar = time.monotonic(), Bar(task, total)
    of_all = "" if total is None else f" of {total:,}"
    try:
        for count, item in enumerate(items):
            if count % 4096 == 0 and time.monotonic() - started > PATIENCE:
                bar.bar.start()
                bar.update(count, f"{count:,}{of_all}")
            yield item
    finally:
        bar.bar.stop()
