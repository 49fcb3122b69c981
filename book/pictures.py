"""The book's plots: curves, and a histogram of lengths. Matplotlib is imported when the first one is drawn."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def plot(
    X: Any,
    Y: Any = None,
    xlabel: str | None = None,
    ylabel: str | None = None,
    legend: Sequence[str] = (),
    xlim: Sequence[float] | None = None,
    ylim: Sequence[float] | None = None,
    figsize: tuple[float, float] = (3.5, 2.5),
) -> Any:
    """Draw curves: `d2l.plot(d2l.arange(60), P[0, :, 6:10].T, xlabel="Row (position)", legend=[…])`.

    Args:
        X: the horizontal positions `[T]`; or the values, if Y is left out.
        Y: the values, `[T]` or `[curves, T]`.

    Returns:
        The figure. A notebook shows it if it is the last value of a cell.
    """
    from jax_attn.plots import make_figure

    curves = np.atleast_2d(np.asarray(X if Y is None else Y, float))
    positions = np.arange(curves.shape[1]) if Y is None else np.asarray(X, float)
    if positions.shape != curves.shape[1:]:
        raise ValueError(f"X must be [{curves.shape[1]}] for Y {list(curves.shape)}; got {list(positions.shape)}")
    figure = make_figure(figsize=figsize, layout="constrained")
    axis = figure.subplots()
    for curve, style in zip(curves, ("-", "--", "-.", ":") * len(curves), strict=False):
        axis.plot(positions, curve, style)
    axis.set(xlabel=xlabel, ylabel=ylabel)
    if xlim is not None:
        axis.set_xlim(*xlim)
    if ylim is not None:
        axis.set_ylim(*ylim)
    if legend:
        axis.legend(legend)
    axis.grid()
    return figure


def show_list_len_pair_hist(
    legend: Sequence[str], xlabel: str, ylabel: str, xlist: Sequence[Any], ylist: Sequence[Any]
) -> Any:
    """Draw the lengths of two lists of sentences (1.0).

    It is called as `show_list_len_pair_hist(["source", "target"], "# tokens per sequence", "count", src, tgt)`.
    """
    from jax_attn.plots import make_figure

    figure = make_figure(figsize=(3.5, 2.5), layout="constrained")
    axis = figure.subplots()
    axis.hist([[len(line) for line in lines] for lines in (xlist, ylist)], hatch=["", "/"])
    axis.set(xlabel=xlabel, ylabel=ylabel)
    axis.legend(legend)
    return figure
