"""Draw float32 drift: how far each framework gets from PyTorch in float64. Matplotlib is imported when drawing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from parity_tests.this_library.report.tables import TrainingRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Distinct in black and white too: one line is dark and solid, the other light and broken.
STYLES: dict[str, dict[str, Any]] = {
    "JAX": {"color": "#08519c", "linestyle": "-", "linewidth": 1.3, "zorder": 3},
    "PyTorch": {"color": "#e6550d", "linestyle": (0, (4, 1.5)), "linewidth": 1.3, "zorder": 2},
}
TITLES = {"parameters": "parameters (median tensor)", "worst parameter": "parameters (worst tensor)", "loss": "loss"}
ROUNDOFF = 2.0**-24


def draw_drift(rows: Sequence[TrainingRow]) -> Figure:
    """Draw a row for each training, all of them drifts, and a column for each quantity; errors on a log scale.

    The error of a single step's loss jumps by chance, often to 0 or nearly. So its values are dots, and the line is
    their running median. The legend gives the medians over all steps, which decide the verdict.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 0.5 + 2.9 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), len(TITLES), sharex=True, sharey=True, squeeze=False)
    for axes, row in zip(grid, rows, strict=True):
        for axis, quantity in zip(axes, TITLES, strict=True):
            _draw(axis, quantity, (row.curves or {})[quantity])
        axes[0].set_ylabel(f"{row.training}\nerror of float32, max|x − o| / max|o|", fontsize=9)
    for top, bottom, title in zip(grid[0], grid[-1], TITLES.values(), strict=True):
        top.set_title(title, fontsize=10)
        bottom.set_xlabel("training step")
    return figure


def _draw(axis: Axes, quantity: str, curves: dict[str, list[float]]) -> None:
    for framework, style in STYLES.items():
        label = f"{framework}, median {np.median(curves[framework]):.1e}"
        shown = np.maximum(curves[framework], ROUNDOFF / 100)  # an error of 0 is drawn at the lower edge
        steps = np.arange(1, len(shown) + 1)
        if quantity == "loss":
            axis.plot(steps, shown, linestyle="none", marker=".", markersize=2.5, color=style["color"], alpha=0.35)
            shown = np.array([np.median(shown[max(0, i - 4) : i + 5]) for i in range(len(shown))])
        axis.plot(steps, shown, label=label, **style)
    axis.axhline(ROUNDOFF, color="0.45", linewidth=0.8, linestyle=":", zorder=1)
    if quantity != "loss":  # its dots would cover the words
        axis.text(1.0, ROUNDOFF, "u = 2⁻²⁴", transform=axis.get_yaxis_transform(), ha="right", va="top", fontsize=8)
    axis.set_yscale("log")
    axis.grid(axis="y", color="0.9", linewidth=0.6)
    axis.legend(fontsize=8, loc="upper right" if quantity == "loss" else "lower right")
