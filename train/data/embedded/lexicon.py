"""The words of the corpus: English and French side by side, with the morphology that the grammar needs.

A comma or a line end separates the entries of a table, blanks the columns of an entry.  A slash separates the forms of
a word, and only the forms that no rule predicts are listed: `child/children`, `hibou/hiboux`.  The dataclasses hold
every form, so the grammar looks words up and never inflects them.
"""

import re
from dataclasses import dataclass

# The persons of a French verb, as positions in its paradigm.  "you" is always the familiar "tu": there is no "vous".
JE, TU, IL, NOUS, ILS = range(5)

# Words whose initial h is aspirated: it blocks elision ("le hibou") where a mute h does not ("l'homme").
ASPIRATED = frozenset({"hibou", "hiboux", "hérisson", "hérissons"})


def rows(table: str) -> list[list[str]]:
    """Split a table into entries, and each entry into columns."""
    return [entry.split() for entry in re.split(r"[,\n]", table) if entry.strip()]


def english_s(word: str) -> str:
    """Add the -s of plural nouns and of the third person: cat -> cats, box -> boxes, carry -> carries."""
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "o", "ch", "sh")) else "s")


def english_past(word: str) -> str:
    """Form the regular past: dance -> danced, carry -> carried, help -> helped."""
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ied"
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


# English[/plural]  French[/plural]  gender  prepositions of place, for nouns that may be one
# A "-" for the English plural keeps the noun in the singular.
NOUNS = {
    "person": """
        man/men homme m, woman/women femme f, king roi m, queen reine f, princess princesse f, witch sorcière f
        nurse infirmière f, baker boulanger m, farmer fermier m, doctor médecin m, teacher professeur m
        sailor marin m, student étudiant m, dancer danseuse f
        """,
    "child": "child/children enfant m, boy garçon m, girl fille f",
    "kin": """
        mother/- mère f, father/- père m, brother frère m, sister sœur f, son fils m, daughter fille f, uncle oncle m
        aunt tante f, friend ami m, neighbour voisin m
        """,
    "animal": """
        cat chat m, dog chien m, bird oiseau m, horse cheval m, cow vache f, fox renard m, wolf/wolves loup m
        mouse/mice souris f, owl hibou/hiboux m, hedgehog hérisson m, squirrel écureuil m, hen poule f
        tortoise tortue f, goat chèvre f, bee abeille f, elephant éléphant m
        """,
    "fruit": "apple pomme f, pear poire f, orange orange f, cherry cerise f, cake gâteau m, egg œuf m",
    "meal": "bread/- pain m, cheese/- fromage m, soup/- soupe f, honey/- miel m, meat/- viande f",
    "drink": "water/- eau f, milk/- lait m, tea/- thé m, coffee/- café m",
    "text": "letter lettre f, book livre m, poem poème m, story histoire f",
    "clothing": "hat chapeau m, coat manteau m, dress robe f, shirt chemise f",
    "thing": """
        table table f on under, chair chaise f on behind, tree arbre m under behind near, box boîte f in on
        key clé f, lamp lampe f, plate assiette f, clock horloge f, umbrella parapluie m, flower fleur f
        boat bateau m on in, car voiture f in behind near
        """,
    "door": "door porte f behind near, window fenêtre f near",
    "place": """
        house/- maison f in behind near, garden/- jardin m in behind near, kitchen/- cuisine f in
        forest/- forêt f in near, street/- rue f in, village/- village m in near to
        castle/- château m in behind near to, hotel/- hôtel m in behind near to, school/- école f in behind near to
        church/- église f in behind near to, library/- bibliothèque f in to, museum/- musée m in near to
        park/- parc m in near to, market/- marché m near to, station/- gare f near to, farm/- ferme f near to
        beach/- plage f on near to, island/- île f on near, bridge/- pont m on under near, river/- rivière f in near
        """,
}


def noun(kind: str, english: str, french: str, gender: str, *prepositions: str) -> Noun:
    """Build a noun from the columns of its table."""
    english, _, plural = english.partition("/")
    french, _, pluriel = french.partition("/")
    plural = "" if plural == "-" else plural or english_s(english)
    pluriel = (pluriel or french_plural(french)) if plural else ""
    return Noun(english, french, plural, pluriel, gender == "f", kind, prepositions)


NOUNS_OF_KIND = {kind: tuple(noun(kind, *row) for row in rows(table)) for kind, table in NOUNS.items()}
ALL_NOUNS = tuple(entry for entries in NOUNS_OF_KIND.values() for entry in entries)

# Kinds without a singular indefinite article: "some bread", "du pain".
MASS = ("meal", "drink")

# First names, the same in both languages, with their gender.
NAMES = (("anna", True), ("emma", True), ("claire", True), ("paul", False), ("adam", False), ("louis", False))


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
    return {kind: tuple(entry for entry in entries if kind in entry.kinds) for kind in NOUNS}


# English  French masculine[/feminine[/before a vowel]]  kinds of noun
PREPOSED_FOR = adjectives("""
    little petit person child animal fruit thing place door, big grand animal fruit thing place door
    kind gentil/gentille person child kin, old vieux/vieille/vieil person animal text clothing thing place door
    new nouveau/nouvelle/nouvel text clothing thing place, young jeune person kin animal
    beautiful beau/belle/bel animal text clothing thing place, pretty joli animal clothing thing place
    good bon/bonne fruit meal drink text, long long/longue text clothing, bad mauvais fruit meal drink text
    """)

COLOURS_FOR = adjectives("""
    black noir animal clothing thing door, white blanc/blanche animal clothing thing door
    red rouge fruit clothing thing door, green vert clothing thing door, blue bleu clothing thing door
    yellow jaune fruit clothing thing, grey gris animal clothing
    """)

POSTPOSED = adjectives("""
    tired fatigué person child kin animal, happy heureux person child kin, sad triste person child kin text
    strong fort person child animal, curious curieux person child kin animal, shy timide person child kin animal
    clever intelligent person child kin animal, famous célèbre person place text, cold froid meal drink
    hot chaud meal drink, sweet sucré fruit drink, heavy lourd thing, expensive cher/chère clothing thing meal text
    quiet calme place
    """)
POSTPOSED_FOR = {kind: COLOURS_FOR[kind] + others for kind, others in POSTPOSED.items()}
ADJECTIVES_FOR = {kind: PREPOSED_FOR[kind] + POSTPOSED_FOR[kind] for kind in NOUNS}


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


def verbs(table: str, etre: bool = False) -> tuple[Verb, ...]:
    """Read a table of verbs.  Its columns are:

    English[+particle][/past[/third person]]  French infinitive[/je/tu/il/nous/ils/participle]  complements

    A star marks what animals do too, a "-" for the past the verbs that stay out of the passé composé.
    """
    return tuple(verb(*row, etre=etre) for row in rows(table))


TRANSITIVE = verbs("""
    *eat/ate manger fruit meal, drink/drank boire/bois/bois/boit/buvons/boivent/bu drink
    buy/bought acheter/achète/achètes/achète/achetons/achètent/acheté fruit meal clothing thing text
    sell/sold vendre/vends/vends/vend/vendons/vendent/vendu fruit meal clothing thing
    have/-/has avoir/ai/as/a/avons/ont/eu animal clothing thing, *find/found trouver animal clothing thing fruit
    *look+for chercher person child kin animal clothing thing
    *see/saw voir/vois/vois/voit/voyons/voient/vu person child kin animal place
    *hear/heard entendre/entends/entends/entend/entendons/entendent/entendu person child kin animal
    wait+for attendre/attends/attends/attend/attendons/attendent/attendu person child kin
    love aimer person child kin animal, help aider person child kin animal
    write/wrote écrire/écris/écris/écrit/écrivons/écrivent/écrit text
    open ouvrir/ouvre/ouvres/ouvre/ouvrons/ouvrent/ouvert door, close fermer door, wear/wore porter clothing
    wash laver clothing fruit, draw/drew dessiner animal thing place
    """)

# What one gives, shows or brings somebody.
DITRANSITIVE = verbs("""
    give/gave donner animal fruit meal clothing thing text, show montrer animal clothing thing text
    bring/brought apporter fruit meal drink clothing
    """)

INTRANSITIVE = verbs("""
    *sleep/slept dormir/dors/dors/dort/dormons/dorment/dormi, *sing/sang chanter, dance danser, work travailler
    *play jouer, *run/ran courir/cours/cours/court/courons/courent/couru
    """)

# The complements of verbs of motion are the English prepositions that introduce the place.
MOTION = verbs(
    """
    go/went aller/vais/vas/va/allons/vont/allé to, *come/came venir/viens/viens/vient/venons/viennent/venu from
    return revenir/reviens/reviens/revient/revenons/reviennent/revenu from, *arrive arriver at, *stay rester in
    *leave/left partir/pars/pars/part/partons/partent/parti
    """,
    etre=True,
)

# Verbs whose complement is an infinitive ("wants to eat") or a clause ("says that ...").
CATENATIVE = verbs("want vouloir/veux/veux/veut/voulons/veulent/voulu, like aimer")
REPORTING = verbs("say/said dire/dis/dis/dit/disons/disent/dit, think/thought penser")


# By person, as in the paradigms above.
AM = ("am", "are", "is", "are", "are")
WAS = ("was", "were", "was", "were", "were")
ETRE = ("suis", "es", "est", "sommes", "sont")
ETAIT = ("étais", "étais", "était", "étions", "étaient")
SERA = ("serai", "seras", "sera", "serons", "seront")
AVOIR = ("ai", "as", "a", "avons", "ont")
AVAIT = ("avais", "avais", "avait", "avions", "avaient")
ALLER = ("vais", "vas", "va", "allons", "vont")
MODALS = {
    "can": ("peux", "peux", "peut", "pouvons", "peuvent"),
    "must": ("dois", "dois", "doit", "devons", "doivent"),
}


@dataclass(frozen=True, slots=True)
class Determiner:
    """A determiner; in French the possessives too agree with the noun that follows, not with the possessor."""

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


THE = Determiner("the", "the", "le", "la", "les")
THIS = Determiner("this", "these", "ce", "cette", "ces")
A = Determiner("a", "some", "un", "une", "des")
PARTITIVE = Determiner("some", "", "de le", "de la", "")
EVERY = Determiner("every", "", "chaque", "chaque", "")
POSSESSIVES = tuple(
    Determiner(english, english, *french)
    for english, *french in rows("""
    my mon ma mes, your ton ta tes, his son sa ses, her son sa ses, our notre notre nos, their leur leur leurs
    """)
)
COUNTED = (("two", "deux"), ("three", "trois"), ("four", "quatre"), ("many", "beaucoup de"))
QUANTIFIERS = (
    *(Determiner("", english, "", "", french) for english, french in COUNTED),
    Determiner("", "all the", "", "", "tous les", "toutes les"),
)

# English, French and person; "they" is always "ils".
SUBJECTS = (
    *(("i", "je", JE), ("you", "tu", TU), ("he", "il", IL)),
    *(("she", "elle", IL), ("we", "nous", NOUS), ("they", "ils", ILS)),
)


@dataclass(frozen=True, slots=True)
class ObjectPronoun:
    """An object pronoun; `not_with` are the subjects with which it would have to be reflexive."""

    english: str
    french: str
    feminine: bool = False
    plural: bool = False
    third: bool = True
    not_with: tuple[int, ...] = ()


OBJECTS = (
    ObjectPronoun("him", "le"),
    ObjectPronoun("her", "la", feminine=True),
    ObjectPronoun("them", "les", plural=True),
    ObjectPronoun("me", "me", third=False, not_with=(JE, NOUS)),
    ObjectPronoun("you", "te", third=False, not_with=(TU,)),
    ObjectPronoun("us", "nous", plural=True, third=False, not_with=(JE, NOUS)),
)

PREPOSITIONS = {"in": "dans", "on": "sur", "under": "sous", "behind": "derrière", "near": "près de"}
PREPOSITIONS |= {"to": "à", "at": "à", "from": "de"}

# "to be" plus an adjective in English, avoir plus a noun in French.
AVOIR_IDIOMS = (("hungry", "faim"), ("thirsty", "soif"), ("sleepy", "sommeil"), ("right", "raison"), ("afraid", "peur"))

FREQUENCY = (("often", "souvent"), ("always", "toujours"), ("sometimes", "parfois"))
DEGREES = (("very", "très"), ("too", "trop"))
MANNER = (("slowly", "lentement"), ("quietly", "doucement"), ("outside", "dehors"), ("here", "ici"))
CONJUNCTIONS = (("and", "et"), ("but", "mais"), ("because", "parce que"), ("while", "pendant que"))
INTERROGATIVES = (("why", "pourquoi"), ("how", "comment"))

# The adverbs of time that suit a tense.
TIMES = {
    "past": (("yesterday", "hier"), ("yesterday evening", "hier soir"), ("this morning", "ce matin")),
    "present": (("now", "maintenant"), ("every day", "chaque jour"), ("every morning", "chaque matin")),
}

# The nouns that name a place under a preposition, and those that name one's destination, origin or whereabouts.
PLACES = {
    preposition: tuple(noun for noun in ALL_NOUNS if preposition in noun.prepositions)
    for preposition in ("in", "on", "under", "behind", "near", "to")
}
PLACES |= {"at": PLACES["to"], "from": PLACES["to"]}
WHEREABOUTS = ("in", "in", "in", "on", "under", "behind", "near", "near")
