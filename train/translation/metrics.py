"""How good translations are, and how well attention aligns."""

from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from train.data.corpus import Alignment

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


def bleu_counts(hypotheses: Sequence[str], references: Sequence[str]) -> Int[np.ndarray, "sentence 10"]:
    """What BLEU is made of, a row a sentence: its length and the reference's, n-grams that agree, n-grams; n = 1 … 4.

    `bleu_of` the sum of rows is the BLEU of a corpus of those sentences.
    """
    from sacrebleu.metrics import BLEU

    bleu = BLEU(effective_order=True)  # a sentence's own score is not asked for, and its counts are the same
    scores = (bleu.sentence_score(said, [known]) for said, known in zip(hypotheses, references, strict=True))
    return np.array([[score.sys_len, score.ref_len, *score.counts, *score.totals] for score in scores])


def bleu_of(counts: Int[np.ndarray, "10"]) -> float:
    """The BLEU of a corpus from its summed `bleu_counts`, by sacrebleu, smoothed as in `score_texts`."""
    from sacrebleu.metrics import BLEU

    length, reference_length, *ngrams = counts.tolist()
    return BLEU.compute_bleu(ngrams[:4], ngrams[4:], length, reference_length, smooth_method="exp").score


def alignment_error_rate(predicted: Sequence[Set[Link]], gold: Sequence[Alignment]) -> float:
    """1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|), summed over the corpus (Och & Ney, 2003); P includes S.

    Args:
        predicted: A, links (source position, target position), for each sentence.
        gold: S and P of each sentence.
    """
    return alignment_error_of(alignment_counts(predicted, gold).sum(axis=0))


def alignment_counts(predicted: Sequence[Set[Link]], gold: Sequence[Alignment]) -> Int[np.ndarray, "sentence 2"]:
    """What the alignment error rate is made of, a row a sentence: |A ∩ S| + |A ∩ P| and |A| + |S|."""
    counts = []
    for links, alignment in zip(predicted, gold, strict=True):
        possible = alignment.sure | alignment.possible
        agreed = len(links & alignment.sure) + len(links & possible)
        counts.append((agreed, len(links) + len(alignment.sure)))
    return np.array(counts, int).reshape(-1, 2)


def alignment_error_of(counts: Int[np.ndarray, "2"]) -> float:
    """The alignment error rate of a corpus from its summed `alignment_counts`."""
    agreed, total = counts.tolist()
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
