"""Pictures of attention. Matplotlib is imported when one is drawn, not before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jax.typing import ArrayLike

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def show_heatmaps(
    matrices: ArrayLike,
    xlabel: str,
    ylabel: str,
    titles: Sequence[str] | None = None,
    figsize: tuple[float, float] = (2.5, 2.5),
    cmap: str = "Reds",
) -> Figure:
    """A grid of heatmaps that share their axes and their colour scale; d2l.ai's `show_heatmaps`.

    Args:
        matrices: `[rows, columns, Q, K]`.
        xlabel, ylabel: what the keys and the queries are.
        titles: one for each column.
        figsize: of the whole figure, in inches.
        cmap: a Matplotlib colour map.

    Returns:
        The figure; nothing is shown or saved.

    Raises:
        ValueError: `matrices` has not four axes, or there are fewer titles than columns.
    """
    from matplotlib.figure import Figure

    grid = np.asarray(matrices, dtype=float)
    if grid.ndim != 4:
        raise ValueError(f"matrices must be [rows, columns, Q, K]; got {list(grid.shape)}")
    rows, columns = grid.shape[:2]
    if titles is not None and len(titles) < columns:
        raise ValueError(f"titles must be {columns}, one a column; got {len(titles)}")
    figure = Figure(figsize=figsize, layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for (i, j), axis in np.ndenumerate(axes):
        image = axis.imshow(grid[i, j], cmap=cmap, vmin=grid.min(), vmax=grid.max())
        if i == rows - 1:
            axis.set_xlabel(xlabel)
        if j == 0:
            axis.set_ylabel(ylabel)
        if titles is not None:
            axis.set_title(titles[j])
    figure.colorbar(image, ax=axes, shrink=0.6)
    return figure


def show_alignments(
    examples: Sequence[tuple[Sequence[str], Sequence[str], ArrayLike]], columns: int = 2, cmap: str = "Reds"
) -> Figure:
    """What each target word attended to, one heatmap a sentence with the words on both axes.

    Args:
        examples: (source words, target words, weights `[target words, source words]`) for each sentence.
        columns: how many heatmaps stand side by side.
        cmap: a Matplotlib colour map; white is 0 and its darkest colour 1 in every heatmap.

    Returns:
        The figure; nothing is shown or saved.

    Raises:
        ValueError: no examples, or weights that do not fit their words.
    """
    from matplotlib.figure import Figure

    if not examples:
        raise ValueError("examples must not be empty")
    columns = min(columns, len(examples))
    rows = -(-len(examples) // columns)
    widest = max(len(source) for source, _, _ in examples)
    highest = max(len(target) for _, target, _ in examples)
    cell = 0.42  # inches for a word
    figure = Figure(figsize=(columns * (1.4 + cell * widest), rows * (1.2 + cell * highest)), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[len(examples) :]:
        axis.set_axis_off()
    for axis, (source, target, weights) in zip(axes, examples, strict=False):
        matrix = np.asarray(weights, dtype=float)
        if matrix.shape != (len(target), len(source)):
            raise ValueError(f"weights must be [{len(target)}, {len(source)}]; got {list(matrix.shape)}")
        image = axis.imshow(matrix, cmap=cmap, vmin=0, vmax=1)
        axis.set_xticks(range(len(source)), source, rotation=60, ha="left", rotation_mode="anchor")
        axis.set_yticks(range(len(target)), target)
        axis.xaxis.tick_top()
        axis.tick_params(length=0)
        axis.set_xticks(np.arange(0.5, len(source)), minor=True)
        axis.set_yticks(np.arange(0.5, len(target)), minor=True)
        axis.grid(which="minor", color="0.9", linewidth=0.5)
    figure.colorbar(image, ax=axes.tolist(), shrink=0.4, label="attention weight")
    return figure


def save(figure: Figure, path: Path | str) -> None:
    """Write a figure as PNG, SVG or PDF, by the suffix of the path."""
    figure.savefig(path, dpi=100, bbox_inches="tight")
