"""An interactive page of attention and of what each step could have said. It is one file and needs no network."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from train.machine.whole_files import write_whole
from train.translating.maps import AttentionMap, Maps
from train.translating.translation import Hypothesis, Steps, Translation

MAX_WEIGHTS = 10_000_000
"""Attention weights of a side, which take about three bytes each: a page of more would be slow."""


@dataclass(frozen=True)
class Side:
    """One run's translations of the sentences. The page shows several sides next to each other."""

    name: str
    translations: Sequence[Translation]
    explained: Sequence[Sequence[Steps]]
    """The most probable tokens at each step, for each hypothesis of each translation."""
    maps: Sequence[Sequence[Maps]]
    """The attention weights of each hypothesis of each translation."""


def as_page(sides: Sequence[Side]) -> str:
    """Return the whole page as HTML.

    Raises:
        ValueError: there are no sides, or they translate different numbers of sentences.
    """
    counts = [len(side.translations) for side in sides]
    if len(set(counts)) != 1:
        raise ValueError(f"sides must be at least one, of as many translations each; got {counts}")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("train.translating.page", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    sentences = [translation.source_text for translation in sides[0].translations]
    data = [as_data(side, sides[0]) for side in sides]
    return environment.get_template("page.html").render(sentences=sentences, data=data)


def save(page: str, path: Path) -> None:
    """Write a page, whole or not at all. What UTF-8 cannot hold, as in a file's name, is written escaped."""
    write_whole(path, lambda beside: beside.write_text(page, encoding="utf-8", errors="backslashreplace"))


def as_data(side: Side, first: Side) -> dict[str, Any]:
    """Return what the page's script shows of a side."""
    return {
        "name": side.name,
        "sentences": [
            {
                "source": [*translation.source, "<eos>"],
                "hypotheses": [
                    _hypothesis(*parts) for parts in zip(translation.hypotheses, explained, maps, strict=True)
                ],
                "against": "" if side is first else compare(other, translation),
            }
            for translation, explained, maps, other in zip(
                side.translations, side.explained, side.maps, first.translations, strict=True
            )
        ],
    }


def _hypothesis(hypothesis: Hypothesis, steps: Steps, maps: Maps) -> dict[str, Any]:
    """Return a hypothesis by words. The candidates of a word of several tokens are those of its first token."""
    first = [span.start for span in hypothesis.spans]
    return {
        "text": hypothesis.text,
        "tokens": hypothesis.tokens,
        "score": round(hypothesis.score, 4) if math.isfinite(hypothesis.score) else None,
        "chosen": [(hypothesis.pieces[i], _rounded(hypothesis.token_scores[i].item())) for i in first],
        "maps": [map_data(each) for each in maps],
        "steps": [[(word, _rounded(log)) for word, log in steps[i]] for i in first],
    }


def map_data(attention: AttentionMap) -> dict[str, Any]:
    """Return a map with its weights in ten-thousandths, which are short to write."""
    return attention._asdict() | {"weights": np.round(attention.weights.astype(float) * 1e4).astype(int).tolist()}


def _rounded(log: float) -> float:
    """Round, and replace −inf, which JSON does not have."""
    return round(max(log, -999.0), 4)


def compare(first: Translation, other: Translation) -> str:
    """Describe how another side's best translation differs from the first side's."""
    if first.target != other.target:
        pairs = zip(first.best.tokens, other.best.tokens, strict=False)
        shorter = min(len(first.best.tokens), len(other.best.tokens))
        position = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
        return f"another translation than the first, from word {position + 1} on"
    logs = float(np.abs(first.best.token_scores - other.best.token_scores).max(initial=0))
    same = f"the same translation as the first; log p differ by at most {logs:.1e}"
    if first.weights is None or other.weights is None or first.weights.shape != other.weights.shape:
        return same
    return f"{same}, attention weights by at most {float(np.abs(first.weights - other.weights).max(initial=0)):.1e}"
