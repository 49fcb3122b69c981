"""What a program's logits and tokens are held to, and what a difference looks like."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from parity_tests.your_port.generation.report import OWN, STEPS, GenerationReport
from parity_tests.your_port.measure.judge import Measurement

REACH = 745.0
"""How far below the largest logit of a position a probability is above 0, in float64."""


@dataclass(frozen=True)
class Judge:
    """Holds programs to PyTorch's full forward pass in float64, and remembers where one parts first."""

    case: str
    dtype: str
    rule: str
    """The dtype by whose rounding it judges."""
    inputs: Mapping[str, np.ndarray]
    chosen: np.ndarray
    """PyTorch's tokens."""
    truth: np.ndarray
    """Its logits."""
    measurements: list[Measurement] = field(default_factory=list)
    difference: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def logits(self, side: str, program: str, logits: np.ndarray, bounds: np.ndarray) -> None:
        """Measure the logits of a program, each position by its worst prompt."""
        errors, size = distances(logits, self.truth), sizes(self.truth)
        shares = errors / bounds
        for number in range(errors.shape[1]):
            row = int(shares[:, number].argmax())
            error, bound = (float(x[row, number] / size[row, number]) for x in (errors, bounds))
            place = f"new token {number}"
            names = (self.case, f"{side}'s {program}", self.dtype, place)
            self.measurements.append(Measurement(*names, error, bound, rule=self.rule))
        wrong = ~(errors <= bounds)
        if wrong.any():
            number = int(wrong.any(0).argmax())
            row = int(wrong[:, number].argmax())
            error, bound = (x[row, number] / size[row, number] for x in (errors, bounds))
            words = f"{side}'s {program}, prompt {row} at new token {number}: error {error:.3g}, bound {bound:.3g}"
            self._first(words, *self._symptoms(side, program, wrong))

    def _symptoms(self, side: str, program: str, wrong: np.ndarray) -> Iterator[str]:
        """Say which prompts and positions part."""
        if program == STEPS:
            yield f"{side}'s full forward is right: it is the cache, or what prefill and step do otherwise"
        lengths = self._lengths
        padded, rows, first = lengths < lengths.max(), wrong.any(1), wrong.argmax(1)
        if padded.any() and np.array_equal(rows, padded):
            yield "only the prompts with padding part: positions, or the mask, count the padding"
        starts, lengths = first[rows], (lengths + first)[rows]
        cache = "a cache or " * (program == STEPS)
        if wrong.sum() > 1 and (starts > 2).all() and len({*lengths.tolist()}) == 1:
            yield f"from a length of {lengths[0]} on, padding not counted: positions, {cache}a window end there"
        elif wrong.sum() > 1 and (starts > 2).all() and len({*starts.tolist()}) == 1:
            length = self._lengths.max() + starts[0]
            yield f"from new token {starts[0]} on, a length of {length} with padding: {cache}a window ends there"
        elif not wrong[:, 1:].any():
            yield "only the first new token parts" + ": it is prefill" * (program == STEPS)

    @property
    def _lengths(self) -> np.ndarray:
        """The length of each prompt, without its padding."""
        mask = self.inputs.get("attention_mask")
        first = np.asarray(next(iter(self.inputs.values())))
        whole = first.shape[1] if first.ndim > 1 else 1  # prompts of one axis are one token each
        return np.full(len(first), whole) if mask is None else (np.asarray(mask) != 0).sum(-1)

    def tokens(self, program: str, tokens: np.ndarray, bounds: np.ndarray, end: Any) -> None:
        """Measure tokens, until a text ends: the first that is not PyTorch's has to be a tie."""
        size, ties = sizes(self.truth), list[str]()
        for row, (mine, theirs) in enumerate(zip(tokens, self.chosen, strict=True)):
            ends = np.isin(theirs, [] if end is None else end)
            length = 1 + int(ends.argmax()) if ends.any() else len(theirs)
            found = Measurement(self.case, f"JAX's {program}", self.dtype, f"prompt {row}", 0.0, 0.0, rule=self.rule)
            shared = min(length, len(mine))
            apart = np.flatnonzero(mine[:shared] != theirs[:shared])
            if len(apart):
                at = int(apart[0])
                if not 0 <= mine[at] < self.truth.shape[-1]:
                    words = (
                        f"prompt {row} has {mine[at]} at new token {at}, and there are {self.truth.shape[-1]} tokens"
                    )
                    raise ValueError(f"JAX's {program}: {words}")
                margin = float(self.truth[row, at, theirs[at]] - self.truth[row, at, mine[at]])
                bound = float(2 * bounds[row, at])
                found = replace(found, error=margin / size[row, at], bound=bound / size[row, at])
                words = f"prompt {row} at new token {at}, {mine[at]} instead of {theirs[at]}: margin {margin:.3g}"
                if margin <= bound:
                    ties.append(f"{words}, within {bound:.3g}")
                else:
                    self._first(f"JAX's {program}, {words}, which is no tie: {bound:.3g}")
            elif len(mine) < length:
                found = replace(found, mismatch=f"stops after {len(mine)} of {length} tokens")
            elif program == OWN and len(set(mine[length:].tolist())) > 1:
                found = replace(found, mismatch=f"goes on after its end, new token {length - 1}")
            if found.mismatch:
                self._first(f"JAX's {program}, prompt {row}: it {found.mismatch}")
            self.measurements.append(found)
        if ties:
            more = f" and {len(ties) - 1} more" * (len(ties) > 1)
            self.notes.append(f"{program}: another token by a tie in {ties[0]}{more}")

    def _first(self, words: str, *symptoms: str) -> None:
        """Remember a difference, if it is the first one."""
        if not self.difference:
            self.difference.extend((f"first difference: {words}", *(f"looks like: {x}" for x in symptoms)))

    def report(self, bounds: np.ndarray) -> GenerationReport:
        """Return what was found. Where rounding is as large as the choice of a token, logits show nothing."""
        lost = bounds > self.truth.max(-1) - np.maximum(self.truth, _least(self.truth)).mean(-1)
        if lost.any():
            share = f"{lost.mean():.0%} of the positions"
            self.notes.append(
                f"in {self.dtype}, rounding may make any token the best one at {share}: they show nothing"
            )
        return GenerationReport(self.case, tuple(self.measurements), tuple(self.difference), tuple(self.notes))


def _least(truth: np.ndarray) -> np.ndarray:
    """Return the logit whose probability is 0, for each prompt and position."""
    return np.where(np.isfinite(truth), truth, -np.inf).max(-1, keepdims=True) - REACH


def distances(logits: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return how far logits are apart at most, for each prompt and position; those of probability 0 are equal."""
    logits, truth = (np.maximum(x, _least(truth)) for x in (logits, truth))
    with np.errstate(invalid="ignore"):  # inf − inf
        apart = np.where(logits == truth, 0.0, np.abs(logits - truth))
    return np.where(np.isnan(apart), np.inf, apart).max(-1)


def sizes(logits: np.ndarray) -> np.ndarray:
    """Return the largest finite logit of each prompt and position, without those of probability 0."""
    seen = np.isfinite(logits) & (logits > _least(logits))
    return np.abs(np.where(seen, logits, 0.0)).max(-1) + np.finfo(float).tiny
