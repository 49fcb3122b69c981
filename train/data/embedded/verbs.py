"""Conjugate verbs, and join them with negation, adverbs, pronouns and complements."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from train.data.embedded import lexicon as lex
from train.data.embedded.lexicon import IL, Verb
from train.data.embedded.phrases import English, French, Phrase, gloss

PRESENT, PAST, GOING = "present", "past", "going"


class Agreement(NamedTuple):
    """The features that a verb and its participle agree with; `person` indexes the paradigms of the lexicon."""

    person: int
    feminine: bool = False
    plural: bool = False


@dataclass(slots=True)
class Nominal:
    """A noun phrase or a pronoun, with the agreement that it imposes."""

    phrase: Phrase
    agreement: Agreement


@dataclass(slots=True)
class Modifier:
    """A negation or an adverb: after the English auxiliary; in French around the finite verb, or after it."""

    source: tuple[English, ...] = ()
    before: tuple[French, ...] = ()
    after: tuple[French, ...] = ()


@dataclass(slots=True)
class Predicate:
    """A verb and what goes with it, kept apart at the joints where subject, negation and pronouns enter.

    English:    [operator] modifier rest complement
    French:     modifier.before clitics finite modifier.after nonfinite complement
    """

    operator: tuple[English, ...]  # the auxiliary that inverts and is negated, if any
    rest: tuple[English, ...]
    finite: French
    nonfinite: tuple[French, ...] = ()
    clitics: tuple[French, ...] = ()
    modifier: Modifier = field(default_factory=Modifier)
    complement: Phrase = field(default_factory=Phrase)

    def phrase(self) -> Phrase:
        """Return the predicate as it follows a subject."""
        return Phrase(self.operator + self.english(), self.french())

    def english(self) -> tuple[English, ...]:
        return self.modifier.source + self.rest + self.complement.source

    def french(self) -> tuple[French, ...]:
        verb = (*self.clitics, self.finite)
        return self.modifier.before + verb + self.modifier.after + self.nonfinite + self.complement.target


def negation(english: str, french: str) -> Modifier:
    """Render "not" as "ne ... pas", "never" as "ne ... jamais": one English word, two French ones."""
    word = English(english)
    return Modifier((word,), (French("ne", (word,)),), (French(french, (word,)),))


def adverb(english: str, french: str) -> Modifier:
    """Return an adverb, which follows the finite verb in French."""
    word = gloss(english, french)
    return Modifier(word.source, (), word.target)


def present(verb: Verb, who: Agreement, supported: bool) -> Predicate:
    """Conjugate "eats", "does ... eat": "mange"."""
    form = verb.third if who.person == IL else verb.base
    support = (English("does" if who.person == IL else "do"),) if supported else ()
    main = English(verb.base if supported else form)
    particle = tuple(map(English, verb.particle.split()))
    return Predicate(support, (main, *particle), French(verb.present[who.person], (main,), support + particle))


def past(verb: Verb, who: Agreement, supported: bool, with_participle: Agreement | None) -> Predicate:
    """Conjugate "ate", "did ... eat": "a mangé".

    The participle agrees with a preceding object, or with the subject of être.
    """
    main = English(verb.base if supported else verb.past)
    support = (English("did"),) if supported else ()
    particle = tuple(map(English, verb.particle.split()))
    auxiliary = (lex.ETRE if verb.etre else lex.AVOIR)[who.person]
    agreed = who if verb.etre else with_participle or Agreement(IL)
    participle = French(verb.participles[agreed.feminine + 2 * agreed.plural], (main,), particle)
    return Predicate(support, (main, *particle), French(auxiliary, support or (main,)), (participle,))


def auxiliary(tense: str, who: Agreement, supported: bool) -> Predicate:
    """Conjugate what governs an infinitive: "is going (to)", "can", "must", "wants (to)", "likes (to)"."""
    if tense in lex.MODALS:
        modal = English(tense)
        return Predicate((modal,), (), French(lex.MODALS[tense][who.person], (modal,)))
    if tense == GOING:
        be, going = English(lex.AM[who.person]), English("going")
        return Predicate((be,), (going,), French(lex.ALLER[who.person], (going,), (be,)))
    return present(next(verb for verb in lex.CATENATIVE if verb.base == tense), who, supported)


def conjugate(verb: Verb, tense: str, who: Agreement, supported: bool, pronoun: Nominal | None = None) -> Predicate:
    """Conjugate a verb, do-support included.  An object pronoun stands before the French verb that governs it."""
    object_ = pronoun.phrase if pronoun else Phrase()
    if tense in (PRESENT, PAST):
        if tense == PRESENT:
            predicate = present(verb, who, supported)
        else:
            predicate = past(verb, who, supported, pronoun.agreement if pronoun else None)
        return replace(predicate, rest=predicate.rest + object_.source, clitics=object_.target)
    predicate = auxiliary(tense, who, supported)
    to = () if tense in lex.MODALS else (English("to"),)
    main, particle = English(verb.base), tuple(map(English, verb.particle.split()))
    infinitive = French(verb.infinitive, (main,), to + particle)
    rest = (*predicate.rest, *to, main, *particle, *object_.source)
    return replace(predicate, rest=rest, nonfinite=(*object_.target, infinitive))
