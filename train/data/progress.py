"""Show how far the reading of a long file is."""

import time
from collections.abc import Iterable, Iterator
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import rich.progress

Item = TypeVar("Item")

PATIENCE = 1.0
"""Seconds before anything is shown."""

EVERY = 4096
"""Items between two updates."""


def show_progress(items: Iterable[Item], task: str, total: int | None = None) -> Iterator[Item]:
    """Yield the items. If that takes more than a second, a terminal shows the task and the number of items.

    In the background nothing is shown.
    """
    started = time.monotonic()
    bar = None
    try:
        for count, item in enumerate(items):
            if count % EVERY == 0 and count:
                if bar is not None:
                    bar.update(bar.task_ids[0], completed=count)
                elif time.monotonic() - started > PATIENCE and current_thread() is main_thread():
                    bar = _start_bar(task, total)
            yield item
    finally:
        if bar is not None:
            bar.stop()


def _start_bar(task: str, total: int | None) -> "rich.progress.Progress":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    console = Console(stderr=True)
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    bar.add_task(task, total=total)
    bar.start()
    return bar
