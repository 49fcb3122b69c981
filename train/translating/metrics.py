"""Score translations (BLEU, chrF) and alignments (alignment error rate)."""

import json
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from train.data.corpus import Alignment
from train.data.tokens import tokenize

Link = tuple[int, int]
"""(source position, target position), counted from 0."""


class TextScores(NamedTuple):
    """Scores of a whole test set in [0, 100], with the signatures that let others compute the same."""

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str


def score_texts(hypotheses: Sequence[str], references: Sequence[str], lower_case: bool = False) -> TextScores:
    """Compute BLEU (Papineni et al., 2002) and chrF (Popović, 2015) by sacrebleu, with one reference."""
    # force: no warning that the sentences end in " ."
    bleu, chrf = BLEU(lowercase=lower_case, force=True), CHRF(lowercase=lower_case)
    bleu_score = bleu.corpus_score(hypotheses, [references]).score
    chrf_score = chrf.corpus_score(hypotheses, [references]).score
    return TextScores(bleu_score, str(bleu.get_signature()), chrf_score, str(chrf.get_signature()))


class Score(NamedTuple):
    """A score in [0, 100], and how far the 95 % interval of 1,000 bootstrap samples reaches on either side."""

    score: float
    interval: float
    signature: str


def score_in_detail(hypotheses: Sequence[str], references: Sequence[str], lower_case: bool = False) -> dict[str, Score]:
    """Compute every score of a test set, with intervals.

    "BLEU tokenised" is nearest to the lower-cased BLEU of older papers. Both sides are cut by this program's tokenizer
    `words`. The papers took that of Moses. (On Multi30k, German and French, the two differ by 0.02 BLEU.)

    Args:
        lower_case: take chrF without case, since the translations have none.
    """
    cut = [[" ".join(tokenize(text)) for text in texts] for texts in (hypotheses, references)]
    found: dict[str, tuple[Any, Sequence[str], Sequence[str]]] = {
        "BLEU": (BLEU(force=True), hypotheses, references),
        "BLEU lower-cased": (BLEU(lowercase=True, force=True), hypotheses, references),
        "BLEU tokenised": (BLEU(lowercase=True, tokenize="none", force=True), cut[0], cut[1]),
        "chrF": (CHRF(lowercase=lower_case), hypotheses, references),
    }
    scores = {}
    for name, (metric, ours, theirs) in found.items():
        result = metric.corpus_score(ours, [theirs], n_bootstrap=1000)
        signature = str(metric.get_signature())
        details = json.loads(result.format(width=4, signature=signature, is_json=True))
        scores[name] = Score(result.score, details.get("confidence_var", 0.0), signature)
    return scores


class Paired(NamedTuple):
    """A score of two systems, and the probability of such a difference between equal systems by two tests."""

    score: float
    other: float
    p_bootstrap: float
    p_randomisation: float
    signature: str


def compare_texts(
    hypotheses: Sequence[str], others: Sequence[str], references: Sequence[str], lower_case: bool = False
) -> dict[str, Paired]:
    """Compare two systems on one test set by sacrebleu's paired bootstrap and approximate randomisation."""
    systems: list[tuple[str, Sequence[str]]] = [("other", others), ("this", hypotheses)]
    found: dict[str, Any] = {}
    for kind, samples in (("bs", 1000), ("ar", 10_000)):
        metrics = {
            "BLEU": BLEU(lowercase=lower_case, force=True, references=[references]),
            "chrF": CHRF(lowercase=lower_case, references=[references]),
        }
        found[kind] = PairedTest(systems, metrics, None, test_type=kind, n_samples=samples)()
    (signatures, bootstrap), (_, randomisation) = found["bs"], found["ar"]
    same = list(hypotheses) == list(others)  # sacrebleu has a small p for no difference at all
    return {
        name: Paired(
            bootstrap[key][1].score,
            bootstrap[key][0].score,
            1.0 if same else bootstrap[key][1].p_value,
            1.0 if same else randomisation[key][1].p_value,
            str(signatures[key]),
        )
        for name, key in (("BLEU", "BLEU"), ("chrF", "chrF2"))
    }


def alignment_error_rate(predicted: Sequence[Set[Link]], gold: Sequence[Alignment]) -> float:
    """Compute 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|), summed over the corpus (Och & Ney, 2003); P includes S.

    Args:
        predicted: A, the links of each sentence.
        gold: S and P, the sure and possible links of each sentence.
    """
    return alignment_error_of(alignment_counts(predicted, gold).sum(axis=0))


def alignment_counts(predicted: Sequence[Set[Link]], gold: Sequence[Alignment]) -> Int[np.ndarray, "sentence 2"]:
    """Count |A ∩ S| + |A ∩ P| and |A| + |S| in each sentence, see `alignment_error_rate`."""
    counts = []
    for links, alignment in zip(predicted, gold, strict=True):
        possible = alignment.sure | alignment.possible
        agreed = len(links & alignment.sure) + len(links & possible)
        counts.append((agreed, len(links) + len(alignment.sure)))
    return np.array(counts, int).reshape(-1, 2)


def alignment_error_of(counts: Int[np.ndarray, "2"]) -> float:
    """Compute a corpus's alignment error rate from the sum of its `alignment_counts`."""
    agreed, total = counts.tolist()
    if total == 0:
        raise ValueError("the alignment error rate of no links is not defined")
    return 1 - agreed / total


def peaks(weights: Float[np.ndarray, "target source"], num_sources: int, num_targets: int) -> set[Link]:
    """Link each target word to the source word with its largest weight, `<eos>` left out on both sides."""
    return {(int(i), j) for j, i in enumerate(weights[:num_targets, :num_sources].argmax(axis=-1))}


def diagonal(num_sources: int, num_targets: int) -> set[Link]:
    """Link each target word to the source word at the same share of its sentence: a baseline without attention."""
    step = (num_sources - 1) / max(num_targets - 1, 1)
    return {(round(j * step), j) for j in range(num_targets)}
