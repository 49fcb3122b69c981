"""What a person sees of a run."""

from collections.abc import Mapping
from typing import Any

import rich.progress
from rich.console import Console
from rich.table import Table
from rich.text import Text

from train.checkpoint import RunFolder
from train.config import Config
from train.data.dataset import Data
from train.learner import Epoch

CONSOLE = Console(highlight=False)


def show_start(config: Config, data: Data, folder: RunFolder) -> None:
    """What is about to be learnt from what, and every line of the corpus that was not used."""
    origin = "the embedded corpus" if config.data is None else str(config.data)
    CONSOLE.print(
        f"{len(data.corpus.train)} pairs for training, {len(data.corpus.valid)} for validation, "
        f"{len(data.corpus.test)} for test from {origin}; {len(data.source)} and {len(data.target)} words known",
        markup=False,
    )
    for reason, count in data.corpus.report.items():
        CONSOLE.print(f"  {count} {reason}", markup=False)
    CONSOLE.print(f"run folder: {folder.path}", markup=False, soft_wrap=True)


class Progress:
    """A bar over the epochs, and a line for each, or for about twenty of them where there are more."""

    def __init__(self, num_epochs: int) -> None:
        self.num_epochs = num_epochs
        self.every = max(1, num_epochs // 20)
        self.bar = rich.progress.Progress(
            rich.progress.TextColumn("training"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("epochs"),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TextColumn("of about"),
            rich.progress.TimeRemainingColumn(elapsed_when_finished=True),
            console=CONSOLE,
            transient=True,
            disable=not CONSOLE.is_terminal,
        )
        self.task = self.bar.add_task("training", total=num_epochs)

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self, epoch: Epoch) -> None:
        """An epoch that is done."""
        self.bar.update(self.task, completed=epoch.epoch)
        if epoch.epoch % self.every and epoch.epoch != self.num_epochs:
            return
        valid = "" if epoch.valid_loss is None else f"   validation {epoch.valid_loss:.4f}"
        speed = epoch.tokens / epoch.seconds
        self.bar.console.print(
            f"epoch {epoch.epoch:>{len(str(self.num_epochs))}}   loss {epoch.loss:.4f} nats a token{valid}"
            f"   {speed:,.0f} tokens/s"
        )


def show_results(summary: Mapping[str, Any], folder: RunFolder) -> None:
    """Translations and scores."""
    table = Table("source", "translation", "reference", title="translations", title_justify="left")
    for row in summary["translations"]:
        cells = (row["source"], row["translation"], " / ".join(row["references"]))
        table.add_row(*(Text(cell) for cell in cells))  # as they are: a sentence's brackets are no markup
    CONSOLE.print(table)
    if summary["bleu"] is not None:
        CONSOLE.print(f"{summary['test_pairs']} sentences never seen:", markup=False)
        CONSOLE.print(f"  BLEU {summary['bleu']:.1f}   {summary['bleu_signature']}", markup=False)
        CONSOLE.print(f"  chrF {summary['chrf']:.1f}   {summary['chrf_signature']}", markup=False)
    if summary["alignment_error_rate"] is not None:
        CONSOLE.print(
            f"  alignment error {summary['alignment_error_rate']:.3f}   "
            f"(the diagonal's: {summary['alignment_error_rate_of_diagonal']:.3f})"
        )
    CONSOLE.print(
        f"loss {summary['loss']:.4f} nats a token; by the book's measure {summary['loss_book']:.4f} "
        f"over the last epochs, {summary['loss_book_best']:.4f} at best",
        soft_wrap=True,
    )
    CONSOLE.print(f"{summary['tokens_per_second']:,.0f} tokens/s; {summary['seconds']:.0f} s in all; see {folder.path}")
