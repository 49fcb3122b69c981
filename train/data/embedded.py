"""The English-French corpus that comes with the program: 21,000 pairs, with the links between their words.

Each line of `embedded.tsv` is a pair: source, target, sure links and possible links, with tabs between them. A link
`2-3` joins the third source word and the fourth target word. No sentence occurs twice. The words of a sentence stand
between spaces, an elided one with its apostrophe ("l' eau").

Rules for both languages made the pairs. English determines French: "you" is "tu", "they" is "ils", the simple past is
the passé composé and "was" the imparfait; nothing agrees with the gender of the speaker or of the person spoken to.

Links follow the usage of the field. A sure link says that the words translate each other; an auxiliary is translated
where French has one of its own ("did ... eat", "a mangé"). A possible link marks an English function word that French
expresses within another word: the article in "au", the "does" of "does not eat".
"""

from functools import cache
from pathlib import Path

from train.data.corpus import Alignment, Pair

TOPICS = "people, families, animals, food, clothes, things of the house, and the places of a village"


@cache
def embedded_pairs() -> tuple[Pair, ...]:
    """Read the pairs; the first 20,000 are for training, then 500 for validation and 500 for test."""
    return tuple(map(_read_pair, Path(__file__).with_suffix(".tsv").read_text(encoding="utf-8").splitlines()))


def _read_pair(line: str) -> Pair:
    source, target, sure, possible = line.split("\t")
    return Pair(source, target, Alignment(_read_links(sure), _read_links(possible)))


@cache  # many sentences have the same links
def _read_links(text: str) -> frozenset[tuple[int, int]]:
    return frozenset((int(i), int(j)) for i, j in (link.split("-") for link in text.split()))
