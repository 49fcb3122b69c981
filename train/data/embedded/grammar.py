"""A grammar of English and French, written for this project, that generates sentence pairs and their word alignment.

English determines French.  Where English leaves a choice open, one convention settles it: "you" is "tu", "they" is
"ils", the simple past is the passé composé and "was" the imparfait; nothing has to agree with the gender of the speaker
or of the person spoken to.

Links follow the usage of the field.  A sure link says that the words translate each other, an auxiliary being
translated where French has one of its own ("did ... eat", "a mangé").  A possible link marks an English function word
that French expresses within another word: the article in "au", the "does" of "does not eat".
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import TypeVar

from train.data.embedded import lexicon as lex
from train.data.embedded.lexicon import IL, ILS, NOUS, Adjective, Determiner, Noun, Verb
from train.data.embedded.phrases import AlignedPair, English, French, Phrase, gloss, spell
from train.data.embedded.verbs import (
    GOING,
    PAST,
    PRESENT,
    Agreement,
    Modifier,
    Nominal,
    Predicate,
    adverb,
    conjugate,
    negation,
    present,
)

Item = TypeVar("Item")

MAX_LENGTH = 13  # tokens a side; longer sentences are drawn again

TENSES = 7 * (PRESENT,) + 4 * (PAST,) + (GOING, GOING, *lex.MODALS, *(verb.base for verb in lex.CATENATIVE))


def declare(subject: Nominal, predicate: Predicate) -> Phrase:
    """Put the predicate after its subject."""
    return subject.phrase + predicate.phrase()


def ask(subject: Nominal, predicate: Predicate, interrogative: Phrase | None = None) -> Phrase:
    """Invert the English auxiliary, which "est-ce que" renders in French."""
    marker = tuple(French(form, predicate.operator) for form in ("est-ce", "que"))
    inverted = Phrase(
        predicate.operator + subject.phrase.source + predicate.english(),
        marker + subject.phrase.target + predicate.french(),
    )
    return interrogative + inverted if interrogative else inverted


# The determiners to draw from: anywhere, of a place, of what is described, after "there is".
DETERMINERS = 4 * ("the",) + 2 * ("indefinite",) + 2 * ("possessive",) + ("this", "quantity")
LOCATING = 6 * ("the",) + 2 * ("possessive",) + ("this", "indefinite")
KNOWN = 3 * ("the",) + ("possessive", "this")
INTRODUCING = ("indefinite",)

# The forms of "je", "tu" and "nous" occur with their pronouns only, so these are drawn more often than the others.
THIRD_PERSONS = tuple(entry for entry in lex.SUBJECTS if entry[2] in (IL, ILS))
ALL_PERSONS = 4 * tuple(entry for entry in lex.SUBJECTS if entry not in THIRD_PERSONS) + THIRD_PERSONS

PEOPLE = ("person", "child")
PERSONS = {*PEOPLE, "kin"}
MOVABLE = ("animal", "thing", "clothing", "text", "fruit")


@cache
def nouns_of(kinds: tuple[str, ...]) -> tuple[Noun, ...]:
    return tuple(noun for kind in kinds for noun in lex.NOUNS_OF_KIND[kind])


class Grammar:
    """Draws sentences at random, the words of a class equally often."""

    def __init__(self, seed: int) -> None:
        # The only method of Random whose sequence is the same in every version of Python.
        self.random = Random(seed).random

    def pick(self, items: Sequence[Item]) -> Item:
        return items[int(self.random() * len(items))]

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    # Noun phrases

    def noun_phrase(
        self, noun: Noun, determiners: Sequence[str] = DETERMINERS, negated: bool = False, plain: bool = False
    ) -> Nominal:
        """Draw a determiner, adjectives unless `plain`, and the noun, the object of a negated verb if `negated`."""
        plural = bool(noun.english_plural) and self.chance(0.45)
        agreement = Agreement(ILS if plural else IL, noun.feminine, plural)
        classes = ((), ()) if plain else self.adjectives(noun)
        preposed, postposed = (self.attribute(adjectives, agreement) for adjectives in classes)
        determiner = self.determiner(noun, self.pick(determiners), plural, negated, bool(preposed.target))
        head = gloss(noun.english_plural, noun.french_plural) if plural else gloss(noun.english, noun.french)
        group = Phrase(postposed.source + head.source, head.target + postposed.target)
        return Nominal(determiner + preposed + group, agreement)

    def adjectives(self, noun: Noun) -> tuple[Sequence[Adjective], Sequence[Adjective]]:
        """Return the adjectives to choose from before the French noun and after it."""
        draw = self.random()
        if draw < 0.12:
            return lex.PREPOSED_FOR[noun.kind], lex.COLOURS_FOR[noun.kind]
        if draw < 0.28:
            return lex.PREPOSED_FOR[noun.kind], ()
        return (), lex.POSTPOSED_FOR[noun.kind] if draw < 0.45 else ()

    def attribute(self, adjectives: Sequence[Adjective], agreement: Agreement) -> Phrase:
        if not adjectives:
            return Phrase()
        adjective = self.pick(adjectives)
        _, feminine, plural = agreement
        prevocalic = "" if feminine or plural else adjective.prevocalic
        return gloss(adjective.english, adjective.agreeing(feminine, plural), prevocalic)

    def determiner(self, noun: Noun, role: str, plural: bool, negated: bool, preposed: bool) -> Phrase:
        """Draw a determiner of a role.  Kinship terms take a possessive, and mass nouns are not counted."""
        if noun.kind == "kin" or role == "possessive":
            chosen = self.pick(lex.POSSESSIVES)
        elif role == "indefinite":
            return self.indefinite(noun, plural, negated, preposed)
        elif role == "quantity" and not negated and noun.kind not in lex.MASS:
            chosen = self.pick(lex.QUANTIFIERS) if plural else lex.EVERY
        else:
            chosen = lex.THIS if role == "this" else lex.THE
        return gloss(chosen.english(plural), chosen.french(noun.feminine, plural))

    def indefinite(self, noun: Noun, plural: bool, negated: bool, preposed: bool) -> Phrase:
        """Return "a" or "some"; "de" under negation ("pas de pain") or before a plural adjective ("de petits lits")."""
        mass = noun.kind in lex.MASS
        chosen: Determiner = lex.PARTITIVE if mass else lex.A
        english = "any" if negated and (plural or mass) else chosen.english(plural)
        return gloss(english, "de" if negated or (plural and preposed) else chosen.french(noun.feminine, plural))

    def person(self) -> Nominal:
        """Draw a person: "anna", "my brother", "the son of the king", "the old sailor"."""
        draw = self.random()
        if draw < 0.15:
            name, feminine = self.pick(lex.NAMES)
            return Nominal(gloss(name, name), Agreement(IL, feminine))
        if draw < 0.4:
            return self.noun_phrase(self.pick(nouns_of(("kin",))))
        if draw < 0.5:
            relative = self.pick(nouns_of(("kin",)))
            head = gloss("the", "la" if relative.feminine else "le") + gloss(relative.english, relative.french)
            owner = self.noun_phrase(self.pick(nouns_of(PEOPLE)), ("the", "this"))
            return Nominal(head + gloss("of", "de") + owner.phrase, Agreement(IL, relative.feminine))
        return self.noun_phrase(self.pick(nouns_of(PEOPLE)))

    def pronoun(self, third: bool) -> Nominal:
        english, french, person = self.pick(THIRD_PERSONS if third else ALL_PERSONS)
        return Nominal(gloss(english, french), Agreement(person, english == "she", person in (NOUS, ILS)))

    def subject(self, animals: bool, third: bool = False) -> Nominal:
        """Draw a subject: also `animals`, or only the `third` person."""
        draw = self.random()
        if draw < (0.2 if third else 0.6):
            return self.pronoun(third)
        if animals and draw < 0.75:
            return self.noun_phrase(self.pick(nouns_of(("animal",))))
        if draw < 0.92:
            return self.person()
        first, second = self.person(), self.person()
        both = Agreement(ILS, first.agreement.feminine and second.agreement.feminine, True)
        return Nominal(first.phrase + gloss("and", "et") + second.phrase, both)

    # Predicates

    def modifier(self, asked: bool, frequency: bool = True) -> Modifier:
        """Draw a negation, unless in a question, or an adverb of frequency where one makes sense."""
        draw = self.random()
        if not asked and draw < 0.2:
            return negation("not", "pas")
        if frequency and not asked and draw < 0.25:
            return negation("never", "jamais")
        return adverb(*self.pick(lex.FREQUENCY)) if frequency and draw > 0.9 else Modifier()

    def action(self, asked: bool) -> tuple[Nominal, Predicate]:
        """Draw somebody and an action: a verb of any class with its complements."""
        verb = self.pick(VERBS)
        tense = self.pick(TENSES if verb.past else TENSES_BUT_PAST)
        subject = self.subject(verb.animate, third=verb.etre and tense == PAST)
        return subject, self.act(verb, tense, subject.agreement, asked)

    def act(self, verb: Verb, tense: str, who: Agreement, asked: bool = False) -> Predicate:
        modifier = self.modifier(asked, frequency=tense in (PRESENT, PAST))
        negative = bool(modifier.before)
        supported = asked or (negative and modifier.source[0].form == "not")
        takes_person = verb in lex.TRANSITIVE and not PERSONS.isdisjoint(verb.complements)
        if takes_person and self.chance(0.55):
            pronoun = self.object_pronoun(tense, who)
            predicate, complement = conjugate(verb, tense, who, supported, pronoun), Phrase()
        else:
            predicate, complement = conjugate(verb, tense, who, supported), self.complement(verb, negative)
        return replace(predicate, modifier=modifier, complement=complement + self.adjunct(verb, tense, modifier))

    def object_pronoun(self, tense: str, who: Agreement) -> Nominal:
        """Draw an object pronoun that is not reflexive, and whose gender is known where a participle agrees with it."""
        unreflexive = [entry for entry in lex.OBJECTS if who.person not in entry.not_with]
        entry = self.pick([entry for entry in unreflexive if entry.third or tense != PAST])
        return Nominal(gloss(entry.english, entry.french), Agreement(IL, entry.feminine, entry.plural))

    def complement(self, verb: Verb, negated: bool) -> Phrase:
        """Draw the object of the verb and a recipient, or the place of a movement."""
        if verb in lex.INTRANSITIVE or not verb.complements:
            return Phrase()
        if verb in lex.MOTION:
            return self.place(verb.complements)
        direct = self.noun_phrase(self.pick(nouns_of(verb.complements)), negated=negated).phrase
        return direct + gloss("to", "à") + self.person().phrase if verb in lex.DITRANSITIVE else direct

    def place(self, prepositions: Sequence[str]) -> Phrase:
        preposition = self.pick(prepositions)
        where = self.noun_phrase(self.pick(lex.PLACES[preposition]), LOCATING)
        return gloss(preposition, lex.PREPOSITIONS[preposition]) + where.phrase

    def adjunct(self, verb: Verb, tense: str, modifier: Modifier) -> Phrase:
        """Draw a manner, a place, a time (unless the verb has an adverb) or company, or nothing."""
        draw = self.random()
        if verb in lex.INTRANSITIVE and draw < 0.4:
            manner = gloss(*self.pick(lex.MANNER))
            return manner if draw < 0.2 else manner + self.place(lex.WHEREABOUTS)
        if verb not in lex.MOTION and draw < 0.6:
            return self.place(lex.WHEREABOUTS)
        if draw < 0.75 and not modifier.after:
            return gloss(*self.pick(lex.TIMES.get(tense, lex.TIMES[PRESENT])))
        if draw < 0.85 and verb in lex.MOTION:
            return gloss("with", "avec") + self.person().phrase
        return Phrase()

    # States

    def be(self, who: Agreement) -> Predicate:
        """Draw "is", "was" or "will be"."""
        draw = self.random()
        if draw < 0.75:
            forms, paradigm = (lex.AM, lex.ETRE) if draw < 0.5 else (lex.WAS, lex.ETAIT)
            operator = English(forms[who.person])
            return Predicate((operator,), (), French(paradigm[who.person], (operator,)))
        will, main = English("will"), English("be")
        return Predicate((will,), (main,), French(lex.SERA[who.person], (main,), (will,)))

    def quality(self, asked: bool) -> tuple[Nominal, Predicate]:
        """Describe a person or a thing by adjectives."""
        noun = self.pick(lex.ALL_NOUNS)
        subject = self.noun_phrase(noun, KNOWN, plain=True)
        if noun.kind in PEOPLE and self.chance(0.6):
            subject = self.pronoun(third=True)
        return subject, self.qualified(noun.kind, subject.agreement, asked)

    def qualified(self, kind: str, who: Agreement, asked: bool = False) -> Predicate:
        """Draw "is very old", "was not yellow", "will be tired and sad"."""
        degree = gloss(*self.pick(lex.DEGREES)) if self.chance(0.35) else Phrase()
        first, second = (self.pick(lex.ADJECTIVES_FOR[kind]) for _ in "12")
        complement = degree + gloss(first.english, first.agreeing(who.feminine, who.plural))
        if first is not second and self.chance(0.2):
            complement += gloss("and", "et") + gloss(second.english, second.agreeing(who.feminine, who.plural))
        return replace(self.be(who), modifier=self.modifier(asked, frequency=False), complement=complement)

    def location(self, asked: bool) -> tuple[Nominal, Predicate]:
        """Say where a person or a thing is."""
        thing = self.chance(0.4)
        subject = self.noun_phrase(self.pick(nouns_of(MOVABLE)), KNOWN) if thing else self.subject(animals=True)
        predicate = replace(self.be(subject.agreement), modifier=self.modifier(asked))
        return subject, replace(predicate, complement=self.place(lex.WHEREABOUTS))

    def sensation(self, asked: bool) -> tuple[Nominal, Predicate]:
        """Say "is hungry" or "is afraid": in French, one has hunger or fear."""
        subject = self.subject(animals=True)
        english, french = self.pick(lex.AVOIR_IDIOMS)
        forms, paradigm = (lex.AM, lex.AVOIR) if self.chance(0.6) else (lex.WAS, lex.AVAIT)
        operator = English(forms[subject.agreement.person])
        complement = gloss(english, french)
        if english == "afraid":
            complement += gloss("of", "de") + self.noun_phrase(self.pick(nouns_of(("animal",))), LOCATING).phrase
        finite = French(paradigm[subject.agreement.person], (operator,))
        return subject, Predicate((operator,), (), finite, (), (), self.modifier(asked), complement)

    def existence(self, asked: bool) -> tuple[Nominal, Predicate]:
        """Say "there is a cat": "il y a un chat"."""
        found = self.noun_phrase(self.pick(nouns_of((*PEOPLE, *MOVABLE))), INTRODUCING)
        there = English("there")
        present_tense = self.chance(0.6)
        operator = English((lex.AM if present_tense else lex.WAS)[found.agreement.person])
        subject = Nominal(Phrase((there,), (French("il", (there,)),)), Agreement(IL))
        finite = French("a" if present_tense else "avait", (operator,))
        complement = found.phrase + self.place(lex.WHEREABOUTS)
        return subject, Predicate((operator,), (), finite, clitics=(French("y", (there,)),), complement=complement)

    # Sentences

    def clause(self, asked: bool = False) -> tuple[Nominal, Predicate]:
        return self.pick(CLAUSES)(self, asked)

    def statement(self) -> Phrase:
        return declare(*self.clause()) + gloss(".", ".")

    def compound(self) -> Phrase:
        """Join two clauses by a conjunction."""
        first, second = declare(*self.clause()), declare(*self.clause())
        return first + gloss(*self.pick(lex.CONJUNCTIONS)) + second + gloss(".", ".")

    def report(self) -> Phrase:
        """Report a clause: "she says that ..."."""
        subject = self.subject(animals=False)
        reporting = present(self.pick(lex.REPORTING), subject.agreement, supported=False)
        return declare(subject, reporting) + gloss("that", "que") + declare(*self.clause()) + gloss(".", ".")

    def description(self) -> Phrase:
        """Draw a relative clause: "the queen who sings has a dog", "the book that he writes is long"."""
        if self.chance(0.5):
            head = self.noun_phrase(self.pick(nouns_of(PEOPLE)), ("the", "this"))
            relative = gloss("who", "qui") + self.act(self.pick(VERBS), PRESENT, head.agreement).phrase()
            verb = self.pick(VERBS)
            main = self.act(verb, PAST if verb.past else PRESENT, head.agreement)
        else:
            verb = self.pick(lex.TRANSITIVE)
            noun = self.pick(nouns_of(verb.complements))
            head = self.noun_phrase(noun, ("the", "this"), plain=True)
            subject = self.subject(verb.animate)
            relative = gloss("that", "que") + declare(subject, present(verb, subject.agreement, supported=False))
            main = self.qualified(noun.kind, head.agreement)
        return head.phrase + relative + main.phrase() + gloss(".", ".")

    def question(self) -> Phrase:
        """Ask with or without "why" or "how"."""
        if self.chance(0.3):
            return ask(*self.action(asked=True), gloss(*self.pick(lex.INTERROGATIVES))) + gloss("?", "?")
        return ask(*self.clause(asked=True)) + gloss("?", "?")

    def identity(self) -> Phrase:
        """Ask "who sings ?"."""
        verb = self.pick(VERBS)
        tense = self.pick(TENSES if verb.past else TENSES_BUT_PAST)
        return gloss("who", "qui") + self.act(verb, tense, Agreement(IL)).phrase() + gloss("?", "?")

    def sentence(self) -> AlignedPair:
        return spell(self.pick(SENTENCES)(self))


TENSES_BUT_PAST = tuple(tense for tense in TENSES if tense != PAST)
VERBS = lex.TRANSITIVE + 2 * lex.DITRANSITIVE + lex.INTRANSITIVE + 2 * lex.MOTION

# Repeated in proportion to their share of the corpus.
CLAUSES = 10 * (Grammar.action,) + 2 * (Grammar.quality,) + (Grammar.location, Grammar.sensation, Grammar.existence)
SENTENCES: tuple[Callable[[Grammar], Phrase], ...] = (
    9 * (Grammar.statement,) + 4 * (Grammar.compound,) + 3 * (Grammar.report,)
)
SENTENCES += 2 * (Grammar.description,) + 4 * (Grammar.question,) + (Grammar.identity,)


def sentences(seed: int) -> Iterator[AlignedPair]:
    """Yield pairs of moderate length without end, with repetitions."""
    grammar = Grammar(seed)
    while True:
        pair = grammar.sentence()
        if max(len(pair.source), len(pair.target)) <= MAX_LENGTH:
            yield pair


def generate(seed: int = 0, sizes: tuple[int, ...] = (20_000, 500, 500)) -> tuple[tuple[AlignedPair, ...], ...]:
    """Return splits of the given sizes.  No English and no French sentence occurs twice, in one split or in two."""
    seen: set[tuple[str, ...]] = set()
    fresh: list[AlignedPair] = []
    for pair in sentences(seed):
        if len(fresh) == sum(sizes):
            break
        if pair.source not in seen and pair.target not in seen:
            seen |= {pair.source, pair.target}
            fresh.append(pair)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(tuple(fresh[end - size : end]) for end, size in zip(ends, sizes, strict=True))
