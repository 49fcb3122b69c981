"""The records of causes, and of mistakes that would not be seen. They import no torch."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

SHOWN = 3
"""How many mistakes a line lists."""


class Explains(Enum):
    """What agrees once PyTorch makes the mistake, too: the more, the earlier it stands here."""

    OUTPUTS_AND_GRADIENTS = "explains outputs and gradients on fresh draws"
    OUTPUTS_COMPARED = "explains the outputs on fresh draws; gradients are not compared"
    NOT_ALL_CASES = "explains outputs and gradients on fresh draws, but not all that a step of training changes"
    OUTPUTS = "explains the outputs on fresh draws, not the gradients"
    SUBMODULE = "explains this submodule's outputs on fresh draws; something else differs, too"
    PART = "lets more values agree on fresh draws; something else differs, too"
    RANDOMNESS = "JAX's results depend on its random numbers"
    GIVEN_NUMBERS = "explains the outputs on these numbers alone: not confirmed on others"

    @property
    def rank(self) -> int:
        return list(Explains).index(self)

    @property
    def everything(self) -> bool:
        """Whether nothing that is compared is left to explain."""
        return self in (Explains.OUTPUTS_AND_GRADIENTS, Explains.OUTPUTS_COMPARED)


@dataclass(frozen=True)
class Cause:
    """A mistake in JAX that explains the difference."""

    words: str
    explains: Explains
    line: str = ""
    """The line of PyTorch's code that does it right: `model.py:42: a / 2`."""

    def __str__(self) -> str:
        return f"{self.words}, at {self.line}" if self.line else self.words

    @property
    def confirmed(self) -> bool:
        """Whether it was run on fresh draws of weights and inputs, too, in both frameworks."""
        return self.explains is not Explains.GIVEN_NUMBERS


class Found(NamedTuple):
    """What a search found: no cause, one, or several of which each explains the difference."""

    causes: tuple[Cause, ...] = ()
    tried: int = 0
    stopped_after: float | None = None
    """The seconds of computing after which the time ran out."""
    next_step: str = ""
    """The line of PyTorch's code whose result JAX does not compute; beside causes, not even when they are mended."""


def in_words(found: Found | None) -> str:
    """Say what the causes are: the one, or that it is one of several."""
    if found is None:
        return "not looked for, which needs PyTorch itself"
    text = f"print what goes into {found.next_step} and what comes out, in both: JAX has the numbers that go in, "
    text += "perhaps in another order, and not those that come out, unless it makes them in another way"
    if not found.causes:
        none = "none of the known mistakes"
        if found.stopped_after is not None:
            none = f"{none} of {found.tried}" if found.tried else "no mistake was"
            none += f" tried, when {found.stopped_after:.0f} s of computing were over"
        return f"{none}{f'; {text}' if found.next_step else ''}"
    then = f"; once it is mended, {text}" if found.next_step else ""
    explains = weakest([cause.explains for cause in found.causes])
    return f"{either([str(cause) for cause in found.causes])} ({explains.value}){then}"


def either(texts: Sequence[str]) -> str:
    """Name one cause, or several of which each explains the same."""
    more = f"; or {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return f"one of: {'; '.join(texts[:SHOWN])}{more}" if len(texts) > 1 else texts[0]


def weakest(explained: Sequence[Explains]) -> Explains:
    """Return what all of them explain."""
    return max(explained, key=lambda each: each.rank)


def most_explaining(causes: Collection[Cause]) -> tuple[Cause, ...]:
    """Return those that explain most: beside them the others are no explanation."""
    best = min((cause.explains.rank for cause in causes), default=0)
    return tuple(cause for cause in causes if cause.explains.rank == best)


@dataclass(frozen=True)
class Blind:
    """The known mistakes that a comparison would not have seen."""

    unseen: tuple[str, ...]
    """Those that show on stronger inputs and weights, and not on the given ones."""
    tried: int
    """How many could be made in this program."""
    not_tried: tuple[str, ...] = ()
    """Those for which there was no time."""

    def __str__(self) -> str:
        left = f"; {len(self.not_tried)} were not tried" if self.not_tried else ""
        if not self.unseen:
            return f"each of {self.tried} known mistakes would be seen{left}"
        shown = f"{'; '.join(self.unseen[:SHOWN])}{' …' * (len(self.unseen) > SHOWN)}"
        return f"{len(self.unseen)} of {self.tried} known mistakes would not be seen: {shown}{left}"
