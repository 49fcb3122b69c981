"""Import folders that are whole, and refuse those that are not, without leaving anything."""

import errno
import io
import json
import os
import pickle
import re
import subprocess
import sys
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece

from jax_attn.checkpoints import hugging_face, read_safetensors, write_safetensors
from jax_attn.checkpoints.hugging_face import BIAS, LAYER, SHARED, read_config
from jax_attn.checkpoints.marian import ALWAYS, OF_MODEL
from jax_attn.checkpoints.pretrained import name_layers, read_options
from jax_attn.models import build_model
from jax_attn.settings import TransformerConfig
from jax_attn.weights import to_torch
from train import evaluate, export_model, import_model, nmt, translate
from train.config import Config, CorpusConfig, SearchConfig
from train.data import hub
from train.data.corpus import Pair
from train.data.vocabularies import build_vocabularies
from train.data.vocabulary import BOS
from train.machine import memory
from train.runs.run_folder import RunFolder
from train.setting import ConfigError
from train.translating.translator import Translator

CONFIG = {
    "model_type": "marian", "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 12,
    "decoder_ffn_dim": 12, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "activation_function": "swish",
    "scale_embedding": True, "eos_token_id": 0, "max_position_embeddings": 16, "dropout": 0.1,
}  # fmt: skip
GENERATION = {"num_beams": 3, "max_length": 12, "forced_eos_token_id": 0, "renormalize_logits": True}


@pytest.fixture(scope="module")
def pieces():
    model, texts = io.BytesIO(), ["the cat sleeps", "a dog runs", "le chat dort", "un chien court"] * 5
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=30, hard_vocab_limit=False, minloglevel=3
    )
    return model.getvalue()


@pytest.fixture
def folder(tmp_path, pieces):
    """Write a folder with drawn weights."""
    path = tmp_path / "marian"
    path.mkdir()
    processor = sentencepiece.SentencePieceProcessor(model_proto=pieces)
    learnt = [processor.id_to_piece(i) for i in range(3, len(processor))]
    tokens = ["</s>", "<unk>", *learnt, ">>fra<<", ">>nld<<", "<pad>"]
    pad = len(tokens) - 1
    config = CONFIG | {"vocab_size": len(tokens), "pad_token_id": pad, "decoder_start_token_id": pad}
    write(path / "config.json", config)
    write(path / "generation_config.json", GENERATION | {"bad_words_ids": [[3], [pad]]})
    write(path / "vocab.json", {token: i for i, token in enumerate(tokens)})
    for side in ("source", "target"):
        (path / f"{side}.spm").write_bytes(pieces)
    write_safetensors(path / "model.safetensors", draw(config))
    return path


def write(path, content):
    path.write_text(json.dumps(content), encoding="utf-8")


def change(path, **changes):
    write(path, json.loads(path.read_text(encoding="utf-8")) | changes)


def draw(config):
    """Draw the weights of a model, by the names of a file."""
    rng, width, inner = np.random.default_rng(0), config["d_model"], config["encoder_ffn_dim"]
    found = {}
    for theirs in (
        *name_layers(read_config(read_options(config, OF_MODEL, "config.json"), ALWAYS), LAYER).values(),
        SHARED,
        BIAS,
    ):
        sizes = {"fc1": (inner, width), "fc2": (width, inner), "shared": (config["vocab_size"], width)}
        matrix = next((size for part, size in sizes.items() if part in theirs), (width, width))
        shape = matrix if theirs.endswith("weight") and "norm" not in theirs else matrix[:1]
        shape = (1, config["vocab_size"]) if theirs == "final_logits_bias" else shape
        name = theirs if theirs == "final_logits_bias" else f"model.{theirs}"
        found[name] = rng.normal(size=shape).astype(np.float16)
    return found


def run_import(folder, out, *options):
    return import_model.main([str(folder), "--out", str(out), "--no-moses", *options])


def test_a_run_has_the_model_the_search_and_the_origin(folder, tmp_path):
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: cc-by-4.0\n---\n", encoding="utf-8")
    assert run_import(folder, tmp_path / "run") == 0
    saved = RunFolder(tmp_path / "run").load()
    search = saved.config.search
    assert (search.beam_size, search.max_len, search.stop, search.force_end) == (3, 11, "likely", True)
    never = [saved.target.side.tokens[saved.target.order[i]] for i in saved.model.never]
    assert sorted(never) == sorted(["<pad>", saved.target.side.tokens[3]])
    assert saved.config.training.learning_rate < 1e-4
    assert saved.model.dropout == 0.1
    origin = json.loads((tmp_path / "run" / "origin.json").read_text(encoding="utf-8"))
    assert origin == {"source": str(folder), "licence": "cc-by-4.0"}


def test_the_run_translates_and_says_what_it_cannot_read(folder, tmp_path, capsys):
    run_import(folder, tmp_path / "run")
    assert translate.main([str(tmp_path / "run"), ">>fra<< the cat sleeps", "日本", "--nbest", "2"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.strip("\n").split("\n")) == 2 + 4  # the import's lines, too
    assert "the model does not know 日本" in captured.err
    assert translate.main([str(tmp_path / "run"), ">>deu<< the cat", ">>eng<< a dog", "the cat"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 3  # one odd line does not end a text
    assert captured.err == (
        "warning: the model knows no language >>deu<<, and reads <unk>; it knows >>fra<<, >>nld<<\n"
        "warning: the model does not know >>deu<<, >>eng<<: it reads <unk>, and guesses the rest\n"
    )
    assert translate.main([str(tmp_path / "run"), "cat " * 20]) == 2
    assert "the model reads 15: split it into sentences" in capsys.readouterr().err


def test_only_a_language_is_read_as_one(folder, tmp_path):
    run_import(folder, tmp_path / "run")
    source = RunFolder(tmp_path / "run").load().source
    assert source.cut(">>fra<< the cat")[0] == source.cut(" >>fra<< the cat")[0] == ">>fra<<"
    assert "".join(source.cut(">> said he << no.")).startswith("\u2581>>")  # and no end of the file that it stands in


def test_an_imported_run_says_what_it_does_not_have(folder, tmp_path, capsys):
    run, name = tmp_path / "run", str(tmp_path / "run")
    run_import(folder, run)
    with pytest.warns(UserWarning, match="it reads <unk>, and guesses the rest$"):
        translate.warn_of_unknown(Counter("x"), run)
    assert nmt.main(["--resume", name]) == 2
    assert evaluate.main([name]) == 2
    errors = capsys.readouterr().err
    assert f"{name} was imported, and has no training to resume; begin one: --init {name} --data FILE" in errors
    assert f"{name} was imported, and has no test set of its own; name one with --data" in errors


def test_the_folder_that_another_makes_meanwhile_is_left(folder, tmp_path, capsys, monkeypatch):
    run_import(folder, tmp_path / "run")
    out, write_weights = tmp_path / "out", hugging_face.write_safetensors

    def make_meanwhile(path, tensors):
        out.mkdir()
        (out / "theirs").write_text("kept", encoding="utf-8")
        write_weights(path, tensors)

    monkeypatch.setattr(hugging_face, "write_safetensors", make_meanwhile)
    assert export_model.main([str(tmp_path / "run"), "--out", str(out)]) == 1
    assert "out cannot be written: File exists" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["theirs"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["marian", "out", "run"]


def test_a_full_disk_is_a_line_that_says_so_and_leaves_nothing(folder, tmp_path, capsys, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "config.json")

    run_import(folder, tmp_path / "run")
    monkeypatch.setattr(RunFolder, "save_config", fail)
    assert run_import(folder, tmp_path / "other") == 1
    assert capsys.readouterr().err == "error: config.json cannot be written: No space left on device\n"
    monkeypatch.setattr(hugging_face, "write_safetensors", fail)
    assert export_model.main([str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'out'} cannot be written: No space left on device\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["marian", "run"]


def test_the_sentences_of_a_line_are_translated_for_themselves(folder, tmp_path, capsys):
    run_import(folder, tmp_path / "run")
    texts, long = [">>fra<< The cat sleeps.", ">>fra<< A dog runs!"], ">>fra<< The cat sleeps. A dog runs!"
    lines = {"parts": texts, "joined": [long, "", "cat " * 20 + "."]}
    for name, given in lines.items():
        (tmp_path / name).write_text("\n".join(given) + "\n", encoding="utf-8")
    columns = {}
    for name, status in {"parts": 0, "joined": 2}.items():
        command = [str(tmp_path / "run"), "--file", str(tmp_path / name), "--scores", "--split", "--batch", "2"]
        capsys.readouterr()
        assert translate.main(command) == status
        captured = capsys.readouterr()
        columns[name] = [line.split("\t") for line in captured.out.splitlines()]
    assert "sentence 3 has" in captured.err
    assert columns["joined"][1][1] == ""
    assert columns["joined"][0][1] == " ".join(text for _, text in columns["parts"]).strip()
    assert float(columns["joined"][0][0]) == pytest.approx(sum(float(score) for score, _ in columns["parts"]), abs=2e-3)


def test_a_model_larger_than_the_memory_is_not_read(folder, tmp_path, capsys, monkeypatch):
    size = (folder / "model.safetensors").stat().st_size
    monkeypatch.setattr(memory, "total", lambda: 2 * size - 1)
    assert run_import(folder, tmp_path / "run") == 2
    assert (
        "cannot be imported: it needs at least 0.0 GB of memory, and this machine has 0.0 GB" in capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(memory, "total", lambda: 2 * size)
    assert run_import(folder, tmp_path / "run") == 0


def test_an_exported_run_is_the_folder_that_was_imported(folder, tmp_path):
    run_import(folder, tmp_path / "run")
    assert export_model.main([str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    before, after = (read_safetensors(path / "model.safetensors") for path in (folder, tmp_path / "out"))
    assert set(before) == set(after)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array, err_msg=name)
    for name in ("config.json", "generation_config.json", "vocab.json"):
        old, new = (json.loads((path / name).read_text(encoding="utf-8")) for path in (folder, tmp_path / "out"))
        assert {key: new[key] for key in old} == old
    assert (tmp_path / "out" / "source.spm").read_bytes() == (folder / "source.spm").read_bytes()
    run_import(tmp_path / "out", tmp_path / "again")
    saved, again = (RunFolder(tmp_path / name).load() for name in ("run", "again"))
    assert (saved.config, saved.source, saved.target) == (again.config, again.source, again.target)


@pytest.mark.parametrize("ties", ["all", pytest.param("output", marks=pytest.mark.slow)])
def test_a_run_of_subwords_is_exported_and_translates_the_same(tmp_path, pairs, ties):
    run = subword_run(tmp_path / "own", pairs, positions="halves", tie_embeddings=ties)
    assert export_model.main([str(run.path), "--out", str(tmp_path / "marian")]) == 0
    assert run_import(tmp_path / "marian", tmp_path / "again") == 0
    sentences = ["the cat runs", "a dog sleeps", "a bird"]  # with a letter that the model lacks
    generation = json.loads((tmp_path / "marian" / "generation_config.json").read_text(encoding="utf-8"))
    assert generation["bad_words_ids"] == [[BOS]]
    own, again = (Translator.load(tmp_path / name, batch_size=4)(sentences) for name in ("own", "again"))
    assert any("<unk>" in translation.text or translation.unknown for translation in own)
    for one, other in zip(own, again, strict=True):
        assert [(each.ids, each.text, each.score) for each in one.hypotheses] == [
            (each.ids, each.text, each.score) for each in other.hypotheses
        ]


@pytest.fixture(scope="module")
def pairs():
    return [Pair(*pair) for pair in [("the cat sleeps", "le chat dort"), ("a dog runs", "un chien court")] * 5]


def subword_run(path, pairs, **settings):
    """Write a run as `train.nmt` does, with drawn weights."""
    corpus = CorpusConfig(tokenizer="unigram", vocab_size=27)
    sizes = {"embed_size": 8, "num_hiddens": 12, "num_layers": 1, "num_heads": 2, "never": (BOS,)}
    config = Config(
        corpus=corpus, model=TransformerConfig(**sizes | settings), search=SearchConfig(beam_size=2, stop="likely")
    )
    vocabularies = build_vocabularies(corpus, pairs)
    model = build_model(config.model, *map(len, vocabularies))
    token = jnp.zeros((1, 1), jnp.int32)
    run = RunFolder.create(path, "own")
    run.save_inputs("own", config, vocabularies, {"max_source_len": 11, "max_target_len": 12, "data_sha256": ""})
    run.save_weights(to_torch(jax.jit(model.init)(jax.random.key(0), token, token)))
    return run


def test_a_run_that_marian_cannot_have_is_not_exported(run, folder, pairs, tmp_path, capsys):
    run_import(folder, tmp_path / "run")
    subword_run(tmp_path / "book", pairs, norm="pre")
    changed = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    changed["model"]["norm_epsilon"] = 1e-6
    for source, message in (
        (run[0], "cannot be exported: Marian has no model with model.family recurrent"),
        (tmp_path / "book", "Marian has no model with norm pre, positions interleaved"),
        (tmp_path / "run", "cannot be exported: Marian has no model with norm_epsilon 1e-06"),
    ):
        if source == tmp_path / "run":
            saved = RunFolder(source)
            saved._replace("config.json", lambda beside: write(beside, changed))
        assert export_model.main([str(source), "--out", str(tmp_path / "out")]) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    assert export_model.main([str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 2
    assert "out exists already" in capsys.readouterr().err


@pytest.mark.slow  # five searches are compiled
def test_an_imported_run_can_do_what_others_can(folder, tmp_path, capsys):
    run_import(folder, tmp_path / "run")
    change(folder / "config.json", dropout=0.0)
    run_import(folder, tmp_path / "other")
    one, other, text = str(tmp_path / "run"), str(tmp_path / "other"), "the cat sleeps"
    page, picture = tmp_path / "page.html", tmp_path / "map.png"
    capsys.readouterr()

    def lines(*options):
        assert translate.main([one, *options]) == 0
        return capsys.readouterr().out.splitlines()

    assert lines(text, "--page", str(page), "--compare", one)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"))[1])
    for side in data:
        assert len(side["sentences"][0]["hypotheses"][0]["maps"]) == 3
    assert data[1]["sentences"][0]["against"].endswith("attention weights by at most 0.0e+00")
    for kind in ("cross", "source", "target"):
        picture.unlink(missing_ok=True)
        assert lines(text, "--heatmap", str(picture), "--kind", kind, "--layer", "0", "--head", "1")
        assert picture.stat().st_size > 1000
    assert len(lines(text, "--nbest", "3")) == 3
    assert lines(text, "--ensemble", other) == lines(text)
    assert lines(text, "--sample", "--seed", "3") == lines(text, "--sample", "--seed", "3")
    assert lines(text, "--min-len", "5", "--no-repeat-ngram", "1")
    command = [sys.executable, "-m", "train.translate", one, text, "a dog runs", "--mesh", "data=2"]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == lines(text, "a dog runs"), done.stderr
    pairs = tmp_path / "pairs.txt"
    forbidden = RunFolder(one).load().target.side.tokens[3]
    pairs.write_text(f"the cat sleeps\t{forbidden} le chat\na dog runs\tun chien\n", encoding="utf-8")
    assert evaluate.main([one, "--data", str(pairs), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["nats_per_token"] is not None
    assert evaluate.main([one, "--data", str(pairs), "--compare", other]) == 0


def without(name):
    return lambda folder: (folder / name).unlink()


def cut(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-9])


def changed(**changes):
    return lambda folder: change(folder / "config.json", **changes)


def generating(**changes):
    return lambda folder: change(folder / "generation_config.json", **changes)


def of_a_vocabulary(folder):
    tokens = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    write(folder / "vocab.json", tokens | {"more": len(tokens)})


def with_tensors(change):
    def damage(folder):
        tensors = read_safetensors(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        write_safetensors(folder / "model.safetensors", tensors | change(tensors))

    return damage


def cut_pickle(folder):
    import torch

    tensors = read_safetensors(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({name: torch.from_numpy(array) for name, array in tensors.items()}, folder / "pytorch_model.bin")
    assert run_import(folder, folder.parent / "whole") == 0
    cut("pytorch_model.bin")(folder)


def integer_keys(folder):
    torch = pytest.importorskip("torch")
    (folder / "model.safetensors").unlink()
    torch.save({1: torch.ones(2)}, folder / "pytorch_model.bin")


def hostile(folder):
    pytest.importorskip("torch")  # only PyTorch reads pickles

    class Hostile:
        def __reduce__(self):
            return (open, (str(folder / "executed"), "w"))

    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Hostile()}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without("config.json"), "is no folder of a translator; supported are Marian's, M2M100's and NLLB's models"),
        (without("source.spm"), "has no source.spm"),
        (without("model.safetensors"), "has no model.safetensors and no pytorch_model.bin"),
        (cut("model.safetensors"), "is damaged or cut short"),
        (cut("vocab.json"), "vocab.json is damaged or cut short"),
        (cut("source.spm"), "it holds no model of sentencepiece"),
        (
            changed(model_type="bart"),
            "holds 'bart', which is not supported; supported are Marian's, M2M100's and NLLB's models",
        ),
        (changed(model_type="t5"), "holds 't5', which is not supported"),
        (changed(model_type="mbart"), "holds 'mbart', which is not supported"),
        (with_tensors(lambda tensors: {BIAS: tensors[BIAS][:, :-1]}), "must be"),
        (with_tensors(lambda tensors: {"lm_head.weight": tensors[f"model.{SHARED}"] + 1}), "differ in the weights"),
        (with_tensors(lambda tensors: {BIAS: tensors[BIAS] * np.nan}), "decoder.dense_bias must hold finite numbers"),
        (with_tensors(lambda tensors: {"more": tensors[BIAS]}), "do not fit the configuration; unknown: more"),
        (changed(d_model=10), "must be"),
        (changed(encoder_layers=2), "missing: encoder.layers.1"),
        (changed(decoder_layers=64), "encoder_attn.out_proj.bias and 1635 more"),
        (changed(decoder_layers=65_536), "decoder_layers of config.json must be a whole number in [1, 64]; got 65536"),
        (changed(num_hidden_layers=2), "encoder_layers and num_hidden_layers of config.json must be the same"),
        (changed(architectures=["MarianForCausalLM"]), 'must be ["MarianMTModel"], since no other value is supported'),
        (changed(is_encoder_decoder=False), "is_encoder_decoder of config.json must be true"),
        (changed(quantization_config={"bits": 8}), "quantization_config of config.json must be null"),
        (changed(vocab_size=99), "vocab_size must be 28, the tokens of the source; got 99"),
        (changed(max_position_embeddings=0), "max_position_embeddings of config.json must be a whole number in [2, "),
        (changed(dropout=1.0), "dropout must be in [0, 1); got 1.0"),
        (generating(do_sample=True), "do_sample of generation_config.json must be false"),
        (generating(num_beams=20_000), "num_beams of generation_config.json must be a whole number in [1, 10000]"),
        (generating(num_beams=29), "num_beams must be at most 28, the tokens of the target; got 29"),
        (generating(min_length=50), "search.min-len must be at most 11, the most tokens; got 50"),
        (generating(eos_token_id=[0, 5]), "eos_token_id must be 0, the id of </s>; got [0, 5]"),
        (generating(forced_eos_token_id=5), "forced_eos_token_id must be 0, the id of </s>; got 5"),
        (generating(decoder_start_token_id=5), "decoder_start_token_id must be 27, the id of <pad>; got 5"),
        (lambda folder: (folder / "source.spm").write_bytes(b""), "source.spm is empty"),
        (lambda folder: (folder / "vocab.json").write_text("[" * 100_000), "vocab.json is damaged or cut short"),
        (
            with_tensors(lambda tensors: {f"model.{SHARED}": np.float32(1)}),
            "the embeddings of the source must be [N, D]",
        ),
        (integer_keys, "damaged, cut short or holds more than weights"),
        (changed(encoder_ffn_dim=13), "encoder_ffn_dim and decoder_ffn_dim"),
        (changed(activation_function="tanh"), 'activation_function of config.json must be "relu" or "gelu" or "swish"'),
        (changed(encoder_attention_heads=3, decoder_attention_heads=3), "must be a multiple of num_heads"),
        (changed(decoder_start_token_id=7), "decoder_start_token_id must be 27, the id of <pad>; got 7"),
        (changed(bad_words_ids=[[1, 2]]), None),
        (of_a_vocabulary, "tokens, and the weights have"),
        (cut_pickle, "damaged, cut short or holds more than weights"),
        (hostile, "damaged, cut short or holds more than weights"),
    ],
)
def test_a_bad_folder_is_an_error_that_leaves_nothing(folder, tmp_path, capsys, damage, message):
    damage(folder)
    status = run_import(folder, tmp_path / "run")
    error = capsys.readouterr().err
    if message is None:
        assert status == 0  # generation_config.json goes before it
        return
    assert status == 2
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message in error
    assert not (tmp_path / "run").exists()
    assert not (folder / "executed").exists()


@pytest.mark.slow  # a training is compiled
def test_one_command_goes_on_training(folder, tmp_path):
    (folder / "generation_config.json").unlink()
    run_import(folder, tmp_path / "run")
    pairs = tmp_path / "pairs.txt"
    lines = [f"the cat sleeps {i}\tle chat dort {i}\n" for i in "abcdefghijklmnopqrstuvwxyz"]
    pairs.write_text("".join(lines), encoding="utf-8")
    command = ["--init", str(tmp_path / "run"), "--data", str(pairs), "--out", str(tmp_path / "tuned"), "--epochs", "2"]
    assert nmt.main(command) == 0
    before, after = (RunFolder(tmp_path / name).load() for name in ("run", "tuned"))
    assert (after.model, after.source, after.target) == (before.model, before.source, before.target)
    assert after.config.search == before.config.search
    assert all((after.weights[name] != before.weights[name]).any() for name in before.weights)
    assert max(abs(after.weights[name] - before.weights[name]).max() for name in before.weights) < 0.01
    assert after.max_source_len == before.max_source_len  # and not the longest of these pairs
    assert export_model.main([str(tmp_path / "tuned"), "--out", str(tmp_path / "out")]) == 0
    assert run_import(tmp_path / "out", tmp_path / "again") == 0
    again = RunFolder(tmp_path / "again").load()
    assert all((after.weights[name] == again.weights[name]).all() for name in before.weights)


@pytest.mark.slow  # a training is compiled
def test_a_test_sentence_that_is_too_long_for_the_model_does_not_end_a_training(folder, tmp_path, capsys):
    (folder / "generation_config.json").unlink()
    run_import(folder, tmp_path / "run")
    pairs, test = tmp_path / "pairs.txt", tmp_path / "test.txt"
    pairs.write_text("".join(f"the cat {i}\tle chat {i}\n" for i in "abcdefghijklmnop"), encoding="utf-8")
    test.write_text(f"the cat\tle chat\n{'cat ' * 20}\tle chat\n", encoding="utf-8")
    command = ["--init", str(tmp_path / "run"), "--data", str(pairs), "--test", str(test), "--valid", str(test)]
    assert nmt.main([*command, "--training.best", "bleu", "--epochs", "1", "--out", str(tmp_path / "tuned")]) == 0
    assert json.loads((tmp_path / "tuned" / "summary.json").read_text())["test_pairs"] == 2
    warning = "warning: sentence 2 has 60 pieces and is translated in part: the model reads 15\n"
    assert warning in capsys.readouterr().err
    assert evaluate.main([str(tmp_path / "run"), "--data", str(test)]) == 0
    assert warning in capsys.readouterr().err


def test_a_cut_file_of_ctranslate2_is_an_error_wherever_it_is_cut(tmp_path, capsys):
    path = tmp_path / "folder"
    path.mkdir()
    whole = (
        b"\x06\0\0\0"
        + b"\x10\0TransformerSpec\0"
        + b"\x07\0\0\0"
        + b"\x01\0\0\0"
        + b"\x02\0a\0\x01\x02\0\0\0\0\x08\0\0\0"
    )
    for size in range(len(whole) + 1):
        (path / "model.bin").write_bytes(whole[:size])
        assert run_import(path, tmp_path / "run") == 2
        assert "is cut short or damaged" in capsys.readouterr().err
    (path / "model.bin").write_bytes(b"\x01" + whole[1:])
    assert run_import(path, tmp_path / "run") == 2
    assert "has the version 1, and 2 to 6 are read" in capsys.readouterr().err


def test_a_name_that_cannot_be_downloaded_is_an_error_that_says_what_to_fetch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        ConfigError, match=r"pip install 'jax-attn\[pretrained\]'; or fetch config.json, .*source.spm.* into a fold"
    ):
        hub.download("Helsinki-NLP/opus-mt-en-fr")
    with pytest.raises(ConfigError, match=r"^there is no folder nowhere, and a name on the hub is OWNER/MODEL$"):
        hub.download("nowhere")
