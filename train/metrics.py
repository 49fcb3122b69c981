"""How good translations are, and how well attention aligns."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from train.corpus import Alignment

Link = tuple[int, int]


class TextScores(NamedTuple):
    """Scores of a whole test set in [0, 100], with the signatures that let others compute the same."""

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str


def score_texts(hypotheses: Sequence[str], references: Sequence[str]) -> TextScores:
    """BLEU (Papineni et al., 2002) and chrF (Popović, 2015), by sacrebleu with one reference."""
    from sacrebleu.metrics import BLEU, CHRF

    bleu, chrf = BLEU(force=True), CHRF()  # force: the references end in " .", and are meant to
    bleu_score = bleu.corpus_score(hypotheses, [references])
    chrf_score = chrf.corpus_score(hypotheses, [references])
    return TextScores(
        bleu_score.score, str(bleu.get_signature()), chrf_score.score, str(chrf.get_signature())
    )  # fmt: skip


def alignment_error_rate(predicted: Sequence[set[Link]], gold: Sequence[Alignment]) -> float:
    """1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|), summed over the corpus (Och & Ney, 2003); P includes S.

    Args:
        predicted: A, links (source position, target position), for each sentence.
        gold: S and P of each sentence.
    """
    agreed = total = 0
    for links, alignment in zip(predicted, gold, strict=True):
        possible = alignment.sure | alignment.possible
        agreed += len(links & alignment.sure) + len(links & possible)
        total += len(links) + len(alignment.sure)
    if total == 0:
        raise ValueError("the alignment error rate of no links is not defined")
    return 1 - agreed / total


def peaks(weights: Float[np.ndarray, "target source"], num_sources: int, num_targets: int) -> set[Link]:
    """Each target word linked to the source word with its largest weight; `<eos>` is left out on both sides."""
    return {(int(i), j) for j, i in enumerate(weights[:num_targets, :num_sources].argmax(axis=-1))}


def diagonal(num_sources: int, num_targets: int) -> set[Link]:
    """Each target word linked to the source word at the same share of its sentence: what needs no attention."""
    step = (num_sources - 1) / max(num_targets - 1, 1)
    return {(round(j * step), j) for j in range(num_targets)}
