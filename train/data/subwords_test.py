import gzip
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from train.config import CorpusConfig
from train.data import subwords
from train.data.corpus import Pair
from train.data.embedded import embedded_pairs
from train.data.subwords import PieceVocabulary
from train.data.vocabularies import build_vocabularies, load_vocabularies, save_vocabularies
from train.data.vocabulary import EOS, SPECIAL, UNKNOWN
from train.setting import ConfigError

PAIRS = [Pair(pair.source.capitalize(), pair.target.capitalize()) for pair in embedded_pairs()[:1000]]
TEXTS = [pair.target for pair in PAIRS[:200]]


def build(tokenizer="unigram", **settings):
    return build_vocabularies(CorpusConfig(tokenizer=tokenizer, **{"vocab_size": 300, **settings}), PAIRS)


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def pieces(request) -> PieceVocabulary:
    return build(request.param)[1]


@pytest.fixture(scope="module")
def sampled() -> PieceVocabulary:
    return build(sampling=0.2)[1]


def test_text_goes_in_and_comes_out_with_its_case(pieces):
    assert pieces.tokens[:4] == SPECIAL
    assert len(pieces) == len(pieces.tokens) == 300
    for text, ids in zip(TEXTS, pieces.encode_all(TEXTS), strict=True):
        assert pieces.encode(text) == ids
        assert pieces.decode([*ids, EOS, 5]) == text
    assert pieces.encode("<eos> <pad>")[0] > UNKNOWN
    assert pieces.decode(pieces.encode("Le \u202f 龍 dort")) == "Le <unk> dort"
    assert pieces.encode("  ") == []
    with pytest.raises(IndexError):
        pieces.decode([300])


def test_words_are_what_spaces_separate_and_each_piece_is_in_one(pieces):
    texts = [*TEXTS, "x 龍 y", "Zzz, qu' 'a!"]
    for text, ids in zip(texts, pieces.encode_all(texts), strict=True):
        spans, cut = pieces.words([*ids, EOS]), pieces.cut(text)
        assert len(cut) == len(ids)
        assert [i for span in spans for i in span] == list(range(len(ids) + 1))
        assert [pieces.word(cut[span.start : span.stop]) for span in spans[:-1]] == text.split()


def test_any_ids_have_as_many_words_as_their_text(pieces):
    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(3, 300) for _ in range(rng.randrange(1, 8))]
        words, spans = pieces.decode(ids).split(), pieces.words([*ids, EOS])[:-1]
        assert [pieces.word([pieces.tokens[ids[i]] for i in span]) for span in spans] == (words or [""])


def test_the_same_pairs_give_the_same_bytes_and_joint_is_one_for_both():
    (source, target), again = build(), build()
    assert source is target
    assert source.to_bytes() == again[0].to_bytes()
    apart = build(joint=False)
    assert apart[0] != apart[1]
    assert apart[1].decode(apart[1].encode(TEXTS[0])) == TEXTS[0]


def test_of_too_many_pairs_every_nth_teaches_the_same_pieces_in_every_process(monkeypatch):
    monkeypatch.setattr(subwords, "MAX_SENTENCES", 600)
    pieces = build()[0]
    monkeypatch.undo()
    assert pieces == build_vocabularies(CorpusConfig(tokenizer="unigram", vocab_size=300), PAIRS[::4])[0] != build()[0]


def test_sampling_is_a_function_of_texts_and_seed(sampled):
    first = sampled.sample_all(TEXTS, 1)
    sampled.sample_all(TEXTS[:7], 5)
    assert sampled.sample_all(TEXTS, 1) == first != sampled.sample_all(TEXTS, 2)
    assert [sampled.decode(ids) for ids in first] == TEXTS
    plain = PieceVocabulary(sampled.to_bytes())
    assert plain.sample_all(TEXTS, 1) == plain.encode_all(TEXTS) != first


def test_cuts_are_drawn_with_the_probabilities_of_the_model(sampled):
    best = PieceVocabulary(sampled.to_bytes(), 1e3)
    for text in [*TEXTS[:50], "龍龍 all"]:
        assert best.sample_all([text], 0) == [sampled.encode(text)]
    word = max({word for text in TEXTS for word in text.split()}, key=len)
    found = Counter(map(tuple, sampled.sample_all([word] * 20_000, 3)))
    assert {sampled.decode(cut) for cut in found} == {word}
    weights = {cut: np.exp(0.2 * sum(sampled._pieces.get_score(i) for i in cut)) for cut in found}
    expected = {cut: weight / sum(weights.values()) for cut, weight in weights.items()}
    assert all(abs(found[cut] / 20_000 - p) < 0.02 for cut, p in expected.items())


def test_a_size_that_nobody_asked_for_is_as_large_as_the_text_allows():
    few = PAIRS[:20]
    pieces, _ = build_vocabularies(CorpusConfig(tokenizer="unigram"), few)
    assert 30 < len(pieces) < 500
    text = few[0].source
    assert pieces.decode(pieces.encode(text)) == " ".join(text.split())


def test_a_long_line_teaches_its_characters_too():
    long = " ".join(pair.source for pair in PAIRS) + " 龍"
    assert len(long) > 10_000
    pairs = [*PAIRS, Pair(long[-9_000:], "un"), Pair("one", long[-9_000:])]
    pieces, _ = build_vocabularies(CorpusConfig(tokenizer="unigram", vocab_size=300), pairs)
    assert UNKNOWN not in pieces.encode("龍")
    with pytest.raises(ConfigError, match=r"corpus\.vocab-size must be at most"):  # and not: there is no text
        build_vocabularies(CorpusConfig(tokenizer="unigram", vocab_size=9000), pairs[-1:])


def test_a_size_that_does_not_fit_the_corpus_is_an_error_with_the_one_that_would():
    with pytest.raises(ConfigError, match=r"corpus.vocab-size must be at most \d+, since .* got 9000") as error:
        build(vocab_size=9000)
    largest = int(str(error.value).split("at most ")[1].split(",")[0])
    assert len(build(vocab_size=largest)[0]) == largest
    with pytest.raises(ConfigError, match=r"corpus.vocab-size must be at least \d+, since .* got 20"):
        build(vocab_size=20)
    with pytest.raises(ConfigError, match=r"sentencepiece cannot learn"):
        build_vocabularies(CorpusConfig(tokenizer="bpe"), [])


def test_saving_and_loading(tmp_path, pieces):
    save_vocabularies(tmp_path, "bpe", pieces, pieces)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source.model", "target.model"]
    assert load_vocabularies(tmp_path, "bpe") == (pieces, pieces)
    for damaged in (b"", b"abc", pieces.to_bytes()[:500]):
        (tmp_path / "target.model").write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"target.model is damaged: "):
            load_vocabularies(tmp_path, "unigram")


def test_every_process_draws_the_same_and_nothing_is_logged(sampled):
    program = "from train.data.subwords_test import TEXTS, build; print(build(sampling=0.2)[1].sample_all(TEXTS, 7))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, cwd=Path(__file__).parents[2], text=True, check=True
    )
    assert (done.stdout, done.stderr) == (f"{sampled.sample_all(TEXTS, 7)}\n", "")


MULTI30K = Path(__file__).parents[3] / "shared" / "data" / "multi30k"


def read_lines(name: str) -> list[str]:
    return gzip.decompress((MULTI30K / name).read_bytes()).decode().splitlines()


@pytest.mark.slow
@pytest.mark.skipif(not MULTI30K.exists(), reason=f"Multi30k is not at {MULTI30K}")
def test_no_test_sentence_of_multi30k_is_changed():
    sides = [read_lines(f"train.{language}.gz") for language in ("en", "de")]
    vocabulary, _ = build_vocabularies(
        CorpusConfig(tokenizer="unigram"), [Pair(*pair) for pair in zip(*sides, strict=True)]
    )
    lines = read_lines("test_2016_flickr.de.gz")
    assert [vocabulary.decode(ids) for ids in vocabulary.encode_all(lines)] == [
        " ".join(line.split()) for line in lines
    ]
