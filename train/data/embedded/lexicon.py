"""Read the words of the corpus from lexicon.toml, with the morphology that the grammar needs.

The dataclasses hold every form, so the grammar looks words up and never inflects them.
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LEXICON = tomllib.loads(Path(__file__).with_name("lexicon.toml").read_text(encoding="utf-8"))

# The persons of a French verb, as positions in its paradigm.  "you" is always the familiar "tu": there is no "vous".
JE, TU, IL, NOUS, ILS = range(5)

ASPIRATED = frozenset(LEXICON["aspirated"].split())


def rows(table: str) -> list[list[str]]:
    """Split a table into entries, and each entry into columns."""
    return [entry.split() for entry in re.split(r"[,\n]", table) if entry.strip()]


def english_s(word: str) -> str:
    """Add the -s of plural nouns and of the third person: cat -> cats, box -> boxes, carry -> carries."""
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "o", "ch", "sh")) else "s")


def english_past(word: str) -> str:
    """Form the regular past: dance -> danced, help -> helped."""
    return word + ("d" if word.endswith("e") else "ed")


def french_plural(word: str) -> str:
    """Form the plural of a noun or an adjective: chat -> chats, souris -> souris, gâteau -> gâteaux."""
    if word.endswith(("s", "x")):
        return word
    if word.endswith("al"):
        return word[:-2] + "aux"
    return word + ("x" if word.endswith("eau") else "s")


def french_feminine(word: str) -> str:
    """Form the feminine of an adjective or a participle: noir -> noire, rouge -> rouge, heureux -> heureuse."""
    if word.endswith("e"):
        return word
    return word[:-1] + "se" if word.endswith("eux") else word + "e"


def four_forms(masculine: str, feminine: str = "") -> tuple[str, str, str, str]:
    """Return the masculine and feminine singular, and the masculine and feminine plural."""
    feminine = feminine or french_feminine(masculine)
    return masculine, feminine, french_plural(masculine), french_plural(feminine)


def first_group(infinitive: str) -> tuple[str, ...]:
    """Form the present and the participle of a regular verb in -er; a soft g stays soft in "mangeons"."""
    stem = infinitive.removesuffix("er")
    soft = "e" if stem.endswith("g") else ""
    return (*(stem + ending for ending in ("e", "es", "e", soft + "ons", "ent")), stem + "é")


@dataclass(frozen=True, slots=True)
class Noun:
    """A common noun; `plural` is empty on both sides for nouns used in the singular only."""

    english: str
    french: str
    english_plural: str
    french_plural: str
    feminine: bool
    kind: str
    prepositions: tuple[str, ...] = ()  # those under which the noun names a place


def noun(kind: str, english: str, french: str, gender: str, *prepositions: str) -> Noun:
    """Build a noun from the columns of its table."""
    english, _, plural = english.partition("/")
    french, _, pluriel = french.partition("/")
    plural = "" if plural == "-" else plural or english_s(english)
    pluriel = (pluriel or french_plural(french)) if plural else ""
    return Noun(english, french, plural, pluriel, gender == "f", kind, prepositions)


NOUNS_OF_KIND = {kind: tuple(noun(kind, *row) for row in rows(table)) for kind, table in LEXICON["nouns"].items()}
ALL_NOUNS = tuple(entry for entries in NOUNS_OF_KIND.values() for entry in entries)

# Kinds without a singular indefinite article: "some bread", "du pain".
MASS = ("meal", "drink")

# First names, and whether they are a woman's.
NAMES = tuple((name, kind == "women") for kind in ("women", "men") for name in LEXICON[kind].split())


@dataclass(frozen=True, slots=True)
class Adjective:
    """An adjective; `prevocalic` is its masculine singular before a vowel ("bel"), empty where that is regular."""

    english: str
    forms: tuple[str, str, str, str]
    prevocalic: str
    kinds: tuple[str, ...]

    def agreeing(self, feminine: bool, plural: bool) -> str:
        return self.forms[feminine + 2 * plural]


def adjectives(table: str) -> dict[str, tuple[Adjective, ...]]:
    """Read a table of adjectives; return those that suit each kind of noun."""
    entries = []
    for english, french, *kinds in rows(table):
        masculine, feminine, prevocalic, *_ = *french.split("/"), "", ""
        entries.append(Adjective(english, four_forms(masculine, feminine), prevocalic, tuple(kinds)))
    return {kind: tuple(entry for entry in entries if kind in entry.kinds) for kind in NOUNS_OF_KIND}


PREPOSED_FOR, COLOURS_FOR, POSTPOSED = (
    adjectives(LEXICON["adjectives"][place]) for place in ("preposed", "colours", "postposed")
)
POSTPOSED_FOR = {kind: COLOURS_FOR[kind] + others for kind, others in POSTPOSED.items()}
ADJECTIVES_FOR = {kind: PREPOSED_FOR[kind] + POSTPOSED_FOR[kind] for kind in NOUNS_OF_KIND}


@dataclass(frozen=True, slots=True, eq=False)
class Verb:
    """A verb on both sides; the five present forms are those of je, tu, il, nous and ils."""

    base: str
    third: str
    past: str  # empty where the past would ask for the imparfait
    particle: str  # "for" in "look for", which French does without
    infinitive: str
    present: tuple[str, ...]
    participles: tuple[str, str, str, str]
    complements: tuple[str, ...]  # the kinds of its object, or the prepositions of its place
    animate: bool  # whether animals do it too
    etre: bool  # whether être is the auxiliary of its passé composé, the participle agreeing with the subject


def verb(english: str, french: str, *complements: str, etre: bool) -> Verb:
    """Build a verb from the columns of its table."""
    english, past, third, *_ = *english.split("/"), "", ""
    base, _, particle = english.removeprefix("*").partition("+")
    past = "" if past == "-" else past or english_past(base)
    infinitive, *paradigm = french.split("/")
    *present, participle = paradigm or first_group(infinitive)
    forms = tuple(present), four_forms(participle)
    third = third or english_s(base)
    return Verb(base, third, past, particle, infinitive, *forms, complements, english.startswith("*"), etre)


TRANSITIVE, DITRANSITIVE, INTRANSITIVE, MOTION, CATENATIVE, REPORTING = (
    tuple(verb(*row, etre=kind == "motion") for row in rows(LEXICON["verbs"][kind]))
    for kind in ("transitive", "ditransitive", "intransitive", "motion", "catenative", "reporting")
)

AM, WAS, ETRE, ETAIT, SERA, AVOIR, AVAIT, ALLER = (
    tuple(LEXICON["paradigms"][name].split())
    for name in ("am", "was", "etre", "etait", "sera", "avoir", "avait", "aller")
)
MODALS = {name: tuple(forms.split()) for name, forms in LEXICON["modals"].items()}


@dataclass(frozen=True, slots=True)
class Determiner:
    """A determiner, which agrees with its noun."""

    singular: str
    plural: str
    masculine: str
    feminine: str
    plural_masculine: str
    plural_feminine: str = ""

    def english(self, plural: bool) -> str:
        return self.plural if plural else self.singular

    def french(self, feminine: bool, plural: bool) -> str:
        if plural:
            return (feminine and self.plural_feminine) or self.plural_masculine
        return self.feminine if feminine else self.masculine


THE, THIS, A, PARTITIVE, EVERY = (
    Determiner(*LEXICON["determiners"][name]) for name in ("the", "this", "a", "partitive", "every")
)
POSSESSIVES = tuple(Determiner(row[0], *row) for row in rows(LEXICON["determiners"]["possessives"]))
QUANTIFIERS = tuple(Determiner(*row) for row in LEXICON["determiners"]["quantifiers"])

SUBJECTS: tuple[tuple[str, str, int], ...] = tuple(map(tuple, LEXICON["pronouns"]["subjects"]))


@dataclass(frozen=True, slots=True)
class ObjectPronoun:
    """An object pronoun; `not_with` are the subjects with which it would have to be reflexive."""

    english: str
    french: str
    feminine: bool = False
    plural: bool = False
    third: bool = True
    not_with: Sequence[int] = ()


OBJECTS = tuple(ObjectPronoun(**entry) for entry in LEXICON["pronouns"]["objects"])

PREPOSITIONS: dict[str, str] = LEXICON["prepositions"]
TIMES: dict[str, list[tuple[str, str]]] = LEXICON["times"]
AVOIR_IDIOMS, FREQUENCY, DEGREES, MANNER, CONJUNCTIONS, INTERROGATIVES = (
    LEXICON["phrases"][name] for name in ("idioms", "frequency", "degrees", "manner", "conjunctions", "interrogatives")
)

# The nouns that name a place under a preposition, and those that name one's destination, origin or whereabouts.
PLACES = {
    preposition: tuple(noun for noun in ALL_NOUNS if preposition in noun.prepositions)
    for preposition in ("in", "on", "under", "behind", "near", "to")
}
PLACES |= {"at": PLACES["to"], "from": PLACES["to"]}
WHEREABOUTS = ("in", "in", "in", "on", "under", "behind", "near", "near")
