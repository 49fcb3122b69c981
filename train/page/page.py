"""What a model attended to and what it nearly said, as one page to be explored: it needs no network and no server."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from train.data.tokens import detokenize
from train.translation.translator import Hypothesis, Steps, Translation


@dataclass(frozen=True)
class Side:
    """One run's translations of the sentences; several stand side by side."""

    name: str
    translations: Sequence[Translation]
    explained: Sequence[Sequence[Steps]]
    """What might have been said instead, of each hypothesis of each translation."""


def as_page(sides: Sequence[Side]) -> str:
    """The whole page as HTML.

    Raises:
        ValueError: no sides, or sides that translate different numbers of sentences.
    """
    import jinja2

    if not sides or len({len(side.translations) for side in sides}) > 1:
        counts = [len(side.translations) for side in sides]
        raise ValueError(f"sides must be at least one, of as many translations each; got {counts}")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("train.page", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    return environment.get_template("page.html").render(
        sides=sides,
        sentences=[longest_source(of_sides) for of_sides in zip(*(side.translations for side in sides), strict=True)],
        data=[as_data(side, sides[0]) for side in sides],
    )


def longest_source(translations: Sequence[Translation]) -> str:
    """The sentence as the run read it that reads most."""
    return detokenize(list(max(translations, key=lambda t: len(t.source)).source))


def as_data(side: Side, first: Side) -> dict[str, Any]:
    """What the page's program shows of a side."""
    return {
        "name": side.name,
        "sentences": [
            {
                "source": [*translation.source, "<eos>"],
                "hypotheses": [
                    _hypothesis(*of_hypothesis) for of_hypothesis in zip(translation.hypotheses, explained, strict=True)
                ],
                "against": "" if side is first else compare(of_first, translation),
            }
            for translation, explained, of_first in zip(
                side.translations, side.explained, first.translations, strict=True
            )
        ],
    }


def _hypothesis(hypothesis: Hypothesis, steps: Steps) -> dict[str, Any]:
    return {
        "text": hypothesis.text,
        "tokens": hypothesis.tokens,
        "score": round(hypothesis.score, 4) if math.isfinite(hypothesis.score) else None,
        "logs": [_rounded(log) for log in hypothesis.token_scores.tolist()],
        "weights": None if hypothesis.weights is None else np.round(hypothesis.weights.astype(float), 4).tolist(),
        "steps": [[(word, _rounded(log)) for word, log in step] for step in steps],
    }


def _rounded(log: float) -> float:
    """JSON has no −inf."""
    return round(max(log, -999.0), 4)


def compare(one: Translation, other: Translation) -> str:
    """How another side's best translation differs from the first side's."""
    if one.target != other.target:
        common = next(
            (i for i, (a, b) in enumerate(zip(one.best.tokens, other.best.tokens, strict=False)) if a != b),
            min(len(one.best.tokens), len(other.best.tokens)),
        )
        return f"another translation than the first, from word {common + 1} on"
    logs = float(np.abs(one.best.token_scores - other.best.token_scores).max(initial=0))
    said = f"the same translation as the first; log p differ by at most {logs:.1e}"
    if one.weights is None or other.weights is None or one.weights.shape != other.weights.shape:
        return said
    return f"{said}, attention weights by at most {float(np.abs(one.weights - other.weights).max(initial=0)):.1e}"
