"""Pictures of attention. Matplotlib is imported when one is drawn, not before."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.typing import ArrayLike

from jax_attn.fonts import boxes_allowed, choose_fonts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle


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
    examples: Sequence[tuple[Sequence[str], Sequence[str], ArrayLike]],
    columns: int = 2,
    cmap: str = "Reds",
    *,
    titles: Sequence[str] | None = None,
    links: Mapping[str, Sequence[Collection[tuple[int, int]]]] | None = None,
) -> Figure:
    """What each target word attended to, one heatmap a sentence with the words on both axes.

    Args:
        examples: (source words, target words, weights `[target words, source words]`) for each sentence.
        columns: how many heatmaps stand side by side.
        cmap: a Matplotlib colour map; white is 0 and its darkest colour 1 in every heatmap.
        titles: one for each heatmap.
        links: cells to be framed, under what they are called (up to three names): for each heatmap, pairs (source
            position, target position), such as the links of a gold alignment.

    Returns:
        The figure; nothing is shown or saved.

    Raises:
        ValueError: no examples, or weights, titles or links that do not fit them.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not examples:
        raise ValueError("examples must not be empty")
    links = {} if links is None else links
    for name, given in (("titles", titles), *links.items()):
        if given is not None and len(given) != len(examples):
            raise ValueError(f"{name} must be {len(examples)}, one a heatmap; got {len(given)}")
    figure = Figure()
    axes: list[Axes] = []
    for source, target, weights in examples:
        matrix = np.asarray(weights, dtype=float)
        if matrix.shape != (len(target), len(source)):
            raise ValueError(f"weights must be [{len(target)}, {len(source)}]; got {list(matrix.shape)}")
        axis = figure.add_axes((0, 0, 1, 1), label=str(len(axes)))
        image = axis.imshow(matrix, cmap=cmap, vmin=0, vmax=1, aspect="auto")
        axis.set_xticks(range(len(source)), source, rotation=60, ha="left", rotation_mode="anchor")
        axis.set_yticks(range(len(target)), target)
        axis.xaxis.tick_top()
        axis.tick_params(length=0, which="both")
        axis.set_xticks(np.arange(0.5, len(source) - 1), minor=True)
        axis.set_yticks(np.arange(0.5, len(target) - 1), minor=True)
        axis.grid(which="minor", color="0.9", linewidth=0.5)
        if titles is not None:
            axis.set_title(titles[len(axes)], fontweight="bold", pad=8)
        frames = _frame(axis, {name: of_each[len(axes)] for name, of_each in links.items()}, matrix.shape)
        labels = [*axis.get_xticklabels(), *axis.get_yticklabels(), axis.title]
        for label in labels:
            label.set_parse_math(False)  # a word's dollar signs are no formula
        choose_fonts(labels)
        axes.append(axis)
    colors = figure.add_axes((0, 0, 1, 1), label="colors")
    figure.colorbar(image, cax=colors, label="attention weight")
    if frames:
        colors.legend(handles=frames, loc="upper left", bbox_to_anchor=(-0.8, -0.06), frameon=False, handlelength=1.2)
    FigureCanvasAgg(figure)  # it measures words
    with boxes_allowed():
        _arrange(figure, axes, colors, min(columns, len(examples)))
    return figure


FRAMES: tuple[dict[str, Any], ...] = (
    {"edgecolor": "tab:blue"},
    {"edgecolor": "tab:blue", "linestyle": (0, (1.5, 1.5))},
    {"edgecolor": "0.3"},
)
"""How framed cells look, in the order of their names."""


def _frame(axis: Axes, links: Mapping[str, Collection[tuple[int, int]]], shape: tuple[int, ...]) -> list[Rectangle]:
    """Frame the cells of links; one frame of each kind for a legend."""
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    shown = []
    for (name, cells), look in zip(links.items(), FRAMES, strict=False):
        on_dark = [withStroke(linewidth=3.5, foreground="white")]
        style: dict[str, Any] = {"fill": False, "linewidth": 1.6, "path_effects": on_dark, **look}
        for source, target in cells:
            if not (0 <= target < shape[0] and 0 <= source < shape[1]):
                raise ValueError(f"{name} must be within [{shape[1]}, {shape[0]}]; got ({source}, {target})")
            axis.add_patch(Rectangle((source - 0.4, target - 0.4), 0.8, 0.8, **style))
        shown.append(Rectangle((0, 0), 1, 1, label=name, **style))
    return shown


CELL, GAP = 0.42, 0.3
"""Inches: the square of a pair of words, and what lies between two heatmaps."""


def _arrange(figure: Figure, axes: Sequence[Axes], colors: Axes, columns: int) -> None:
    """Put heatmaps in a grid, their cells of one size, as far apart as their words need."""
    sizes = [CELL * np.array(axis.images[0].get_size()[::-1]) for axis in axes]  # [width, height]
    left, right, top = np.transpose([_overhang(figure, axis, *size) for axis, size in zip(axes, sizes, strict=True)])
    places = [divmod(i, columns) for i in range(len(axes))]
    widths, heights = np.zeros(columns), np.zeros(places[-1][0] + 1)
    lefts = np.zeros(columns)
    for i, (row, column) in enumerate(places):
        lefts[column] = max(lefts[column], left[i])
        widths[column] = max(widths[column], sizes[i][0] + right[i])
        heights[row] = max(heights[row], sizes[i][1] + top[i])
    width = (lefts + widths).sum() + GAP * (columns - 1)
    height = max(heights.sum() + GAP * (len(heights) - 1), 1.2)
    bar = min(height, 2.5)
    figure.set_size_inches(width + GAP + 0.8, height)
    for i, (row, column) in enumerate(places):
        x = (lefts + widths + GAP)[:column].sum() + lefts[column]
        y = height - (heights + GAP)[:row].sum() - top[i] - sizes[i][1]
        _place(figure, axes[i], x, y, *sizes[i])
    _place(figure, colors, width + GAP, (height - bar) / 2, 0.15, bar)


def _place(figure: Figure, axis: Axes, x: float, y: float, width: float, height: float) -> None:
    """All in inches from the lower left corner."""
    whole_width, whole_height = figure.get_size_inches()
    axis.set_position((x / whole_width, y / whole_height, width / whole_width, height / whole_height))


def _overhang(figure: Figure, axis: Axes, width: float, height: float) -> tuple[float, float, float]:
    """How many inches the words of a heatmap of this size stand out on its left, its right and above it."""
    _place(figure, axis, 0.0, 0.0, width, height)
    box: Any = axis.get_tightbbox()
    return -box.x0 / figure.dpi, max(0.0, box.x1 / figure.dpi - width), box.y1 / figure.dpi - height


MOST_DOTS, LONGEST_SIDE = 40_000_000, 60_000
"""A larger picture would not fit into memory, and Matplotlib draws no longer one."""


def save(figure: Figure, path: Path | str) -> None:
    """Write a figure as PNG, SVG or PDF, by the suffix of the path.

    In an SVG words are text, which whoever looks at it draws with fonts of their own, in whatever script. In the others
    they are pictures, and a warning tells of characters that no font here has: boxes stand for them.
    """
    import matplotlib
    from matplotlib.text import Text

    missing = choose_fonts(figure.findobj(Text))
    if missing and Path(path).suffix != ".svg":
        warnings.warn(
            f"no installed font has {missing}: boxes stand for them in {path}; install one that has them (Noto Sans "
            "CJK has Chinese, Japanese and Korean), or write an .svg, whose words are text",
            stacklevel=2,
        )
    width, height = figure.get_size_inches()
    dpi = min(100.0, (MOST_DOTS / (width * height)) ** 0.5, LONGEST_SIDE / max(width, height))
    with boxes_allowed(), matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(path, dpi=dpi, bbox_inches="tight")
