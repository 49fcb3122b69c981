"""What a training tells its run."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np


class DivergenceError(ArithmeticError):
    """The loss is NaN or infinite, or the gradients are."""


class UnsavedError(Exception):
    """The run folder does not hold all that was trained; the message says what it holds, and what to do."""


class Report(NamedTuple):
    """What was learnt since the last report: an epoch, or the steps between two validations."""

    step: int
    """The number of steps taken."""
    epoch: int
    """The epoch of the last step, from 1 on."""
    loss: float
    """The mean cross entropy of a label token while training, in nats: with dropout, without label smoothing."""
    loss_book: float
    """The loss by the book's measure: the sum of the sentences' mean losses over all label positions, divided by the
    number of label tokens."""
    valid_loss: float | None
    """The mean cross entropy of a label token of the validation pairs, in nats."""
    tokens: int
    """The number of label tokens, `<eos>` included."""
    seconds: float
    """The time of training alone; before the first report with compilation."""
    skipped: int = 0
    """Steps that were left out, since a gradient was not finite."""
    bleu: float | None = None
    """BLEU of the validation pairs by greedy search, if it chooses the best."""
    chrf: float | None = None
    """chrF, likewise."""

    def scores(self) -> dict[str, float]:
        """Return the scores that were taken, by name."""
        scores = {"BLEU": self.bleu, "chrF": self.chrf}
        return {name: score for name, score in scores.items() if score is not None}


class Recorder(Protocol):
    """What a training tells its run."""

    def progress(self, step: int, loss: float, tokens: int) -> None:
        """Show the number of steps taken, the loss of a late one, and the tokens since the last call."""

    def compiling(self, number: int, count: int) -> None:
        """Show that the next step compiles a program, and which of all that the training needs."""

    def report(self, report: Report) -> None:
        """Write down what was learnt."""

    def keep(self, weights: Mapping[str, np.ndarray]) -> None:
        """Write parameters to translate with: they are the best until now."""

    def kept(self) -> dict[str, np.ndarray]:
        """Read the parameters that `keep` wrote last."""

    def save(self, step: int, state: Any, position: dict[str, Any]) -> None:
        """Write a checkpoint."""

    def restore(self, like: Any) -> tuple[Any, dict[str, Any]] | None:
        """Read the last checkpoint; None if there is none, or if the run is a new one."""

    def should_stop(self) -> bool:
        """Return whether the user or the system wants the training to stop."""
