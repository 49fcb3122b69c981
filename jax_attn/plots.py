"""Pictures of attention. Matplotlib, of the extra `plots`, is imported when the first one is drawn."""

from __future__ import annotations

import io
import unicodedata
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.typing import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Noto Sans JP", "Noto Sans KR", "Source Han Sans SC",
    "WenQuanYi Zen Hei", "Hiragino Sans GB", "Hiragino Sans", "Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic",
    "Malgun Gothic", "Arial Unicode MS", "Noto Sans", "Noto Sans Hebrew", "Noto Sans Arabic", "Noto Sans Devanagari",
    "Noto Sans Bengali", "Noto Sans Tamil", "Noto Sans Thai", "Noto Sans Georgian", "Noto Sans Armenian",
    "Noto Sans Ethiopic", "Nirmala UI", "Leelawadee UI", "Segoe UI", "STIXGeneral",
)  # fmt: skip
"""The fonts for characters that the user's own ones lack, where they are installed. Matplotlib's have no Chinese."""


def make_figure(**settings: Any) -> Figure:
    """Return a Matplotlib figure that a notebook cell displays, with all of its labels. It opens no window.

    Raises:
        ImportError: Matplotlib is not installed.
    """
    return _figure_class()(**settings)


@cache
def _figure_class() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ImportError("pictures need Matplotlib; run: pip install 'jax-attn[plots]'") from error

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            with _many_scripts():
                self.savefig(file, format="png", bbox_inches="tight")
            return file.getvalue()

    return NotebookFigure


@contextmanager
def _many_scripts() -> Iterator[None]:
    """Write texts in `FONTS` where the user's fonts end. Matplotlib does not warn of missing ones at every drawing."""
    import matplotlib
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    families = [*matplotlib.rcParams["font.family"], *(name for name in FONTS if name in installed)]
    with matplotlib.rc_context({"font.family": families}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def show_heatmaps(
    matrices: ArrayLike,
    xlabel: str,
    ylabel: str,
    titles: Sequence[str] | None = None,
    figsize: tuple[float, float] = (2.5, 2.5),
    cmap: str = "Reds",
) -> Figure:
    """Draw a grid of heatmaps that share their axes and their colour scale, as d2l.ai's `show_heatmaps` does.

    Args:
        matrices: `[rows, columns, Q, K]`. A cell that is NaN or infinite stays blank.
        xlabel: the name of the horizontal axis, K: usually "keys".
        ylabel: the name of the vertical axis, Q: usually "queries".
        titles: one for each column.
        figsize: width and height of the whole figure in inches.
        cmap: a Matplotlib colour map.

    Returns:
        The figure. A notebook shows it if it is the last value of a cell; `figure.savefig` writes it.

    Raises:
        ValueError: `matrices` does not have four axes, or there are fewer titles than columns.
    """
    grid = np.asarray(matrices, dtype=float)
    if grid.ndim != 4:
        raise ValueError(f"matrices must be [rows, columns, Q, K]; got {list(grid.shape)}")
    rows, columns = grid.shape[:2]
    if titles is not None and len(titles) < columns:
        raise ValueError(f"titles must be {columns}, one a column; got {len(titles)}")
    finite = np.ma.masked_invalid(grid)  # masked log weights are −inf, and would leave no scale for the others
    figure = make_figure(figsize=figsize, layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for (i, j), axis in np.ndenumerate(axes):
        image = axis.imshow(grid[i, j], cmap=cmap, vmin=finite.min(), vmax=finite.max())
        axis.locator_params(integer=True)
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
    xlabel: str = "source",
    ylabel: str = "translation",
) -> Figure:
    """Draw what each target word attended to: one heatmap for each sentence, with the words on both axes.

    Args:
        examples: (source words, target words, weights `[target words, source words]`) for each sentence.
        columns: the number of heatmaps side by side.
        cmap: a Matplotlib colour map. Its first colour stands for 0 and its last for 1 in every heatmap.
        titles: one for each heatmap.
        links: cells to frame. Each of up to three names has, for each heatmap, pairs (source position, target
            position), such as the links of a gold alignment.
        xlabel: the name of the horizontal axis, the columns.
        ylabel: the name of the vertical axis, the rows.

    Returns:
        The figure. A notebook shows it if it is the last value of a cell; `save` writes it.

    Raises:
        ValueError: there are no examples, or weights, titles or links do not fit them.
    """
    if not examples:
        raise ValueError("examples must not be empty")
    links = {} if links is None else links
    if len(links) > len(FRAMES):
        raise ValueError(f"links must have at most {len(FRAMES)} names; got {', '.join(links)}")
    for name, given in (("titles", titles), *links.items()):
        if given is not None and len(given) != len(examples):
            raise ValueError(f"{name} must be {len(examples)}, one a heatmap; got {len(given)}")
    figure = make_figure()
    with _many_scripts():
        axes = [_add_heatmap(figure, *example, cmap) for example in examples]
        for i, axis in enumerate(axes):
            axis.set_xlabel(xlabel, color="0.35", loc="left")
            axis.set_ylabel(ylabel, color="0.35", loc="top")
            if titles is not None:
                axis.set_title(titles[i], pad=8)
            frames = _frame(axis, {name: cells[i] for name, cells in links.items()})
        colors = figure.add_axes((0, 0, 1, 1), label="colors")
        figure.colorbar(axes[0].images[0], cax=colors, label="attention weight")
        if frames:
            place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (-0.8, -0.06)}
            colors.legend(handles=frames, frameon=False, handlelength=1.2, **place)
        _arrange(figure, axes, colors, min(columns, len(examples)))
    return figure


def _add_heatmap(figure: Figure, source: Sequence[str], target: Sequence[str], weights: ArrayLike, cmap: str) -> Axes:
    """Draw the heatmap of one sentence; `_arrange` gives it its place."""
    matrix = np.asarray(weights, dtype=float)
    if matrix.shape != (len(target), len(source)):
        raise ValueError(f"weights must be [{len(target)}, {len(source)}]; got {list(matrix.shape)}")
    axis = figure.add_axes((0, 0, 1, 1), label=str(len(figure.axes)))
    axis.imshow(matrix, cmap=cmap, vmin=0, vmax=1, aspect="auto")
    source, target = [_printable(word) for word in source], [_printable(word) for word in target]
    axis.set_xticks(range(len(source)), source, rotation=60, ha="left", rotation_mode="anchor", parse_math=False)
    axis.set_yticks(range(len(target)), target, parse_math=False)
    axis.xaxis.tick_top()
    axis.xaxis.set_label_position("top")
    axis.tick_params(length=0, which="both")
    axis.set_xticks(np.arange(0.5, len(source) - 1), minor=True)
    axis.set_yticks(np.arange(0.5, len(target) - 1), minor=True)
    axis.grid(which="minor", color="0.9", linewidth=0.5)
    axis.title.set_parse_math(False)  # a word's dollar signs are no formula
    return axis


def _printable(word: str) -> str:
    """Replace control characters, lone surrogates and U+FFFF: an SVG must not hold them, and no font draws them."""
    return "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cs") or c in "\ufffe\uffff" else c for c in word)


FRAMES: tuple[dict[str, Any], ...] = (
    {"edgecolor": "tab:blue"},
    {"edgecolor": "tab:blue", "linestyle": (0, (1.5, 1.5))},
    {"edgecolor": "0.3"},
)
"""The styles of framed cells, in the order of the names in `links`."""


def _frame(axis: Axes, links: Mapping[str, Collection[tuple[int, int]]]) -> list[Rectangle]:
    """Frame the cells of links. Return one frame of each style, for the legend."""
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    rows, columns = axis.images[0].get_size()
    frames = []
    for (name, cells), style in zip(links.items(), FRAMES, strict=False):
        halo = [withStroke(linewidth=3.5, foreground="white")]  # so that a frame is seen on a dark cell
        look: dict[str, Any] = {"fill": False, "linewidth": 1.6, "path_effects": halo, **style}
        for source, target in cells:
            if not (0 <= target < rows and 0 <= source < columns):
                raise ValueError(f"{name} must be within [{columns}, {rows}]; got ({source}, {target})")
            axis.add_patch(Rectangle((source - 0.4, target - 0.4), 0.8, 0.8, **look))
        frames.append(Rectangle((0, 0), 1, 1, label=name, **look))
    return frames


CELL, GAP = 0.42, 0.3
"""Inches: the side of a cell, and the space between two heatmaps."""


def _arrange(figure: Figure, axes: Sequence[Axes], colors: Axes, columns: int) -> None:
    """Put heatmaps in a grid: cells of one size, columns and rows as far apart as the words need."""
    sizes = [CELL * np.array(axis.images[0].get_size()[::-1]) for axis in axes]  # [width, height]
    margins = [_margins(figure, axis, *size) for axis, size in zip(axes, sizes, strict=True)]
    left, right, top, bottom = np.transpose(margins)
    places = [divmod(i, columns) for i in range(len(axes))]
    lefts, widths, heights = np.zeros(columns), np.zeros(columns), np.zeros(places[-1][0] + 1)
    for i, (row, column) in enumerate(places):
        lefts[column] = max(lefts[column], left[i])
        widths[column] = max(widths[column], sizes[i][0] + right[i])
        heights[row] = max(heights[row], sizes[i][1] + top[i] + bottom[i])
    width = (lefts + widths).sum() + GAP * (columns - 1)
    height = max(heights.sum() + GAP * (len(heights) - 1), 1.2)
    figure.set_size_inches(width + GAP + 0.8, height)
    for i, (row, column) in enumerate(places):
        x = (lefts + widths + GAP)[:column].sum() + lefts[column]
        y = height - (heights + GAP)[:row].sum() - top[i] - sizes[i][1]
        _place(figure, axes[i], x, y, *sizes[i])
    bar = min(height, 2.5)
    _place(figure, colors, width + GAP, (height - bar) / 2, 0.15, bar)


def _place(figure: Figure, axis: Axes, x: float, y: float, width: float, height: float) -> None:
    """Place an axis; all numbers are inches from the lower left corner."""
    whole_width, whole_height = figure.get_size_inches()
    axis.set_position((x / whole_width, y / whole_height, width / whole_width, height / whole_height))


def _margins(figure: Figure, axis: Axes, width: float, height: float) -> tuple[float, float, float, float]:
    """Measure the inches that the words around a heatmap of this size need: left, right, top, bottom."""
    _place(figure, axis, 0.0, 0.0, width, height)
    box: Any = axis.get_tightbbox()
    left, right, top, bottom = np.array([-box.x0, box.x1, box.y1, -box.y0]) / figure.dpi
    return left, max(0.0, right - width), top - height, max(0.0, bottom)


DPI, MAX_PIXELS, MAX_SIDE = 200, 40_000_000, 60_000
"""Dots an inch, and limits of a picture: more pixels would fill the memory, and Matplotlib draws no longer side."""


def save(figure: Figure, path: Path | str) -> None:
    """Write a figure as PNG, SVG or PDF, by the suffix of the path, with 200 dots an inch.

    An SVG holds words as text, and the viewer's fonts draw them. The other formats hold the drawn words, and a warning
    names the characters that no font of the figure has: boxes stand for them.
    """
    import matplotlib

    missing = _missing_characters(figure)
    if missing and Path(path).suffix.lower() != ".svg":
        warnings.warn(
            f"no installed font has {missing}: boxes stand for them in {path}; install one that has them (Noto Sans "
            "CJK has Chinese, Japanese and Korean), or write an .svg, whose words are text",
            stacklevel=2,
        )
    width, height = figure.get_size_inches()
    dpi = min(DPI, (MAX_PIXELS / (width * height)) ** 0.5, MAX_SIDE / max(width, height))
    with _many_scripts(), matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(path, dpi=dpi, bbox_inches="tight")


def _missing_characters(figure: Figure) -> str:
    """Return the characters that no font of their text has."""
    from matplotlib.font_manager import FontProperties, findfont, get_font
    from matplotlib.text import Text

    missing = set()
    for text in figure.findobj(Text):
        found = {c for c in text.get_text() if not c.isspace() and unicodedata.category(c) not in ("Cc", "Cf")}
        for family in text.get_fontfamily() if found else ():
            found -= set(map(chr, get_font(findfont(FontProperties(family=[family]))).get_charmap()))
        missing |= found
    return "".join(sorted(missing))
