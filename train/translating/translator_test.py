"""Words out of pieces, and the widths of the search."""

import json
import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest

from jax_attn.models import build_model
from jax_attn.settings import TransformerConfig
from jax_attn.weights import to_torch
from train import nmt
from train.data import dataset
from train.data.corpus import Corpus, Pair
from train.data.embedded import embedded_pairs
from train.data.vocabulary import UNKNOWN
from train.runs.run_folder import RunFolder
from train.setting import ConfigError
from train.translate import Translator, main
from train.translating.alignments import as_json, replace_unknown
from train.translating.scoring import evaluate, make_validation
from train.translating.translation import by_words
from train.translating.translator import load_model, widths

SENTENCES = [pair.source for pair in embedded_pairs()[-30:]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Save an untrained model of pieces, so many that sources have two widths."""
    options = "--corpus.tokenizer bpe --corpus.vocab-size 110 --corpus.train 300 --corpus.valid 2 --corpus.test 2 "
    options += "--model.num-hiddens 32 --model.embed-size 16 --search.batch-size 16 --search.max-len 30"
    config = nmt.parse(options.split()).config
    data = dataset.load(config)
    model, token = build_model(config.model, len(data.source), len(data.target)), np.zeros((1, 1), np.int32)
    saved = RunFolder.create(tmp_path_factory.mktemp("pieces") / "run", "")
    saved.save_inputs("demo", config, (data.source, data.target), data.facts())
    saved.save_weights(to_torch(jax.jit(model.init)(jax.random.key(1), token, token)))
    (saved.path / "attention.png").write_bytes(b"\x89PNG")
    return saved.path


def test_widths_are_halvings_of_the_longest():
    assert widths(63) == (16, 32, 63)
    assert widths(14) == (14,)
    assert widths(513) == (17, 33, 65, 129, 257, 513)


def test_weights_are_summed_over_source_pieces_and_averaged_over_target_pieces():
    weights = np.array([[0.1, 0.2, 0.7], [0.3, 0.4, 0.3], [0.0, 0.0, 1.0]])
    joined = by_words(weights, [range(0, 2), range(2, 3)], [range(0, 2), range(2, 3)])
    np.testing.assert_allclose(joined, [[0.5, 0.5], [0.0, 1.0]])


def test_words_and_pieces_of_the_same_translations(folder):
    by_word, by_piece = Translator.load(folder, beam_size=2), Translator.load(folder, beam_size=2, pieces=True)
    assert widths(by_word.max_source_len + 1)[:1] != (by_word.max_source_len + 1,)
    for sentence, one, other in zip(SENTENCES, by_word(SENTENCES), by_piece(SENTENCES), strict=True):
        assert one.text == other.text == " ".join(one.target)
        assert one.source == tuple(sentence.split())
        assert "".join(other.source) == "\u2581" + sentence.replace(" ", "\u2581")
        assert len(other.best.tokens) == len(one.best.ids) == len(other.weights)
        np.testing.assert_allclose(one.weights.sum(axis=1), 1, atol=1e-5)
        assert one.weights.shape == (len(one.best.tokens), len(one.source) + 1)
        np.testing.assert_array_equal(
            one.weights, by_words(other.weights, one.best.spans, by_word.read(sentence).spans)
        )
        assert json.loads(as_json(one.source, one.best))["target"] == list(one.best.tokens)
        if UNKNOWN not in one.best.ids:
            assert replace_unknown(one, by_word.target) == one


@pytest.mark.parametrize("batch_size", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_a_sentence_has_the_same_bits_in_any_batch_at_every_width(folder, batch_size):
    translator = Translator.load(folder, batch_size=batch_size)
    assert (translator.rows, translator.batch_size) == {1: (2, 1), 6: (8, 8)}[batch_size]
    limits = widths(translator.max_source_len + 1)
    assert len({sum(len(translator.read(sentence).ids) < width for width in limits) for sentence in SENTENCES}) > 1
    backwards = translator(SENTENCES[::-1])[::-1]
    for sentence, one, other in zip(SENTENCES, translator(SENTENCES), backwards, strict=True):
        alone = translator(sentence)
        for whole in (one, other):
            assert (alone.best.ids, alone.score) == (whole.best.ids, whole.score)
            assert alone.weights.tobytes() == whole.weights.tobytes()


def test_an_end_that_the_model_does_not_read_gets_no_attention_and_need_not_be_covered(folder):
    translator = Translator.load(folder, beam_size=2, coverage_penalty=1.0, length_penalty=0.0, pieces=True)
    assert translator(SENTENCES[0]).weights[:, -1].any()
    best = replace(translator, source_end=False)(SENTENCES[0]).best
    assert not best.weights[:, -1].any()
    covered = np.minimum(best.weights.sum(axis=0), 1)[:-1]
    assert best.score == pytest.approx(best.token_scores.sum() + np.log(covered).sum(), rel=1e-5)


def test_models_of_an_ensemble_read_the_same(folder):
    run = RunFolder(folder).load()
    other = replace(run, config=replace(run.config, model=TransformerConfig(source_end=False)))
    with pytest.raises(ConfigError, match=r"differ in model\.source-end: one reads <eos>"):
        Translator.from_runs([run, other], run.config.search)


def test_an_ensemble_writes_no_more_than_the_shortest_targets_of_its_trainings(folder):
    run = RunFolder(folder).load()
    other, search = replace(run, max_target_len=4), replace(run.config.search, max_len=None)
    with pytest.raises(ConfigError, match="min_len must be at most 4, the longest target in the training"):
        Translator.from_runs([run, other], replace(search, min_len=5))
    with pytest.raises(ConfigError, match=r"a prefix of .* tokens is longer than a translation, 4"):
        Translator.from_runs([run, other], search, prefix="je ne bois pas le café sucré .")


def test_unknown_characters_are_copied_as_words(folder):
    translator = Translator.load(folder)
    read = translator.read("the 龍cat sleeps .")
    assert read.names == ("the", "龍cat", "sleeps", ".")
    assert 3 in read.ids


def test_explain_follows_pieces(folder):
    translator = Translator.load(folder, beam_size=2)
    translations = translator(SENTENCES[:5])
    for translation, (steps, *_) in zip(translations, translator.explain(translations), strict=True):
        best = translation.best
        assert len(steps) == len(best.ids)
        for piece, log, step in zip(best.pieces, best.token_scores, steps, strict=True):
            assert dict(step)[piece] == pytest.approx(log, abs=1e-4)


def test_validation_gives_the_scores_of_the_evaluation_and_compiles_once(folder):
    saved = RunFolder(folder).load()
    model, params = load_model(saved)
    pairs = [Pair(p.source, p.target) for p in embedded_pairs()[-50:-30]]
    data = dataset.load(saved.config, (saved.source, saved.target))
    data = replace(data, corpus=Corpus((), tuple(pairs), ()), max_target_len=saved.config.search.max_len)
    validate = make_validation(model, data, batch_size=16)
    assert validate(params) == evaluate(Translator.load(folder), pairs).scores()
    assert "case:mixed" in validate(params).bleu_signature


def test_no_file_but_a_picture_or_a_page_is_overwritten(folder, tmp_path, capsys):
    text, linked, page = tmp_path / "in.txt", tmp_path / "in.html", tmp_path / "a.html"
    text.write_text(SENTENCES[0])
    linked.hardlink_to(text)
    other = tmp_path / "other"
    other.mkdir()
    for name in ("model.safetensors", "attention.png"):
        shutil.copy(folder / name, other)
    of_runs = (folder / "config.json", folder / "attention.png", other / "attention.png")
    kept = {path: path.read_bytes() for path in (linked, *of_runs)}
    for path in kept:
        for option in ("--page", "--heatmap") if path.suffix == ".png" else ("--page",):
            right = "is the file that is read" if path == linked else "is a file of a run"
            message = right if (path.suffix == ".html") == (option == "--page") else f"{option} must end in "
            assert main([str(folder), "--file", str(text), option, str(path), "--force"]) == 2
            assert message in capsys.readouterr().err
    page.write_text("mine")
    assert main([str(folder), "--page", str(page), SENTENCES[0]]) == 2
    assert "exists, and is no picture or page of this kind" in capsys.readouterr().err
    for _ in range(2):  # a page may be written again
        assert main([str(folder), "--page", str(page), "--pieces", SENTENCES[0], *(["--force"] if _ == 0 else [])]) == 0
    assert "\u2581" in page.read_text(encoding="utf-8")
    assert all(path.read_bytes() == content for path, content in kept.items())
