"""Cut text into words, and join words to text."""

import unicodedata
from collections.abc import Sequence

import regex

from train.config import Tokenizer

SPACES = regex.compile(r"[\p{Z}\p{Cc}\u2581]+")
"""Spaces of every kind, among them the no-break ones that French text has before ! and ?. Control characters count as
spaces too, so that none gets into a vocabulary and from there to a terminal, and so does sentencepiece's mark ▁."""

LETTERS = r"[\w\p{M}\p{N}\u200c\u200d-]"
"""Letters, digits, combining marks, the joiners of Persian and of Indian scripts, and the hyphen."""

WORDS = regex.compile(rf"{LETTERS}*['’]|{LETTERS}+|\X")
"""A word, with the apostrophe that ends it; or one character of another kind, such as a punctuation mark or an emoji.
`\\X` is a character as a reader sees it, of several code points perhaps."""

SENTENCE_ENDS = regex.compile(
    r"""(?<=[.!?…؟۔।]\p{Pe}*(?:["'“«]|\s?\p{Pf})*)(?<!\b(?:\p{Lu}|\d{1,2}|Mr|Mrs|Ms|Dr|Prof|St|No|Nr|vs|e\.g|i\.e|z\.B)\.)
        \s+(?![\p{Ll}\p{Pe}]|\p{Pf}(?:\s|$))
      | (?<=[。！？][。！？\p{Pe}\p{Pf}]*)(?![。！？\p{Pe}\p{Pf}]|$)\s*""",
    regex.VERBOSE,
)
"""Between two sentences: after `.`, `!` or `?` (Latin, Arabic and Indian ones) with its quotes, unless an initial, an
abbreviation, a short number or a letter in lower case says otherwise; and after the full stops of Chinese and
Japanese."""


def clean(text: str) -> str:
    """Compose characters (NFC), make each run of spaces one space, and trim the ends."""
    return SPACES.sub(" ", unicodedata.normalize("NFC", text)).strip(" ")


def tokenize(text: str, tokenizer: Tokenizer = "words") -> list[str]:
    """Cut a sentence into words in lower case.

    "words" splits off punctuation, and splits after an apostrophe: `J'ai faim!` becomes `j' ai faim !`.
    "book" is d2l.ai's. It splits off only `,` `.` `!`: `J'ai faim!` becomes `j'ai faim !`, and `qui?` stays one word.
    The other names cut as "words" does.
    """
    text = clean(text).lower()
    if tokenizer == "book":
        return regex.sub(r"(?<=[^ ])([,.!])", r" \1", text).split(" ") if text else []
    return [word for word in WORDS.findall(text) if word != " "]


def split_sentences(text: str) -> list[str]:
    """Cut a text into its sentences: `Hi! Is it far?` into `Hi!` and `Is it far?`. An empty text is one.

    The target's language, as in `>>fra<< Hi! Is it far?`, is put before each.
    """
    language, text = regex.fullmatch(r"(>>\S+<<\s*)?(.*)", text.strip(), regex.DOTALL).groups(default="")
    return [language + sentence for sentence in SENTENCE_ENDS.split(text)]


def detokenize(tokens: Sequence[str]) -> str:
    """Join words by spaces, with none after an apostrophe."""
    return regex.sub(r"(['’]) ", r"\1", " ".join(tokens))
