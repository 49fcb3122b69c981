"""Find installed fonts that can draw a text. Words come in every script, and Matplotlib's own font has no Chinese."""

from __future__ import annotations

import contextlib
import logging
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.text import Text

LAST_RESORT = "Last Resort"
"""A font that comes with Matplotlib and has a box for every character."""


def choose_fonts(texts: Iterable[Text]) -> str:
    """Give texts the fonts that can draw them: the fonts of the user's settings first, then others where needed.

    Returns:
        The characters that no installed font has. They will be drawn as boxes.
    """
    texts = list(texts)
    families, missing = families_for(frozenset("".join(text.get_text() for text in texts)))
    for text in texts:
        text.set_fontfamily(families)
    return "".join(sorted(missing))


@lru_cache(maxsize=64)
def families_for(characters: frozenset[str]) -> tuple[list[str], frozenset[str]]:
    """Return font families that have the characters, and the characters that no installed font has."""
    import matplotlib
    from matplotlib.font_manager import FontProperties, findfont, fontManager

    families = list(matplotlib.rcParams["font.family"])
    visible = {c for c in characters if not c.isspace() and unicodedata.category(c) not in ("Cc", "Cf")}
    missing = visible - _characters(findfont(FontProperties()))
    if missing:  # only then, since reading every font takes a while
        regular = (font for font in fontManager.ttflist if font.style == "normal" and LAST_RESORT not in font.name)
        fonts = {font.name: font.fname for font in sorted(regular, key=lambda font: font.weight in (400, "normal"))}
        while missing and fonts:
            name = max(fonts, key=lambda name: len(missing & _characters(fonts[name])))
            found = missing & _characters(fonts.pop(name))
            if not found:
                break
            families.append(name)
            missing -= found
    return families, frozenset(missing)


@lru_cache(maxsize=1024)
def _characters(path: str) -> frozenset[str]:
    """Return the characters of a font file; none if it cannot be read."""
    from matplotlib.font_manager import get_font

    try:
        return frozenset(map(chr, get_font(path).get_charmap()))
    except (OSError, RuntimeError, ValueError):
        return frozenset()


@contextlib.contextmanager
def boxes_allowed() -> Iterator[None]:
    """Silence Matplotlib's warnings of missing characters and missing font weights, which come at every drawing."""
    logger = logging.getLogger("matplotlib.font_manager")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
            yield
    finally:
        logger.setLevel(level)
