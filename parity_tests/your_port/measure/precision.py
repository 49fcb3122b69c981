"""How good the outputs are in 16 bits: JAX's error and PyTorch's own, both against PyTorch in float64.

Of an output x and its truth t, the error is √(mean (x − t)²) / √(mean t²). Of logits also: the mean Kullback-Leibler
divergence of their softmax from the truth's, in nats, and the share of positions with the same best token. XLA may
keep more digits than a program states. Then JAX's error is the smaller one, which is no fault.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import log_softmax

from parity_tests.your_port.measure.arrays import is_floating
from parity_tests.your_port.measure.draw import Draw

LOST = 0.3
"""With such an error, in units of the truth's size, a tensor says little about a port."""


@dataclass(frozen=True)
class Side:
    """How far an output of one framework is from the truth."""

    error: float
    divergence: float | None = None
    """Of logits, in nats."""
    best: float | None = None
    """Of logits, the share of positions with the same best token."""


@dataclass(frozen=True)
class Precision:
    """An output in 16 bits."""

    tensor: str
    dtype: str
    jax: Side
    torch: Side
    lost_at: str = ""
    """Where PyTorch's own error is so large that the output shows nothing: its first tensor with such an error."""

    @property
    def ratio(self) -> float:
        """JAX's error in units of PyTorch's."""
        least = np.finfo(float).eps  # PyTorch's own error may be 0
        return self.jax.error / max(self.torch.error, least)

    def __str__(self) -> str:
        text = f"{self.tensor} is off by {self.jax.error:.2g} in JAX, {self.torch.error:.2g} in PyTorch"
        text += f" ({self.ratio:.2g} times)"
        if self.jax.best is not None and self.torch.best is not None:
            text += f"; best tokens {self.jax.best:.1%} and {self.torch.best:.1%}"
            text += f", KL {self.jax.divergence:.1e} and {self.torch.divergence:.1e}"
        if self.lost_at:
            text += f"; it shows nothing: PyTorch itself is lost at {self.lost_at}"
        return text


def measure_precision(draw: Draw, vocabularies: Collection[int]) -> Iterator[Precision]:
    """Measure the floating outputs of a draw in 16 bits.

    Args:
        vocabularies: the sizes of a last axis that is one of logits.
    """
    runs = draw.runs()
    for name, truth in runs.truth.outputs.items():
        sides = [run.outputs.get(name) for run in (runs.jax, runs.torch)]
        if (
            truth is None
            or not is_floating(truth)
            or not truth.any()
            or any(x is None or x.shape != truth.shape for x in sides)
        ):
            continue
        is_logits = truth.ndim > 1 and ("logits" in name or truth.shape[-1] in vocabularies)
        in_jax, in_torch = (_side(np.asarray(x, np.float64), truth.astype(np.float64), is_logits) for x in sides)
        lost_at = _lost_at(draw) or name if in_torch.error > LOST else ""
        yield Precision(name, draw.dtype, in_jax, in_torch, lost_at)


def _side(x: np.ndarray, truth: np.ndarray, is_logits: bool) -> Side:
    error = _error(x, truth)
    if not is_logits:
        return Side(error)
    log_p, log_q = log_softmax(truth, -1), log_softmax(x, -1)
    with np.errstate(invalid="ignore"):  # 0 · −inf
        terms = np.exp(log_p) * (log_p - log_q)
    return Side(error, float(np.nansum(terms, -1).mean()), float((x.argmax(-1) == truth.argmax(-1)).mean()))


def _error(x: np.ndarray, truth: np.ndarray) -> float:
    finite = np.isfinite(truth) & np.isfinite(x)
    size = np.sqrt(np.mean(truth[finite] ** 2)) if finite.any() else 0.0
    return float(np.sqrt(np.mean((x[finite] - truth[finite]) ** 2)) / size) if size else 0.0


def _lost_at(draw: Draw) -> str:
    """Return the first tensor of a submodule of PyTorch that has lost its digits in this dtype."""
    narrow, truth = (draw.in_torch(dtype, record=True).trace for dtype in (draw.dtype, "float64"))
    for x, y in zip(narrow, truth, strict=False):
        if x.name != y.name or x.value.shape != y.value.shape:
            break
        if _error(x.value.astype(np.float64), y.value.astype(np.float64)) > LOST:
            return x.name
    return ""
