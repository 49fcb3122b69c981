"""The maps of every layer and head: those that search kept, and what is made of them."""

import json

import numpy as np
import pytest

from train import translate
from train.conftest import save_untrained
from train.data.embedded import embedded_pairs
from train.data.load_corpus import load_corpus
from train.data.vocabulary import EOS
from train.translate import Translator
from train.translating.heads import alignment_errors
from train.translating.maps import AttentionMap, Maps, attention_maps, sizes
from train.translating.metrics import alignment_error_rate
from train.translating.page import page
from train.translating.scoring import evaluate
from train.translating.translation import by_words

SENTENCES = [pair.source for pair in embedded_pairs()[-9:]]
OPTIONS = """
    --model.family transformer --model.embed-size 8 --model.num-hiddens 8 --model.num-heads 2 --model.num-layers 2
    --model.encoder-layers 3 --model.alignment-layer 0 --model.alignment-head 1 --corpus.tokenizer bpe
    --corpus.vocab-size 110 --corpus.train 300 --corpus.valid 2 --corpus.test 8 --search.batch-size 4
    --search.max-len 12
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Save an untrained Transformer of pieces."""
    return save_untrained(tmp_path_factory.mktemp("maps"), OPTIONS.split())


@pytest.fixture(scope="module")
def translated(folder):
    """Return a translator of words, translations, and the maps of each hypothesis."""
    translator = Translator.load(folder, beam_size=2)
    translations = translator([*SENTENCES, ""])
    return translator, translations, attention_maps(translator, translations)


def test_the_chosen_head_is_what_search_kept(translated):
    translator, translations, maps = translated
    assert sizes(translator) == {"cross": (2, 2), "source": (3, 2), "target": (2, 2)}
    assert maps[-1] == [[]]  # an empty sentence
    for translation, of_translation in zip(translations[:-1], maps[:-1], strict=True):
        for hypothesis, (cross, source, target) in zip(translation.hypotheses, of_translation, strict=True):
            np.testing.assert_allclose(cross.matrix(head=1), hypothesis.weights, atol=1e-6)
            np.testing.assert_allclose(cross.matrix(1), cross.weights[1].mean(axis=0))
            assert [each.layer for each in (cross, source, target)] == [0, 2, 0]
            for each in (cross, source, target):
                assert each.weights.shape[2:] == (len(each.rows), len(each.columns))
                np.testing.assert_allclose(each.weights.sum(axis=-1), 1, atol=1e-5)
            assert cross.rows == target.rows == hypothesis.tokens
            assert cross.columns == source.rows == source.columns == (*translation.source, "<eos>")
            assert target.columns[0] == "<bos>"


def test_pieces_look_back_and_words_join_them(folder, translated):
    translator, _, maps = translated
    pieces = Translator.load(folder, beam_size=2, pieces=True)
    cut = 0
    for t, by_piece, by_word in zip(pieces(SENTENCES), attention_maps(pieces, pieces(SENTENCES)), maps, strict=False):
        tokens, (_, of_pieces, own) = t.hypotheses[0].ids, by_piece[0]
        assert own.columns == ("<bos>", *t.hypotheses[0].tokens[:-1])
        assert np.array_equal(own.weights > 0, np.broadcast_to(np.tri(len(tokens), dtype=bool), own.weights.shape))
        spans = translator.read(t.source_text).spans
        np.testing.assert_allclose(by_word[0][1].weights, by_words(of_pieces.weights, spans, spans), atol=1e-6)
        cut += tokens[-1] != EOS and len(by_word[0][2].rows) == len(by_word[0][2].columns) - 1
    assert cut  # the last word's first pieces were read, its last one was not


def only(maps: Maps) -> AttentionMap:
    (found,) = maps
    return found


@pytest.mark.slow
def test_an_ensemble_and_a_recurrent_model_have_one_map(folder, run):
    both = Translator.load(folder, folder)
    recurrent = Translator.load(run[0])
    assert (sizes(both), sizes(recurrent)) == ({}, {"cross": (1, 1)})
    for translator in (both, recurrent):
        translations = translator(SENTENCES[:2])
        for translation, (of_best,) in zip(translations, attention_maps(translator, translations), strict=True):
            found = only(of_best)
            assert found._replace(weights=None) == (
                "cross", translation.best.tokens, (*translation.source, "<eos>"), None, 0
            )  # fmt: skip
            np.testing.assert_allclose(found.weights, translation.weights[None, None], atol=1e-6)


@pytest.mark.slow
def test_the_error_of_the_chosen_head_is_that_of_the_run(folder):
    translator = Translator.load(folder)
    pairs = load_corpus(nmt.parse(OPTIONS.split()).config).test
    errors = alignment_errors(translator, pairs)
    assert (errors.heads.shape, errors.means.shape) == ((2, 2), (2,))
    rate = alignment_error_rate(evaluate(translator, pairs).links, [pair.alignment for pair in pairs])
    assert errors.heads[0, 1] == pytest.approx(rate)
    assert len({*errors.heads.ravel(), *errors.means}) > 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--kind source --layer 3", "--kind source and --layer 3"),
        ("--layer -1", "--layer -1"),
        ("--head 2", "--head 2"),
        ("--head 1 --ensemble {folder}", "--head 1"),
    ],
)
def test_a_pick_that_the_model_lacks_is_an_error(folder, tmp_path, capsys, options, message):
    arguments = options.format(folder=folder).split()
    assert translate.main([str(folder), "--heatmap", str(tmp_path / "a.svg"), *arguments, "the cat"]) == 2
    captured = capsys.readouterr()
    has = "cross with 2 layers of 2 heads, source with 3 layers of 2 heads, target with 2 layers of 2 heads"
    has = "nothing of an ensemble" if "--ensemble" in options else has
    expected = f"error: --kind, --layer and --head must be what one model has, counted from 0: {has}; got {message}\n"
    assert (captured.out, captured.err) == ("", expected)


def test_picks_are_drawn_and_need_a_heatmap(folder, run, tmp_path, capsys):
    path = str(tmp_path / "a.svg")
    assert translate.main([str(folder), "--heatmap", path, "--kind", "target", "--head", "0", SENTENCES[0]]) == 0
    assert "&lt;bos&gt;" in (tmp_path / "a.svg").read_text(encoding="utf-8")
    capsys.readouterr()
    assert translate.main([str(run[0]), "--heatmap", path, "--kind", "target", "a"]) == 2
    assert "has, counted from 0: cross with 1 layers of 1 heads; got --kind target" in capsys.readouterr().err
    assert translate.main([str(folder), "--layer", "0", "--kind", "cross", "a"]) == 2
    needed = "--kind needs --heatmap; --layer needs --heatmap, --alignments or --replace-unknown"
    assert capsys.readouterr().err == f"error: {needed}\n"
    assert translate.main([str(folder), "--kind", "target", "--alignments", "json", "--heatmap", path, "a"]) == 2
    assert "--kind target is no attention to the source, which --alignments" in capsys.readouterr().err


def test_alignments_are_those_of_the_head_that_is_picked(folder, capsys):
    def weights(*options):
        assert translate.main([str(folder), "--alignments", "json", *options, SENTENCES[0]]) == 0
        return json.loads(capsys.readouterr().out.split("\t")[1])["weights"]

    translator = Translator.load(folder, batch_size=1)  # as `main` does for one sentence
    (((cross, *_),),) = attention_maps(translator, [translator(SENTENCES[0])])
    for layer, head in ((0, 0), (1, 1)):
        found = weights("--layer", str(layer), "--head", str(head))
        np.testing.assert_allclose(found, cross.weights[layer, head], atol=1e-6)
    np.testing.assert_allclose(weights("--layer", "1"), cross.weights[1].mean(axis=0), atol=1e-6)
    assert np.abs(np.array(weights()) - cross.weights[1, 1]).max() > 1e-3


@pytest.mark.slow
def test_a_page_of_too_many_weights_has_fewer_sentences(folder, monkeypatch, tmp_path, capsys):
    translator = Translator.load(folder)
    maps = attention_maps(translator, translator(SENTENCES[:2]))
    of_two = sum(each.weights.size for (of_best,) in maps for each in of_best)
    for limit, count in ((of_two, 2), (of_two - 1, 1), (1, 1)):
        monkeypatch.setattr(page, "MAX_WEIGHTS", limit)
        assert translate.main([str(folder), "--page", str(tmp_path / "a.html"), *SENTENCES[:3]]) == 0
        assert f"a.html shows the first {count} sentences" in capsys.readouterr().err
        assert (tmp_path / "a.html").read_text(encoding="utf-8").count("<option value") == count
