"""Text to words and back."""

import re
import unicodedata
from typing import Literal

Tokenizer = Literal["book", "words"]

SPACES = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " "})
"""French sets its ! and ? apart by no-break spaces."""


def tokenize(text: str, tokenizer: Tokenizer = "words") -> list[str]:
    """The words of a sentence, in lower case.

    "words" splits off punctuation and what stands before an apostrophe: `J'ai faim!` is `j' ai faim !`.
    "book" is d2l.ai's: `,` `.` `!` split off and nothing else, `?` neither: `j'ai faim !`, and `qui?` stays one word.
    """
    text = unicodedata.normalize("NFC", text).translate(SPACES).lower()
    if tokenizer == "book":
        return re.sub(r"(?<=[^ ])([,.!])", r" \1", text).split()
    return re.sub(r"([^\w\s'’-])", r" \1 ", re.sub(r"(['’])", r"\1 ", text)).split()


def detokenize(tokens: list[str]) -> str:
    """Words joined by spaces, none after an apostrophe: the inverse of `tokenize` on text written so."""
    return re.sub(r"(['’]) ", r"\1", " ".join(tokens))
