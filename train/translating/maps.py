"""What every layer and head of a model looks at in a sentence and its translation, by words."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

import jax
import numpy as np
from jaxtyping import Float

from jax_attn.models.interface import AttentionMaps
from train.data.vocabulary import EOS
from train.translating.translation import Hypothesis, Translation, by_words
from train.translating.translator import Source, Translator

Kind = Literal["cross", "source", "target"]


class AttentionMap(NamedTuple):
    """One kind of attention: cross (translation → source), source (→ source), or target (translation → itself)."""

    kind: Kind
    rows: tuple[str, ...]
    """The words that look. A word of the translation looks before it is written."""
    columns: tuple[str, ...]
    """The words that are looked at. Of the translation these are `<bos>` and the words so far."""
    weights: Float[np.ndarray, "layer head row column"]
    layer: int
    """The layer that is shown unless another is asked for."""

    def matrix(self, layer: int | None = None, head: int | None = None) -> Float[np.ndarray, "row column"]:
        """Return the weights of one head, or the mean of the layer's heads."""
        heads = self.weights[self.layer if layer is None else layer]
        return heads.mean(axis=0) if head is None else heads[head]


Maps = list[AttentionMap]
"""The kinds of attention that a model has."""


def sizes(translator: Translator) -> dict[str, tuple[int, ...]]:
    """Return the numbers of layers and heads of each kind of attention that a model has; of an ensemble nothing."""
    if translator.attend is None:
        return {}
    token = np.full((1, 1), EOS, np.int32)
    maps = jax.eval_shape(translator.attend, token, np.ones(1, np.int32), token)  # compiles nothing
    return {kind: weights.shape[1:3] for kind in get_args(Kind) if (weights := getattr(maps, kind)) is not None}


def attention_maps(translator: Translator, translations: Sequence[Translation]) -> list[list[Maps]]:
    """Compute the maps of each hypothesis of each translation. An ensemble has the one map of its search."""
    pairs = [(t, hypothesis) for t in translations for hypothesis in t.hypotheses]
    found: list[Maps] = [[] for _ in pairs]
    if translator.attend is None:
        found = [_map_of_search(*pair) for pair in pairs]
    else:
        for batch, maps in translator.read_maps([(t.source_text, hypothesis.ids) for t, hypothesis in pairs]):
            for row, i in enumerate(batch):
                found[i] = _by_words(maps, row, translator.read(pairs[i][0].source_text), *pairs[i])
    remaining = iter(found)
    return [[next(remaining) for _ in t.hypotheses] for t in translations]


def pick(
    translator: Translator, translations: Sequence[Translation], layer: int | None = None, head: int | None = None
) -> list[Translation]:
    """Put the attention to the source of another layer or head instead of the weights that search kept."""
    found = []
    for translation, of_translation in zip(translations, attention_maps(translator, translations), strict=True):
        hypotheses = [
            replace(hypothesis, weights=next((m.matrix(layer, head) for m in maps if m.kind == "cross"), None))
            for hypothesis, maps in zip(translation.hypotheses, of_translation, strict=True)
        ]
        found.append(replace(translation, hypotheses=tuple(hypotheses)))
    return found


def _map_of_search(translation: Translation, hypothesis: Hypothesis) -> Maps:
    if hypothesis.weights is None:
        return []
    weights = hypothesis.weights[None, None]
    return [AttentionMap("cross", hypothesis.tokens, (*translation.source, "<eos>"), weights, 0)]


def _by_words(maps: AttentionMaps, row: int, source: Source, translation: Translation, hypothesis: Hypothesis) -> Maps:
    """Merge the weights of tokens, in a row of a batch, to those of words, and name the words."""
    words, spans = (*translation.source, "<eos>"), source.spans
    # The last token is not read: the columns of `target` are `<bos>` and the tokens before it.
    num_read = len(hypothesis.ids)
    read = [range(1), *(range(span.start + 1, min(span.stop + 1, num_read)) for span in hypothesis.spans)]
    read = [span for span in read if len(span)]
    of_source, of_target = (words, spans), (hypothesis.tokens, hypothesis.spans)
    axes: dict[Kind, Any] = {
        "cross": (of_target, of_source, int(maps.layer)),
        "source": (of_source, of_source, -1),
        "target": (of_target, (("<bos>", *hypothesis.tokens)[: len(read)], read), int(maps.layer)),
    }
    found = []
    for kind, ((rows, row_spans), (columns, column_spans), layer) in axes.items():
        weights = getattr(maps, kind)
        if weights is not None and hypothesis.ids:
            merged = by_words(np.asarray(weights[row], np.float32), row_spans, column_spans)
            found.append(AttentionMap(kind, rows, columns, merged, layer % len(merged)))
    return found
