"""Which source words a translation comes from, as its attention has it."""

import dataclasses
import json

from train.data.vocabulary import SPECIAL, UNKNOWN
from train.translation.metrics import peaks
from train.translation.translator import Hypothesis, Translation


def links(source: tuple[str, ...], hypothesis: Hypothesis) -> list[tuple[int, int]]:
    """(source position, target position) for each target word: where its attention is largest, `<eos>` left out.

    Raises:
        ValueError: a hypothesis without attention.
    """
    if not hypothesis.target:
        return []
    if hypothesis.weights is None:
        raise ValueError("links need attention weights; got None")
    return sorted(peaks(hypothesis.weights, len(source), len(hypothesis.target)), key=lambda link: link[1])


def pharaoh(source: tuple[str, ...], hypothesis: Hypothesis) -> str:
    """`0-0 1-2 …`, the source and the target position of each target word: the form of Pharaoh and fast_align."""
    return " ".join(f"{i}-{j}" for i, j in links(source, hypothesis))


def soft(source: tuple[str, ...], hypothesis: Hypothesis) -> str:
    """The weights as JSON on one line: {"source": [...], "target": [...], "weights": [a row for each target token]}."""
    content = {
        "source": [*source, "<eos>"] if hypothesis.ids else [],
        "target": list(hypothesis.tokens),
        "weights": []
        if hypothesis.weights is None
        else [[round(x, 6) for x in row] for row in hypothesis.weights.tolist()],
    }
    return json.dumps(content, ensure_ascii=False)


def replace_unknown(translation: Translation) -> Translation:
    """Each `<unk>` replaced by the source word under its attention's peak (Luong et al., 2015).

    Names and numbers are most of what a vocabulary does not know, and they are often the same in both languages.
    """
    return dataclasses.replace(
        translation, hypotheses=tuple(_copied(translation.source, hypothesis) for hypothesis in translation.hypotheses)
    )


def _copied(source: tuple[str, ...], hypothesis: Hypothesis) -> Hypothesis:
    if SPECIAL[UNKNOWN] not in hypothesis.target:
        return hypothesis
    words = list(hypothesis.target)
    for i, j in links(source, hypothesis):
        if hypothesis.ids[j] == UNKNOWN:
            words[j] = source[i]
    return dataclasses.replace(hypothesis, target=tuple(words))
