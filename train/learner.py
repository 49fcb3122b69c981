"""What a run asks of the model that it trains, whatever framework the model is written in."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from jax_attn.search import SearchResult
from train.data.batches import Examples


class Epoch(NamedTuple):
    """What one pass over the training pairs came to."""

    epoch: int
    loss: float
    """Nats a token that counts, while training."""
    loss_book: float
    """The book's measure: the sentences' mean losses over all label positions, summed, a token that counts."""
    valid_loss: float | None
    """Nats a token of the validation pairs, after the epoch."""
    tokens: int
    """Target tokens learnt from, `<eos>` counted in."""
    seconds: float
    """Of training alone; the first epoch's hold the compilation."""


class Learner(Protocol):
    """A model that learns from a run's data, whatever framework it is written in."""

    def fit(self, report: Callable[[Epoch], None]) -> None:
        """Train, and report each epoch when it is done."""

    def search(self, sources: np.ndarray, source_lens: np.ndarray, numbers: np.ndarray) -> SearchResult:
        """Hypotheses for padded sources `[rows, S]`; sampling draws by the sentences' numbers."""

    def force_decode(self, examples: Examples) -> np.ndarray | None:
        """Attention weights `[examples, T, S]` while the references are read; None without attention."""

    def weights(self) -> dict[str, np.ndarray]:
        """The parameters under PyTorch's names."""

    def save(self, path: Path) -> None:
        """Write a checkpoint in the framework's own format."""
