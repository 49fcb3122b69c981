"""The interface between a run and the model that it trains, in either framework."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from jax_attn.search import SearchResult
from train.data.batches import Examples


class Epoch(NamedTuple):
    """The results of one pass over the training pairs."""

    epoch: int
    loss: float
    """The mean cross entropy of a label token while training, in nats."""
    loss_book: float
    """The loss by the book's measure: the sum of the sentences' mean losses over all label positions, divided by the
    number of label tokens."""
    valid_loss: float | None
    """The mean cross entropy of a label token of the validation pairs, after the epoch, in nats."""
    tokens: int
    """The number of label tokens, `<eos>` included."""
    seconds: float
    """The time of training alone; in the first epoch with compilation."""


ReportEpoch = Callable[[Epoch], None]

ReportProgress = Callable[[int, float, int], None]
"""report(steps done since the start, loss of a late step in nats a token, tokens since the last report)."""


class Learner(Protocol):
    """A model that learns from the data of a run."""

    @property
    def steps_per_epoch(self) -> int:
        """The training steps of an epoch."""
        raise NotImplementedError

    def fit(self, report: ReportEpoch, progress: ReportProgress) -> None:
        """Train. Report each epoch at its end, and the progress every now and then."""

    def search(self, sources: np.ndarray, source_lens: np.ndarray, numbers: np.ndarray) -> SearchResult:
        """Translate padded sources `[rows, S]`; sampling draws by the sentences' numbers."""

    def force_decode(self, examples: Examples) -> np.ndarray | None:
        """Return the attention weights `[examples, T, S]` of the references, None without attention."""

    def weights(self) -> dict[str, np.ndarray]:
        """Return the parameters by PyTorch's names."""

    def save(self, path: Path) -> None:
        """Write a checkpoint in the framework's own format."""
