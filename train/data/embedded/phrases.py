"""Words and phrases in English and French at once, and how they are spelt.

A French word holds the English words that it renders. So the alignment follows when constituents are joined, in any
order, and no positions are computed. Spelling comes last, in one pass over each side:
"a apple" becomes "an apple" and "le eau" becomes "l' eau", so no constituent has to know its neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from train.data.embedded import lexicon as lex


@dataclass(frozen=True)
class AlignedPair:
    """A sentence, its translation, and the links (source position, target position) between their words."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    sure: tuple[tuple[int, int], ...]
    possible: tuple[tuple[int, int], ...]  # further links that are not wrong


@dataclass(eq=False, slots=True)
class English:
    """An occurrence of an English word; two occurrences differ even if their forms agree."""

    form: str


@dataclass(eq=False, slots=True)
class French:
    """An occurrence of a French word, with the English words that it renders."""

    form: str
    sure: tuple[English, ...]
    possible: tuple[English, ...] = ()
    prevocalic: str = ""  # the form before a vowel, where it depends on more than the form ("vieux", "vieil")


@dataclass(slots=True)
class Phrase:
    """A constituent in both languages."""

    source: tuple[English, ...] = ()
    target: tuple[French, ...] = ()

    def __add__(self, other: "Phrase") -> "Phrase":
        return Phrase(self.source + other.source, self.target + other.target)


def gloss(english: str, french: str, prevocalic: str = "") -> Phrase:
    """Pair words that translate each other: one to one, or several French words with a single English one."""
    source = tuple(English(form) for form in english.split())
    forms = french.split()
    renders = source if len(source) == len(forms) else source * len(forms)
    target = tuple(French(form, (word,), (), prevocalic) for form, word in zip(forms, renders, strict=True))
    return Phrase(source, target)


ELIDED = {word: word[:-1] + "'" for word in ("le", "la", "je", "me", "te", "ne", "de", "que")}
PREVOCALIC = ELIDED | {"ma": "mon", "ta": "ton", "sa": "son", "ce": "cet"}
CONTRACTED = {("de", "le"): "du", ("de", "les"): "des", ("à", "le"): "au", ("à", "les"): "aux"}


def opens_with_vowel(word: str) -> bool:
    """Return whether the first sound of a French word calls for elision: "eau", "homme", but not "hibou"."""
    return word[0] in "aeiouyéêèâîôœ" or (word[0] == "h" and word not in lex.ASPIRATED)


def spell_french(words: Sequence[French]) -> list[French]:
    """Elide ("l' eau"), choose the forms before a vowel ("mon amie", "bel oiseau"), then contract ("du pain")."""
    spelt: list[French] = []
    for word, following in zip(words, (*words[1:], None), strict=True):
        if following and opens_with_vowel(following.form):
            form = word.prevocalic or PREVOCALIC.get(word.form, word.form)
            word = French(form, word.sure, word.possible)
        contracted = CONTRACTED.get((spelt[-1].form, word.form)) if spelt else None
        if contracted:
            preposition = spelt.pop()
            absorbed = tuple(source for source in word.sure if source not in preposition.sure)
            word = French(contracted, preposition.sure, preposition.possible + absorbed)
        spelt.append(word)
    return spelt


def spell_english(words: Sequence[English]) -> tuple[list[str], dict[English, int]]:
    """Write "an" before a vowel and "cannot" in one; return the tokens and the position of each word among them."""
    forms: list[str] = []
    position = {}
    for word, following in zip(words, (*words[1:], None), strict=True):
        if forms and (forms[-1], word.form) == ("can", "not"):
            forms[-1] = "cannot"
        else:
            forms.append("an" if word.form == "a" and following and following.form[0] in "aeiou" else word.form)
        position[word] = len(forms) - 1
    return forms, position


def spell(phrase: Phrase) -> AlignedPair:
    """Write a sentence as tokens, and its links as positions."""
    source, position = spell_english(phrase.source)
    target = spell_french(phrase.target)
    sure = {(position[word], j): None for j, french in enumerate(target) for word in french.sure}
    possible = {(position[word], j): None for j, french in enumerate(target) for word in french.possible}
    return AlignedPair(
        tuple(source),
        tuple(word.form for word in target),
        tuple(sure),
        tuple(link for link in possible if link not in sure),
    )
