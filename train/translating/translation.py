"""What a translation is: its hypotheses, with their scores, their words, and what each word attended to."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

Steps = list[list[tuple[str, float]]]
"""For each step of a hypothesis, the most probable tokens and their log p, the most probable first."""


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a sentence."""

    ids: tuple[int, ...]
    """Its tokens, with `<eos>` at the end if it was reached."""
    target: tuple[str, ...]
    """Its words, without `<eos>`; or its pieces, if the translator shows pieces."""
    score: float
    """Σ log p in nats; for a beam, with its penalties. −inf if the search found nothing of positive probability."""
    token_scores: Float[np.ndarray, "token"]
    """log p of each token."""
    weights: Float[np.ndarray, "word source"] | None
    """The attention of each word to the source words and `<eos>`, which is last on both sides.

    Where a word is several tokens, weights are summed over those of the source and averaged over those of the target.
    """
    text: str
    """The translation as text."""
    spans: tuple[range, ...]
    """The tokens of each row of the weights."""
    pieces: tuple[str, ...]
    """A name for each token."""

    @property
    def tokens(self) -> tuple[str, ...]:
        """The words, and `<eos>` if it was reached: a name for each row of the weights."""
        return (*self.target, "<eos>")[: len(self.spans)]


NOTHING = Hypothesis((), (), 0.0, np.zeros(0, np.float32), None, "", (), ())
"""The translation of an empty sentence. The model is not asked."""


@dataclass(frozen=True)
class Translation:
    """A sentence's hypotheses, at least one: the best first, or samples in the order in which they were drawn."""

    source: tuple[str, ...]
    """The words that were read; or their pieces, if the translator shows pieces."""
    hypotheses: tuple[Hypothesis, ...]
    source_text: str = ""
    """The sentence as it was given."""
    unknown: tuple[str, ...] = ()
    """Its words, or of subwords its characters, that the model does not know: it reads <unk> for each."""

    @property
    def best(self) -> Hypothesis:
        return self.hypotheses[0]

    @property
    def text(self) -> str:
        return self.best.text

    @property
    def target(self) -> tuple[str, ...]:
        return self.best.target

    @property
    def score(self) -> float:
        return self.best.score

    @property
    def weights(self) -> Float[np.ndarray, "word source"] | None:
        return self.best.weights


def by_words(
    weights: Float[np.ndarray, "*maps token source"], targets: Sequence[range], sources: Sequence[range]
) -> Float[np.ndarray, "*maps word source_word"]:
    """Sum weights over the tokens of each source word, and average them over the tokens of each target word."""
    if len(targets) == weights.shape[-2]:
        rows = weights
    else:
        rows = np.stack([weights[..., span.start : span.stop, :].mean(axis=-2) for span in targets], axis=-2)
    if all(len(span) == 1 for span in sources):
        return rows[..., : len(sources)]
    return np.stack([rows[..., span.start : span.stop].sum(axis=-1) for span in sources], axis=-1)
