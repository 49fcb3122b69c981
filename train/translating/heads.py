"""Find the head that aligns best: the alignment error of every layer and head, in numbers and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jax_attn.plots import make_figure
from train.data.corpus import Pair
from train.data.vocabulary import EOS
from train.translating.metrics import alignment_counts, alignment_error_of, peaks
from train.translating.translation import by_words
from train.translating.translator import Translator

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class HeadErrors(NamedTuple):
    """Alignment error rates of links that attention to the source finds while the references are read."""

    heads: Float[np.ndarray, "layer head"]
    means: Float[np.ndarray, "layer"]
    """The error of the mean of each layer's heads."""


def alignment_errors(translator: Translator, pairs: Sequence[Pair]) -> HeadErrors:
    """Let a model with attention read the references, and compare the links of each head with the gold alignments."""
    targets = [[*translator.target.encode(pair.target), EOS] for pair in pairs]
    counts: Any = 0
    for batch, maps in translator.read_maps([(pair.source, ids) for pair, ids in zip(pairs, targets, strict=True)]):
        for row, i in enumerate(batch):
            source, spans = translator.read(pairs[i].source), translator.target.words(targets[i])
            weights = by_words(np.asarray(maps.cross[row], np.float32), spans, source.spans)
            with_mean = np.concatenate([weights, weights.mean(axis=1, keepdims=True)], axis=1)
            links = [[peaks(matrix, len(source.names), len(spans) - 1) for matrix in heads] for heads in with_mean]
            gold: Any = [pairs[i].alignment] * len(links[0])
            counts = counts + np.array([alignment_counts(of_layer, gold) for of_layer in links])
    errors = np.apply_along_axis(alignment_error_of, -1, counts)
    return HeadErrors(errors[:, :-1], errors[:, -1])


def show_head_errors(errors: HeadErrors) -> Figure:
    """Draw the errors: a row for each layer, a column for each head, and one for the mean of the heads."""
    table = np.column_stack([errors.heads, errors.means])
    layers, columns = table.shape
    figure = make_figure(figsize=(1.6 + 0.75 * columns, 1.2 + 0.55 * layers), layout="constrained")
    axis = figure.add_subplot()
    image = axis.imshow(table, cmap="Reds_r", vmin=0, vmax=1, aspect="auto")
    for (layer, column), error in np.ndenumerate(table):
        axis.text(column, layer, f"{error:.2f}", ha="center", va="center", color="white" if error < 0.4 else "black")
    axis.set_xticks(range(columns), [*map(str, range(columns - 1)), "mean"])
    axis.set_yticks(range(layers))
    axis.set_xlabel("head")
    axis.set_ylabel("layer")
    axis.tick_params(length=0)
    axis.axvline(columns - 1.5, color="white", linewidth=4)
    figure.colorbar(image, label="alignment error")
    return figure
