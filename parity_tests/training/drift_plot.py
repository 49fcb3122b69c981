"""The picture of float32 drift: how far either framework comes from PyTorch in float64. Matplotlib only when drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from parity_tests.training.training import Drift

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart in black and white too: one line is dark and solid, the other light and broken.
STYLES: dict[str, dict[str, Any]] = {
    "JAX": {"color": "#08519c", "linestyle": "-", "linewidth": 1.3, "zorder": 3},
    "PyTorch": {"color": "#e6550d", "linestyle": (0, (4, 1.5)), "linewidth": 1.3, "zorder": 2},
}
TITLES = {"parameters": "parameters (median tensor)", "worst parameter": "parameters (worst tensor)", "loss": "loss"}
ROUNDOFF = 2.0**-24


def draw_drift(curves: Sequence[Drift]) -> Figure:
    """A row for each training, a column for each of `DRIFT_FACTORS`; errors on a log scale.

    The error of a single step's loss jumps by chance, often to 0 or nearly. Its single values are dots, and the line is
    their running median. The legend gives the medians over all steps, which are what is judged.

    Raises:
        ValueError: no curves.
    """
    from matplotlib.figure import Figure

    if not curves:
        raise ValueError("curves must not be empty")
    figure = Figure(figsize=(10.5, 0.5 + 2.9 * len(curves)), layout="constrained")
    grid = figure.subplots(len(curves), len(TITLES), sharex=True, sharey=True, squeeze=False)
    for row, (axes, drift) in enumerate(zip(grid, curves, strict=True)):
        for axis, (quantity, title) in zip(axes, TITLES.items(), strict=True):
            _draw(axis, drift, quantity)
            if row == 0:
                axis.set_title(title, fontsize=10)
            if row == len(curves) - 1:
                axis.set_xlabel("training step")
        axes[0].set_ylabel(f"{drift.model}\nerror of float32, max|x − o| / max|o|", fontsize=9)
    return figure


def _draw(axis: Axes, drift: Drift, quantity: str, window: int = 9) -> None:
    steps = np.arange(1, drift.steps + 1)
    for framework, style in STYLES.items():
        errors = drift.curves[quantity][framework]
        label = f"{framework}, median {drift.median(quantity, framework):.1e}"
        shown = np.maximum(errors, ROUNDOFF / 100)  # what is 0 stands at the lower edge
        if quantity == "loss":
            axis.plot(steps, shown, linestyle="none", marker=".", markersize=2.5, color=style["color"], alpha=0.35)
            shown = _running_median(shown, window)
        axis.plot(steps, shown, label=label, **style)
    axis.axhline(ROUNDOFF, color="0.45", linewidth=0.8, linestyle=":", zorder=1)
    if quantity != "loss":  # whose points would cover it
        axis.annotate("u = 2⁻²⁴", (steps[-1], ROUNDOFF), ha="right", va="top", fontsize=8, color="0.35")
    axis.set_yscale("log")
    axis.grid(axis="y", color="0.9", linewidth=0.6)
    axis.legend(fontsize=8, loc="upper right" if quantity == "loss" else "lower right")


def _running_median(values: np.ndarray, window: int) -> np.ndarray:
    """The median of the window around each value, which is shorter at both ends."""
    half = window // 2
    return np.array([np.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))])
