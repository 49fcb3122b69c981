"""The default corpus keeps what it promises: its size, its splits, its French and its alignment."""

import hashlib
import json
import re
from collections import Counter
from itertools import islice

import pytest

from train.data.embedded import grammar, lexicon
from train.data.embedded.phrases import AlignedPair, Phrase, gloss, spell
from train.data.tokens import detokenize

SIDES = ("source", "target")

# What no French text may contain: hiatus, elision before a consonant, contractions not made, wrong agreement.
VOWEL = "[aeiouyéêèâîôœ]|h(?!ibou|érisson)"
CONSONANT = "[bcdfgjklmnpqrstvwxz]|hibou|hérisson"
MISSPELT = (
    f"(le|la|je|me|te|ne|de|que|ma|ta|sa|ce) ({VOWEL})",
    f"(l|j|m|t|n|d|qu)'({CONSONANT})",
    f"(un|le|ce|cet|chaque|notre|leur|[mts]on) (beau|nouveau|vieux) ({VOWEL})",
    f"(bel|nouvel|vieil|cet) ({CONSONANT})",
    "(de|à) les? (?!entendre|attendre|aider|voir|aimer|chercher)",
    r"pas (des|un|une)\b",
    r"(est|était|sera|a) (venus|allés|partis|restés|revenus|arrivés)\b",
    r"elle est (venu|allé|parti|resté|revenu|arrivé)\b",
    r"elles? (sont|étaient) \w+és\b",
    r"(une|la|cette|ma|ta|sa) (petit|grand|beau|vieux|nouveau|joli|bon|mauvais)\b",
)

# English and French patterns of what the corpus is to teach.
CONSTRUCTIONS = (
    (r"black cat\b", r"chat noir\b"),
    (r"little cat\b", r"petit chat\b"),
    (r"old tree\b", r"vieil arbre\b"),
    (r"beautiful bird\b", r"bel oiseau\b"),
    (r"new hotel\b", r"nouvel hôtel\b"),
    (r"this squirrel\b", r"cet écureuil\b"),
    (r"my story\b", r"mon histoire\b"),
    (r"does not drink\b", r"ne boit pas\b"),
    (r"(did|do|does) not \w+ any\b", r"pas (\w+ )?(de |d')\w+"),
    (r"never\b", r"jamais\b"),
    (r"cannot\b", r"ne peut pas\b"),
    (r"is going to write\b", r"va écrire\b"),
    (r"will be\b", r"sera\b"),
    (r"was\b", r"était\b"),
    (r"did she arrive\b", r"est-ce qu'elle est arrivée\b"),
    (r"helped her\b", r"l'(ai|as|a|avons|ont) aidée\b"),
    (r"sees? him\b", r"le voi(s|t|ent)\b"),
    (r"i am hungry\b", r"j'ai faim\b"),
    (r"there is\b", r"il y a\b"),
    (r"go(es)? to the market\b", r"au marché\b"),
    (r"from the museum\b", r"du musée\b"),
    (r"some little \w+s\b", r"de petits\b"),
    (r"some water\b", r"de l'eau\b"),
    (r"the \w+ who\b", r"qui\b"),
    (r"because\b", r"parce qu"),
)


@pytest.fixture(scope="module")
def splits() -> tuple[tuple[AlignedPair, ...], ...]:
    return grammar.generate()


@pytest.fixture(scope="module")
def corpus(splits) -> list[AlignedPair]:
    return [pair for split in splits for pair in split]


def crosses(pair: AlignedPair) -> bool:
    """Whether two sure links cross, so that the translation reorders the words."""
    return any(i < i2 and j > j2 for i, j in pair.sure for i2, j2 in pair.sure)


class TestCorpus:
    def test_sizes(self, splits):
        assert [len(split) for split in splits] == [20_000, 500, 500]

    def test_same_seed_same_corpus(self, splits):
        assert grammar.generate(sizes=(200, 20)) == (splits[0][:200], splits[0][200:220])
        assert grammar.generate(seed=1, sizes=(200,)) != (splits[0][:200],)

    def test_the_pairs_and_their_links_are_those_of_every_run(self, corpus):
        text = "\n".join(json.dumps([p.source, p.target, p.sure, p.possible], ensure_ascii=False) for p in corpus)
        known = "1ae80375681ad1502f5e3a5fae28a400b8ddfb1633dc7aa584d46f44f6f640c2"
        assert hashlib.sha256(text.encode()).hexdigest() == known

    def test_first_sentences_are_those_of_every_version_of_python(self):
        assert [detokenize(pair.target) for pair in grammar.generate(sizes=(3,))[0]] == [
            "est-ce que nous l'avons aimée ?",
            "est-ce qu'un garçon court chaque matin ?",
            "est-ce que les chèvres ont chanté ?",
        ]

    @pytest.mark.parametrize("side", SIDES)
    def test_sentences_are_unique_and_of_moderate_length_and_their_words_are_learnt(self, splits, corpus, side):
        sentences = [getattr(pair, side) for pair in corpus]
        assert len(set(sentences)) == len(corpus)
        assert sum(map(len, sentences)) / len(sentences) >= 7
        assert max(map(len, sentences)) <= grammar.MAX_LENGTH
        training, *held_out = (Counter(w for pair in split for w in getattr(pair, side)) for split in splits)
        assert len(training) >= 300
        assert min(training[word] for counts in held_out for word in counts) >= 5

    def test_english_determines_french(self):
        translations: dict[tuple[str, ...], tuple[str, ...]] = {}
        for pair in islice(grammar.sentences(2), 15_000):
            assert translations.setdefault(pair.source, pair.target) == pair.target

    @pytest.mark.parametrize("side", SIDES)
    def test_text_splits_at_spaces_and_after_apostrophes(self, corpus, side):
        for pair in corpus:
            tokens = getattr(pair, side)
            assert detokenize(tokens).replace("'", "' ").split() == list(tokens)
            assert all(token == token.lower() for token in tokens)
            assert tokens[-1] in (".", "?")
        assert not any("'" in token for pair in corpus for token in pair.source)


class TestAlignment:
    def test_every_word_is_linked_within_its_sentence(self, corpus):
        for pair in corpus:
            links = pair.sure + pair.possible
            assert len(set(links)) == len(links)
            assert {i for i, _ in links} == set(range(len(pair.source)))
            assert sorted(j for _, j in pair.sure) == list(range(len(pair.target)))  # one sure link each
            assert all(0 <= j < len(pair.target) for _, j in pair.possible)
            assert (len(pair.source) - 1, len(pair.target) - 1) in pair.sure  # the punctuation

    def test_possible_links_are_sparse_and_of_function_words(self, corpus):
        linked = {pair.source[i] for pair in corpus for i, _ in pair.possible}
        auxiliaries = {"do", "does", "am", "are", "is", "will"}
        assert linked == auxiliaries | {"to", "for", "the"}
        assert sum(len(pair.possible) for pair in corpus) < 0.1 * sum(len(pair.sure) for pair in corpus)

    def test_many_pairs_reorder(self, corpus):
        assert 0.3 <= sum(map(crosses, corpus)) / len(corpus) <= 0.6


class TestFrench:
    @pytest.mark.parametrize("pattern", MISSPELT)
    def test_spelling(self, corpus, pattern):
        assert not [text for text in (detokenize(pair.target) for pair in corpus) if re.search(rf"\b({pattern})", text)]

    def test_every_construction_occurs(self, corpus):
        texts = [(detokenize(pair.source), detokenize(pair.target)) for pair in corpus]
        for english, french in CONSTRUCTIONS:
            patterns = re.compile(rf"\b({english})"), re.compile(rf"\b({french})")
            assert any(patterns[0].search(en) and patterns[1].search(fr) for en, fr in texts), (english, french)

    @pytest.mark.parametrize(
        ("phrases", "english", "french"),
        [
            ([("the", "le"), ("man", "homme")], "the man", "l'homme"),
            ([("the", "le"), ("owl", "hibou")], "the owl", "le hibou"),
            ([("a", "un"), ("apple", "pomme")], "an apple", "un pomme"),
            ([("from", "de"), ("the", "le"), ("tree", "arbre")], "from the tree", "de l'arbre"),
            ([("from", "de"), ("the", "le"), ("market", "marché")], "from the market", "du marché"),
            ([("my", "ma"), ("school", "école")], "my school", "mon école"),
            ([("can", "peut"), ("not", "pas")], "cannot", "peut pas"),
        ],
    )
    def test_neighbours_decide_the_form(self, phrases, english, french):
        pair = spell(sum((gloss(*words) for words in phrases), Phrase()))
        assert (detokenize(pair.source), detokenize(pair.target)) == (english, french)

    def test_a_contraction_keeps_the_links_of_both_words(self):
        pair = spell(gloss("to", "à") + gloss("the", "le") + gloss("king", "roi"))
        assert pair == AlignedPair(("to", "the", "king"), ("au", "roi"), ((0, 0), (2, 1)), ((1, 0),))

    def test_a_contraction_within_one_word_links_it_once(self):
        pair = spell(gloss("some", "de le") + gloss("bread", "pain"))
        assert pair == AlignedPair(("some", "bread"), ("du", "pain"), ((0, 0), (1, 1)), ())


class TestLexicon:
    def test_every_verb_has_its_paradigm(self):
        assert all(len(verb.present) == 5 and len(set(verb.participles)) >= 3 for verb in grammar.VERBS)

    def test_every_english_noun_has_one_translation(self):
        assert len({noun.english for noun in lexicon.ALL_NOUNS}) == len(lexicon.ALL_NOUNS)

    @pytest.mark.parametrize(
        ("masculine", "forms"),
        [
            ("noir", ("noir", "noire", "noirs", "noires")),
            ("rouge", ("rouge", "rouge", "rouges", "rouges")),
            ("gris", ("gris", "grise", "gris", "grises")),
            ("heureux", ("heureux", "heureuse", "heureux", "heureuses")),
        ],
    )
    def test_regular_adjectives(self, masculine, forms):
        assert lexicon.four_forms(masculine) == forms

    def test_regular_verbs(self):
        assert lexicon.first_group("manger") == ("mange", "manges", "mange", "mangeons", "mangent", "mangé")
