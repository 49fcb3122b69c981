"""How far a score could have come out otherwise: with other seeds, and on other sentences.

The interval is the percentile bootstrap's (Efron, 1979; for BLEU, Koehn, 2004), with seeds and sentences both drawn. A
sample draws as many seeds as there are, with replacement, and as many sentences, the same ones for each seed; its
score is the mean over the drawn seeds of the corpus score on the drawn sentences. The interval leaves 2.5 % of the
samples on either side. All attentions are given the same draws, so that the difference of two has an interval of its
own, narrower than their two would make believe: the sentences that are hard for one are hard for the other.

Few seeds are few: a mean of n seeds is drawn to vary by √((n − 1) / n) of what it does, which with 3 seeds makes the
seeds' share of an interval a fifth too narrow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

SAMPLES = 2000


class Interval(NamedTuple):
    """A score as it came out, and the 95 % around it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Draws:
    """What each sample consists of."""

    seeds: Int[np.ndarray, "sample seed"]
    """Which seeds."""
    times: Int[np.ndarray, "sample sentence"]
    """How often each sentence is in it."""


def draw(num_seeds: int, num_sentences: int, samples: int = SAMPLES) -> Draws:
    """Always the same draws for the same numbers."""
    rng = np.random.default_rng(0)
    evenly = np.full(num_sentences, 1 / num_sentences)
    seeds = rng.integers(num_seeds, size=(samples, num_seeds))
    return Draws(seeds, rng.multinomial(num_sentences, evenly, size=samples))


Score = Callable[[Int[np.ndarray, "part"]], float]
"""A corpus score from what it is made of, summed over the sentences."""


def of_sample(counts: Int[np.ndarray, "seed sentence part"], score: Score, draws: Draws) -> Float[np.ndarray, "sample"]:
    """The score of each sample, from each sentence's counts."""
    sums = np.einsum("rn,snp->rsp", draws.times, counts)
    scores = np.array([[score(of_seed) for of_seed in of_sample] for of_sample in sums])
    return np.take_along_axis(scores, draws.seeds, axis=1).mean(axis=1)


def as_it_is(counts: Int[np.ndarray, "seed sentence part"], score: Score) -> float:
    """The mean over the seeds of the score on all sentences."""
    return float(np.mean([score(of_seed) for of_seed in counts.sum(axis=1)]))


def interval(value: float, samples: Float[np.ndarray, "sample"]) -> Interval:
    """A value with the 95 % of its samples."""
    low, high = np.quantile(samples, [0.025, 0.975]).tolist()
    return Interval(value, low, high)
