"""Find the source word of each target word, by the largest attention weight."""

import dataclasses
import json

from train.data.vocabulary import UNKNOWN, Vocabulary
from train.translating.metrics import Link, peaks
from train.translating.translation import Hypothesis, Translation


def links(source: tuple[str, ...], hypothesis: Hypothesis) -> list[Link]:
    """Return (source position, target position) for each target word, `<eos>` left out on both sides.

    Raises:
        ValueError: the hypothesis has words and no attention.
    """
    if not hypothesis.target:
        return []
    if hypothesis.weights is None:
        raise ValueError("links need attention weights; got None")
    return sorted(peaks(hypothesis.weights, len(source), len(hypothesis.target)), key=lambda link: link[1])


def as_pharaoh(source: tuple[str, ...], hypothesis: Hypothesis) -> str:
    """Write links as `0-0 2-1 …`, source and target position of each target word: Pharaoh's and fast_align's format."""
    return " ".join(f"{i}-{j}" for i, j in links(source, hypothesis))


def as_json(source: tuple[str, ...], hypothesis: Hypothesis) -> str:
    """Write the weights on one line: {"source": [...], "target": [...], "weights": [a row for each target word]}."""
    weights = [] if hypothesis.weights is None else hypothesis.weights.tolist()
    content = {
        "source": [*source, "<eos>"] if hypothesis.ids else [],
        "target": list(hypothesis.tokens),
        "weights": [[round(weight, 6) for weight in row] for row in weights],
    }
    return json.dumps(content, ensure_ascii=False)


def replace_unknown(translation: Translation, vocabulary: Vocabulary) -> Translation:
    """Replace each word that has a `<unk>` by the source word with its largest attention weight (Luong et al., 2015).

    Most unknown words are names and numbers, which are often the same in both languages.

    Args:
        vocabulary: the target's.
    """
    copied = tuple(_copy(translation.source, hypothesis, vocabulary) for hypothesis in translation.hypotheses)
    return dataclasses.replace(translation, hypotheses=copied)


def _copy(source: tuple[str, ...], hypothesis: Hypothesis, vocabulary: Vocabulary) -> Hypothesis:
    if UNKNOWN not in hypothesis.ids:
        return hypothesis
    unknown = [any(hypothesis.ids[i] == UNKNOWN for i in span) for span in hypothesis.spans]
    words = tuple(source[i] if unknown[j] else hypothesis.target[j] for i, j in links(source, hypothesis))
    return dataclasses.replace(hypothesis, target=words, text=vocabulary.join(words))
