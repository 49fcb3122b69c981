"""The programs with an imported model of several languages."""

import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece

from jax_attn.checkpoints import Pretrained, m2m100, read_folder, read_safetensors
from jax_attn.checkpoints.pretrained import Language
from jax_attn.checkpoints.weight_files import write_safetensors
from jax_attn.models import build_model
from jax_attn.settings import TransformerConfig
from jax_attn.weights import to_torch
from train import evaluate, export_model, import_model, nmt, translate
from train.translating.maps import attention_maps
from train.translating.translator import Translator

TEXT = ["the cat sleeps", "the dog runs", "le chat dort", "le chien court", "die katze schläft", "der hund rennt"] * 5
CODES = ["deu_Latn", "eng_Latn", "fra_Latn"]
SEARCH = {"beam_size": 2, "length_penalty": 1.0, "stop": "likely", "min_len": 0, "max_len": 12, "force_end": False}
LANGUAGES = ["--source-language", "eng_Latn", "--target-language", "fra_Latn"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in NLLB's form, with drawn weights."""
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=file, vocab_size=60, model_type="bpe", minloglevel=3, num_threads=1
    )
    known = sentencepiece.SentencePieceProcessor(model_proto=file.getvalue())
    names = [known.id_to_piece(i) for i in range(3, len(known))]
    tokens = [*m2m100.SPECIAL, *names, *CODES, "<mask>", "madeupword0"]
    side = Language(tokens, (0, 2, 3), file.getvalue(), languages=CODES)
    settings = TransformerConfig(
        embed_size=8, num_hiddens=12, num_layers=1, encoder_layers=1, num_heads=2, tie_embeddings="all", start_token=2,
        **m2m100.ALWAYS,
    )  # fmt: skip
    ids = jnp.zeros((1, 1), jnp.int32)
    model = build_model(settings, len(tokens), len(tokens))
    weights = to_torch(jax.jit(model.init)(jax.random.key(0), ids, ids))
    search = SEARCH | {"no_repeat_ngram": None, "renormalize": False}
    path = tmp_path_factory.mktemp("hub") / "nllb"
    m2m100.write(Pretrained(settings, weights, side, side, 16, search), path)
    (path / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "nllb"
    assert import_model.main([str(folder), "--out", str(path)]) == 0
    return path


def test_the_import_says_the_licence_and_asks_for_languages(folder, tmp_path, capsys):
    assert import_model.main([str(folder), "--out", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "licence: cc-by-nc-4.0",
        f"{tmp_path / 'run'}: translate with `python -m train.translate {tmp_path / 'run'} --source-language CODE "
        "--target-language CODE`",
    ]


def test_a_language_that_is_missing_or_unknown_is_one_line(run, capsys):
    assert translate.main([str(run), "the cat"]) == 2
    assert "the model knows 3 languages, deu_Latn, eng_Latn, fra_Latn … fra_Latn; choose two with" in (
        capsys.readouterr().err
    )
    assert translate.main([str(run), *LANGUAGES[:3], "fro_Latn", "the cat"]) == 2
    assert capsys.readouterr().err.startswith("error: the model knows no language fro_Latn; near it are fra_Latn, ")
    assert translate.main([str(run), *LANGUAGES, ">>xyz<< the cat"]) == 2
    assert "the model knows no language xyz" in capsys.readouterr().err


def test_each_side_begins_with_its_language_which_is_not_shown(run):
    translator = Translator.load(run, source_language="eng_Latn", target_language="fra_Latn")
    tokens, order = translator.source.side.tokens, translator.source.order
    source = translator.read("the cat sleeps")
    assert [tokens[order[i]] for i in [*source.before, *source.language]] == ["eng_Latn", "fra_Latn"]
    found = translator("the cat sleeps")
    assert found.source == ("the", "cat", "sleeps")
    assert "Latn" not in found.text
    assert found.weights.shape == (len(found.best.tokens), 4)
    ((cross, own, past),) = attention_maps(translator, [found])[0][:1]
    assert cross.columns == own.columns == ("the", "cat", "sleeps", "<eos>")
    assert len(past.columns) == past.weights.shape[-1]
    steps = translator.explain([found])[0][0]
    best = [dict(step)[piece] for step, piece in zip(steps, found.best.pieces, strict=True) if piece in dict(step)]
    assert len(best) == len(found.best.pieces)
    np.testing.assert_allclose(best, found.best.token_scores, atol=1e-5)


def test_a_line_may_name_its_own_languages_and_sentences_of_it_keep_them(run, capsys):
    lines = ["der hund rennt. Die katze rennt.", "the dog runs"]
    assert translate.main([str(run), "--source-language", "deu_Latn", "--target-language", "eng_Latn", lines[0]]) == 0
    expected = capsys.readouterr().out
    assert translate.main([str(run), *LANGUAGES, f"deu_Latn>>eng_Latn<< {lines[0]}", lines[1]]) == 0
    assert capsys.readouterr().out.splitlines()[0] == expected.strip()
    assert translate.main([str(run), *LANGUAGES, "--split", f"deu_Latn>>eng_Latn<<{lines[0]}"]) == 0
    split = capsys.readouterr().out
    translator = Translator.load(run, source_language="deu_Latn", target_language="eng_Latn")
    parts = [translator(part).text for part in ("der hund rennt.", "Die katze rennt.")]
    assert split.strip() == " ".join(filter(None, parts))


def test_every_translation_begins_with_the_prefix(run, capsys):
    assert translate.main([str(run), *LANGUAGES, "--prefix", "le chat", "--nbest", "2", "the cat"]) == 0
    assert all(line.split("\t")[1].startswith("le chat") for line in capsys.readouterr().out.splitlines())
    assert translate.main([str(run), *LANGUAGES, "--prefix", "le chat " * 9, "the cat"]) == 2
    assert "is longer than a translation" in capsys.readouterr().err
    assert translate.main([str(run), *LANGUAGES, "--prefix", "日", "the cat"]) == 2
    assert "has tokens that" in capsys.readouterr().err


def test_it_is_scored_trained_on_and_written_back(run, folder, tmp_path, capsys):
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("".join(f"{a}\t{b}\n" for a, b in zip(TEXT[:2] * 9, TEXT[2:4] * 9, strict=True)), encoding="utf-8")
    assert evaluate.main([str(run), "--data", str(pairs), *LANGUAGES, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pairs"] == 18
    arguments = ["--init", str(run), "--data", str(pairs), "--out", str(tmp_path / "more"), "--epochs", "1"]
    arguments += ["--corpus.valid", "0", "--corpus.test", "0", "--training.best", "last"]
    assert nmt.main([*arguments]) == 2
    assert "choose two with" in capsys.readouterr().err
    languages = ["--corpus.source-language", "eng_Latn", "--corpus.target-language", "fra_Latn"]
    assert nmt.main([*arguments, *languages]) == 0
    assert translate.main([str(tmp_path / "more"), "the cat"]) == 0  # in the languages of the training
    capsys.readouterr()
    assert export_model.main([str(run), "--out", str(tmp_path / "back")]) == 0
    before, after = (read_safetensors(path / "model.safetensors") for path in (folder, tmp_path / "back"))
    assert all(np.array_equal(before[name], after[name]) for name in {*before, *after})
    assert read_folder(folder).source == read_folder(tmp_path / "back").source


def test_weights_may_stand_in_several_files(folder, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        if path.name != "model.safetensors":
            (copy / path.name).write_bytes(path.read_bytes())
    tensors = read_safetensors(folder / "model.safetensors")
    files = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(tensors)}
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}), encoding="utf-8")
    for file in set(files.values()):
        write_safetensors(copy / file, {name: tensors[name] for name in files if files[name] == file})
    found, expected = read_folder(copy).weights, read_folder(folder).weights
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    (copy / file).unlink()
    with pytest.raises(ValueError, match=r"has no model-0000\d-of-00002.safetensors, which .* lists"):
        read_folder(copy)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("sentencepiece.bpe.model", None, "has no sentencepiece.bpe.model; tokenizer.json alone is not read"),
        ("sentencepiece.bpe.model", b"x", "sentencepiece.bpe.model is damaged or cut short"),
        ("tokenizer_config.json", b"{}", "names no languages"),
        ("config.json", b'{"model_type": "mbart"}', "holds 'mbart', which is not supported"),
    ],
)
def test_a_folder_that_cannot_be_read_is_one_line(folder, tmp_path, capsys, file, content, message):
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "special_tokens_map.json").unlink()
    (copy / file).unlink()
    if content is not None:
        (copy / file).write_bytes(content)
    assert import_model.main([str(copy), "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
