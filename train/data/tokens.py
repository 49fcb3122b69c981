"""Cut text into words, and join words to text."""

import re
import unicodedata
from typing import Literal

Tokenizer = Literal["book", "words"]

SPACES = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " "})
"""No-break and thin spaces, which French text has before ! and ?."""


def tokenize(text: str, tokenizer: Tokenizer = "words") -> list[str]:
    """Cut a sentence into words in lower case.

    "words" splits off punctuation, and splits after an apostrophe: `J'ai faim!` becomes `j' ai faim !`.
    "book" is d2l.ai's. It splits off only `,` `.` `!`: `J'ai faim!` becomes `j'ai faim !`, and `qui?` stays one word.
    """
    text = unicodedata.normalize("NFC", text).translate(SPACES).lower()
    if tokenizer == "book":
        return re.sub(r"(?<=[^ ])([,.!])", r" \1", text).split()
    return re.sub(r"([^\w\s'’-])", r" \1 ", re.sub(r"(['’])", r"\1 ", text)).split()


def detokenize(tokens: list[str]) -> str:
    """Join words by spaces, with none after an apostrophe."""
    return re.sub(r"(['’]) ", r"\1", " ".join(tokens))
