"""The messages of a run: what it reads, how far the training is, and its results."""

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jax_attn.compiler import avoided_faults
from train.config import SUBWORDS, Config
from train.data.corpus import counted
from train.data.dataset import Data
from train.progress import Bar
from train.runs.run_folder import RunFolder
from train.training.report import Report


class StandardOutput:
    """Standard output. Where it is closed or full, a training goes on without it."""

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            sys.stdout.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            sys.stdout.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)


CONSOLE = Console(file=StandardOutput(), highlight=False)  # type: ignore[arg-type]  # it has what a file has


def show_start(config: Config, data: Data, folder: RunFolder, batches: str) -> None:
    """Print the sizes of the data, the lines that are not used, the description of the batches, and the run folder."""
    origin = " and ".join(config.data) or "the embedded corpus"
    kind = "pieces" if config.corpus.tokenizer in SUBWORDS else "words"
    lines = [
        f"{len(data.train)} pairs for training, {len(data.valid)} for validation, {len(data.test)} for test "
        f"from {origin}; {len(data.source)} and {len(data.target)} {kind} known",
        *(f"  {reason}" for reason in counted(data.report)),
        batches,
        *(f"{fault}: this program avoids it" for fault in avoided_faults()),
        f"run folder: {folder.path}",
    ]
    CONSOLE.print("\n".join(lines), markup=False, soft_wrap=True)


class Progress:
    """A bar over all training steps, and a line for each report, or for about twenty of them if there are more.

    Without a terminal a line each minute takes the place of the bar.
    """

    def __init__(self, num_steps: int, num_reports: int) -> None:
        self.num_steps, self.every = num_steps, max(1, num_reports // 20)
        self.reports = 0
        self.started: float | None = None
        self.tokens = self.first_tokens = 0
        self.bar = Bar("training", num_steps, console=CONSOLE)

    def __enter__(self) -> "Progress":
        self.bar.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.__exit__()

    def update(self, step: int, loss: float, tokens: int = 0) -> None:
        """Move the bar.

        Args:
            step: the steps done since the beginning of the training.
            loss: nats a token of a late step.
            tokens: the target tokens learnt from since the last call.
        """
        now = time.perf_counter()
        self.tokens += tokens
        if self.started is None:  # after the first step, which compiles
            self.started, self.first_tokens = now, self.tokens
        numbers = f"{step}/{self.num_steps} steps  loss {loss:.4f}"
        if self.tokens > self.first_tokens:
            numbers += f"  {(self.tokens - self.first_tokens) / (now - self.started):,.0f} tokens/s"
        self.bar.update(step, numbers)

    def show_compiling(self, number: int, count: int) -> None:
        """Say which of the training's programs is being compiled."""
        self.bar.update(None, f"compiling {number} of {count}", at_once=True)

    def show_report(self, report: Report) -> None:
        """Print a line of what was learnt since the last report."""
        self.update(report.step, report.loss)
        self.reports += 1
        if self.reports % self.every and report.step < self.num_steps:
            return
        numbers = [f"epoch {report.epoch}", f"loss {report.loss:.4f} nats a token"]
        if report.valid_loss is not None:
            numbers.append(f"validation {report.valid_loss:.4f}")
        numbers += [f"{name} {score:.1f}" for name, score in report.scores().items()]
        if report.skipped:
            numbers.append(f"{report.skipped} steps left out, their gradients were not finite")
        step = f"step {report.step:>{len(str(self.num_steps))}}"
        numbers.append(f"{report.tokens / report.seconds:,.0f} tokens/s")
        CONSOLE.print("   ".join([step, *numbers]), soft_wrap=True)


def show_results(summary: Mapping[str, Any], folder: RunFolder, book_loss: bool = False) -> None:
    """Print translations and scores, and if asked for the loss by the book's measure."""
    table = Table("source", "translation", "reference", title="translations", title_justify="left")
    for row in summary["translations"]:
        cells = (row["source"], row["translation"], " / ".join(row["references"]))
        table.add_row(*map(Text, cells))  # as Text, since brackets in a sentence are not markup
    CONSOLE.print(table)
    if summary["bleu"] is not None:
        CONSOLE.print(f"{summary['test_pairs']} sentence{'s' * (summary['test_pairs'] != 1)} never seen:", markup=False)
        CONSOLE.print(f"  BLEU {summary['bleu']:.1f}   {summary['bleu_signature']}", markup=False)
        CONSOLE.print(f"  chrF {summary['chrf']:.1f}   {summary['chrf_signature']}", markup=False)
    if summary["alignment_error_rate"] is not None:
        diagonal = summary["alignment_error_rate_of_diagonal"]
        CONSOLE.print(f"  alignment error {summary['alignment_error_rate']:.3f}   (of the diagonal: {diagonal:.3f})")
    CONSOLE.print(f"loss {summary['loss']:.4f} nats a token")
    if book_loss:
        CONSOLE.print(
            f"loss by the book's measure {summary['loss_book']:.4f}, the mean of the last epochs; "
            f"{summary['loss_book_best']:.4f} in the best one",
            soft_wrap=True,
        )
    CONSOLE.print(
        f"{summary['tokens_per_second']:,.0f} tokens/s; {summary['seconds']:.0f} s in all; see {folder.path}",
        soft_wrap=True,
    )
