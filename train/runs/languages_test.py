"""M2M100's and NLLB's models give what transformers and CTranslate2 give: logits, gradients, ids, tokens and scores."""

import io
import json

import numpy as np
import pytest
import sentencepiece

from jax_attn.checkpoints import read_folder
from train import export_model
from train.runs.conftest import Special, count_early, draw_batch, require_same_gradients
from train.runs.importing import import_pretrained
from train.translating.translator import Translator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of transformers and of the libraries that it imports
]

SIZES = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 64, "init_std": 0.3,
}  # fmt: skip
CONFIGURATIONS = {
    "NLLB": {},
    "M2M100": {"kind": "M2M100"},
    "two layers": {"encoder_layers": 2, "decoder_layers": 2},
    "other numbers of layers": {"encoder_layers": 3, "decoder_layers": 1},
    "four heads": {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "d_model": 12},
    "silu": {"activation_function": "swish"},
    "no scale": {"scale_embedding": False},
    "untied output": {"tie_word_embeddings": False},
    "float16": {"dtype": "float16"},
}
"""Small models; weights are drawn wide, so that tokens differ in probability."""
OF_M2M100 = """
af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy id
ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si
sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu
"""
LANGUAGES = {
    "NLLB": ["ace_Arab", "deu_Latn", "eng_Latn", "fra_Latn", "zul_Latn"],
    "M2M100": [f"__{code}__" for code in OF_M2M100.split()],
}
"""The tokens by which each kind of model names its languages; those of M2M100 stand in its tokenizer."""
SPECIAL = Special(start=2, end=2, pad=1)
SEARCHES = {
    "greedy": {"num_beams": 1},
    "likely": {},
    "first": {"early_stopping": True},
    "never": {"early_stopping": "never"},
    "sums": {"length_penalty": 0.0},
    "constrained": {"no_repeat_ngram_size": 2, "min_length": 6, "bad_words_ids": [[5], [7], [9]]},
    "constrained, renormalised": {"no_repeat_ngram_size": 3, "min_length": 6, "renormalize_logits": True},
    "the end is forced": {"forced_eos_token_id": 2},
}


@pytest.fixture(scope="session")
def pieces(texts):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts[0] + texts[1]), model_writer=model, vocab_size=120, model_type="bpe",
        minloglevel=3, num_threads=1,
    )  # fmt: skip
    return model.getvalue()


def make_folder(folder, pieces, kind="NLLB", dtype="float32", generation=None, end=2.0, **changes):
    """Write a folder as the hub has it, of a model with drawn weights; return that model in float64."""
    import torch

    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    folder.mkdir()
    (folder / "sentencepiece.bpe.model").write_bytes(pieces)
    known = sentencepiece.SentencePieceProcessor(model_proto=pieces)
    names = ["<s>", "<pad>", "</s>", "<unk>", *(known.id_to_piece(i) for i in range(3, len(known)))]
    named = {"additional_special_tokens": LANGUAGES[kind]}
    tokenizer = {"NLLB": "NllbTokenizer", "M2M100": "M2M100Tokenizer"}[kind]
    if kind == "M2M100":
        (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}), encoding="utf-8")
    (folder / "special_tokens_map.json").write_text(json.dumps(named), encoding="utf-8")
    described = {"tokenizer_class": tokenizer} | named
    if kind == "NLLB":  # as on the hub; without it transformers puts <mask> first
        ids = dict(enumerate(names[:4])) | dict(enumerate([*LANGUAGES[kind], "<mask>"], len(names)))
        described["added_tokens_decoder"] = {i: {"content": token, "special": True} for i, token in ids.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")
    size = len(names) + len(LANGUAGES[kind]) + {"NLLB": 3, "M2M100": 8}[kind]  # <mask> of NLLB, rows that are not used
    config = transformers.M2M100Config(**SIZES | changes, vocab_size=size)
    torch.manual_seed(1)
    model = transformers.M2M100ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # biases and norms, which begin as zeros and ones
                parameter.add_(torch.randn_like(parameter) * 0.3)
            elif len(parameter) == size:
                parameter[1] = torch.randn(parameter.shape[1]) * 0.3  # <pad>, which is a token as any other
                parameter[2] *= end  # </s>: some sentences end soon
    model.to(getattr(torch, dtype))
    usual = {"max_length": 24, "num_beams": 4, "eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": 2}
    model.generation_config = transformers.GenerationConfig(**usual | {"bos_token_id": 0} | (generation or {}))
    model.save_pretrained(folder)
    model = model.double()
    for part in (model.model.encoder, model.model.decoder):  # positions that were not rounded to float32
        length, size = part.embed_positions.weights.shape
        angles = torch.arange(length)[:, None] * 10000.0 ** (
            -torch.arange(0, size, 2, dtype=torch.float64) / (size - 2)
        )
        part.embed_positions.weights = torch.cat([angles.sin(), angles.cos()], 1)
    return model


def batch_for(found):
    size = len(found.source.tokens)
    return draw_batch(SPECIAL, (7, 5, 2), 4, size, size)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("changes", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_logits_and_gradients_are_those_of_transformers(tmp_path, pieces, changes):
    model = make_folder(tmp_path / "folder", pieces, **changes)
    found = read_folder(tmp_path / "folder")
    # What stands at the start is not read.
    require_same_gradients(model, found, batch_for(found), start=0, not_learned=SPECIAL.pad)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("generation", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize("kind", LANGUAGES)
def test_searches_find_the_tokens_of_transformers(tmp_path, pieces, generation, kind):
    early = 0
    for end in {"NLLB": (2.0, 4.0), "M2M100": (-4.0, -8.0)}[kind]:
        model = make_folder(tmp_path / str(end), pieces, kind, generation=generation, end=end, encoder_layers=2)
        found = read_folder(tmp_path / str(end))
        language = found.target.tokens.index(TOKENS[kind][1])
        early += count_early(model, found, batch_for(found), SPECIAL, bos=0, language=language)
    assert early, "a test of sentences that all have the same length shows little"


CODES = {"NLLB": ("eng_Latn", "fra_Latn", "deu_Latn"), "M2M100": ("en", "fr", "de")}
TOKENS = {"NLLB": CODES["NLLB"], "M2M100": ("__en__", "__fr__", "__de__")}
TOKENIZERS = {"NLLB": "NllbTokenizer", "M2M100": "M2M100Tokenizer"}


def load_tokenizer(folder, kind):
    """Load the tokenizer that transformers has for a folder with the model of sentencepiece alone."""
    import transformers

    if kind == "NLLB" and transformers.__version__ >= "5":
        pytest.skip("transformers 5 cuts NLLB's text by merges, not by the model of sentencepiece")
    return getattr(transformers, TOKENIZERS[kind]).from_pretrained(folder)


@pytest.mark.parametrize("kind", LANGUAGES)
def test_the_ids_are_those_of_the_tokenizer(tmp_path, pieces, texts, kind):
    folder = tmp_path / "folder"
    make_folder(folder, pieces, kind)
    run = import_pretrained(folder, tmp_path / "run").load().in_languages(*CODES[kind][:2])
    tokenizer = load_tokenizer(folder, kind)
    tokenizer.src_lang, tokenizer.tgt_lang = CODES[kind][:2]
    odd = ["“Quoted” — it’s", "Ça va ?", " two  spaces ", "a\u00a0b", "…", "ﬁne Ⅳ ½", "", "\u200b", "a\tb", "日本 x"]
    for side, name in ((run.source, "text"), (run.target, "text_target")):
        for text in [*texts[0], *texts[1], *odd]:
            expected = tokenizer(**{name: text})["input_ids"]
            assert [side.order[i] for i in [*side.prefix, *side.encode(text), 2]] == expected, text
            if text in texts[0]:
                assert side.decode(side.encode(text)) == tokenizer.decode(expected, skip_special_tokens=True)


@pytest.mark.parametrize("kind", LANGUAGES)
def test_text_becomes_the_text_of_transformers(tmp_path, pieces, texts, kind):
    folder = tmp_path / "folder"
    model = make_folder(folder, pieces, kind, end=3.0).float()
    import_pretrained(folder, tmp_path / "run")
    tokenizer = load_tokenizer(folder, kind)
    source, target, other = CODES[kind]
    translator = Translator.load(tmp_path / "run", source_language=source, target_language=target)
    lines = [*texts[0][:12], f">>{other}<< {texts[0][12]}", f"{target}>>{other}<<{texts[0][13]}"]
    pairs = [(source, target)] * 12 + [(source, other), (target, other)]
    expected = []
    for line, (from_, to) in zip(lines, pairs, strict=True):
        tokenizer.src_lang = from_
        inputs = tokenizer(line.rpartition("<<")[2], return_tensors="pt")
        forced = tokenizer.convert_tokens_to_ids(TOKENS[kind][CODES[kind].index(to)])
        ids = model.generate(**inputs, forced_bos_token_id=forced)
        expected.append(" ".join(tokenizer.decode(ids[0], skip_special_tokens=True).split()))
    assert [translation.text for translation in translator(lines)] == expected
    assert len(set(expected)) > 1


@pytest.mark.parametrize("kind", LANGUAGES)
def test_transformers_loads_what_is_exported(tmp_path, pieces, kind):
    folder, run, out = (tmp_path / each for each in ("folder", "run", "out"))
    make_folder(folder, pieces, kind)
    import torch
    from transformers import AutoModelForSeq2SeqLM

    import_pretrained(folder, run)
    assert export_model.main([str(run), "--out", str(out)]) == 0
    given, info = AutoModelForSeq2SeqLM.from_pretrained(out, output_loading_info=True)
    assert not any(info.values()), info
    before, after = AutoModelForSeq2SeqLM.from_pretrained(folder).float().state_dict(), given.state_dict()
    for key in after:
        assert torch.equal(before[key], after[key]), key
    again = read_folder(out)
    assert (again.source, again.settings, again.search) == (
        (first := read_folder(folder)).source,
        first.settings,
        first.search,
    )


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("kind", LANGUAGES)
def test_a_converted_model_gives_what_ctranslate2_gives(tmp_path, pieces, texts, kind, quantization):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="needs ctranslate2: pip install ctranslate2")
    make_folder(tmp_path / "folder", pieces, kind, end=1.0)  # with a prefix CTranslate2 finds no empty translation
    converted = tmp_path / "converted"
    converter = ctranslate2.converters.TransformersConverter(
        str(tmp_path / "folder"), copy_files=["sentencepiece.bpe.model"]
    )
    converter.convert(str(converted), quantization=quantization)
    import_pretrained(converted, tmp_path / "run")
    source, target, _ = CODES[kind]
    options = {"beam_size": 4, "min_len": 0, "max_len": 12, "source_language": source, "target_language": target}
    translator = Translator.load(tmp_path / "run", **options)
    lines = texts[0][:20]
    language = TOKENS[kind]
    tokens = [[language[0], *translator.source.cut(line), "</s>"] for line in lines]
    theirs = ctranslate2.Translator(str(converted), compute_type="float32").translate_batch(
        tokens, target_prefix=[[language[1]]] * len(lines), beam_size=4, num_hypotheses=4, return_scores=True,
        min_decoding_length=0, max_decoding_length=12,
    )  # fmt: skip
    for one, other in zip(translator(lines), theirs, strict=True):
        for each, found in zip(one.hypotheses, other.hypotheses, strict=True):
            assert list(each.pieces[: len(found) - 1]) == found[1:]  # theirs have the language, and no end
        np.testing.assert_allclose([each.score for each in one.hypotheses], other.scores, atol=1e-5)
