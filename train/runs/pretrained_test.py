"""Imported models give what transformers and CTranslate2 give: logits, gradients, tokens and scores."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece

from jax_attn.checkpoints import read_folder
from train import export_model, import_model
from train.runs.conftest import Special, count_early, draw_batch, require_same_gradients
from train.runs.importing import import_pretrained
from train.translating.translator import Translator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of transformers and of the libraries that it imports
]

SIZES = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 64,
    "activation_function": "swish", "scale_embedding": True, "init_std": 0.3, "max_length": 24, "num_beams": 4,
}  # fmt: skip
"""A small Marian model; weights are drawn wide, so that tokens differ in probability."""

CONFIGURATIONS = {
    "opus-mt": {},
    "two layers": {"encoder_layers": 2, "decoder_layers": 2},
    "six layers": {"encoder_layers": 6, "decoder_layers": 6, "d_model": 8},
    "other numbers of layers": {"encoder_layers": 3, "decoder_layers": 1},
    "four heads": {"encoder_attention_heads": 4, "decoder_attention_heads": 4},
    "relu": {"activation_function": "relu"},
    "gelu": {"activation_function": "gelu"},
    "no scale": {"scale_embedding": False},
    "untied output": {"tie_word_embeddings": False},
    "two vocabularies": {"share_encoder_decoder_embeddings": False},
    "two vocabularies, untied": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
    "float16": {"dtype": "float16"},
    "a wide network": {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "d_model": 12},
}


def make_pieces(texts, size):
    """Learn pieces as Marian's makers do: without <pad>."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=size, minloglevel=3, num_threads=1
    )
    return model.getvalue()


def make_vocabulary(*models):
    """Return the ids of all pieces, as vocab.json holds them: </s>, <unk>, pieces, <pad>."""
    found = dict.fromkeys(["</s>", "<unk>"])
    for model in models:
        pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        found |= dict.fromkeys(pieces.id_to_piece(i) for i in range(3, len(pieces)))
    return {token: i for i, token in enumerate([*found, ">>fra<<", ">>nld<<", "<pad>"])}


@pytest.fixture(scope="session")
def pieces(texts):
    return tuple(make_pieces(side, 90) for side in texts)


def marian_folder(folder, pieces, **changes):
    """Write a folder as the hub has it, of a model with drawn weights; return that model in float64."""
    import torch

    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    dtype = changes.pop("dtype", "float32")
    generation, end = dict(changes.pop("generation", {})), changes.pop("end", 2.0)
    folder.mkdir()
    if changes.get("share_encoder_decoder_embeddings", True):
        vocabularies = [make_vocabulary(*pieces)] * 2
    else:
        vocabularies = [make_vocabulary(each) for each in pieces]
        pad = max(map(len, vocabularies)) - 1  # one id for both
        for vocabulary in vocabularies:
            del vocabulary["<pad>"]
            vocabulary |= {f"<filler {i}>": i for i in range(len(vocabulary), pad)} | {"<pad>": pad}
        (folder / "target_vocab.json").write_text(json.dumps(vocabularies[1]), encoding="utf-8")
        tokenizer = {"separate_vocabs": True, "target_vocab_file": str(folder / "target_vocab.json")}
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "vocab.json").write_text(json.dumps(vocabularies[0]), encoding="utf-8")
    for name, model in zip(("source", "target"), pieces, strict=True):
        (folder / f"{name}.spm").write_bytes(model)
    pad = vocabularies[0]["<pad>"]
    search = {name: changes.pop(name, SIZES[name]) for name in ("max_length", "num_beams")}
    config = transformers.MarianConfig(
        **{name: size for name, size in SIZES.items() if name not in search} | changes,
        vocab_size=len(vocabularies[0]), decoder_vocab_size=len(vocabularies[1]),
        pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=0, forced_eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(1)
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # biases and norms, which begin as zeros and ones
                parameter.add_(torch.randn_like(parameter) * 0.3)
        model.final_logits_bias.normal_()
        model.final_logits_bias[0, 0] = end  # </s>: some sentences end soon
    model.to(getattr(torch, dtype))
    if "bad_words_ids" in generation:
        generation["bad_words_ids"] = [[pad if i == PAD else i] for (i,) in generation["bad_words_ids"]]
    ids = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0, "bos_token_id": 0}
    usual = {"bad_words_ids": [[pad]], "forced_eos_token_id": 0, "renormalize_logits": True}
    model.generation_config = transformers.GenerationConfig(**ids | search | usual | generation)
    model.save_pretrained(folder)
    return in_float64(model)


def in_float64(model):
    """Widen a model, and give it positions that were not rounded to float32."""
    import torch

    from torch_ref.functional.positions import sinusoidal_positions

    model = model.double()
    for part in (model.model.encoder, model.model.decoder):
        length, size = part.embed_positions.weight.shape
        part.embed_positions.weight.data = sinusoidal_positions(length, size, torch.float64, form="halves")
    return model


def batch_for(found):
    sizes = [len(side.tokens) for side in (found.source, found.target)]
    special = Special(sizes[1] - 1, 0, sizes[0] - 1)
    return special, draw_batch(special, (7, 5, 1), 2, sizes[0] - 1, sizes[1] - 1)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("changes", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_logits_and_gradients_are_those_of_transformers(tmp_path, pieces, changes):
    model = marian_folder(tmp_path / "marian", pieces, **dict(changes))
    found = read_folder(tmp_path / "marian")
    require_same_gradients(model, found, batch_for(found)[1])


@pytest.mark.usefixtures("x64")
def test_generating_step_by_step_is_that_of_transformers(tmp_path, pieces):
    import torch

    from parity_tests.your_port.generation.comparison import compare_generation
    from parity_tests.your_port.generation.decoder import Decoder
    from parity_tests.your_port.generation.hugging_face import hugging_face
    from parity_tests.your_port.measure.jax_side import Applied

    twin = marian_folder(tmp_path / "marian", pieces)
    found = read_folder(tmp_path / "marian")
    module, params = found.load(jnp.float64)
    ours, (sources, lens, _) = Applied(module, params), batch_for(found)[1]
    mask, pad, count = np.arange(sources.shape[1]) < lens[:, None], twin.config.pad_token_id, 12

    def in_torch(function):
        """Never produce <pad>, as our steps do."""

        def run(*arguments):
            found = function(*arguments)
            logits, cache = found if isinstance(found, tuple) else (found, None)
            never = torch.arange(logits.shape[-1]) == pad
            log_probs = logits.masked_fill(never, -torch.inf).log_softmax(-1)
            return (log_probs, cache) if isinstance(found, tuple) else log_probs

        return run

    def step(tokens, cache):
        log_probs, state, _ = ours.step(tokens, *cache)
        return log_probs, (state, cache[1])

    def prefill(inputs):
        memory = ours.encode(inputs["input_ids"], inputs["attention_mask"].sum(-1))
        return step(jnp.full(len(lens), pad), (ours.initial_state(memory, count + 1), memory))

    def full(inputs, tokens):
        targets = jnp.concatenate([jnp.full((len(lens), 1), pad), tokens], 1)
        logits, _ = ours(inputs["input_ids"], targets, inputs["attention_mask"].sum(-1))
        return jax.nn.log_softmax(logits.at[..., pad].set(-jnp.inf), -1)

    theirs = hugging_face(twin)
    decoder = Decoder(*(in_torch(each) for each in (theirs.prefill, theirs.step, theirs.full)))
    inputs = {"input_ids": sources, "attention_mask": mask.astype(np.int64)}
    report = compare_generation((twin, decoder), Decoder(prefill, step, full), inputs, tokens=count, end=0)
    assert report.agrees, report


PAD = "the id of <pad>"
SEARCHES = {
    "greedy": {"num_beams": 1},
    "first": {"early_stopping": True},
    "never": {"early_stopping": "never"},
    "sums": {"length_penalty": 0.0},
    "constrained": {"no_repeat_ngram_size": 2, "min_length": 6, "bad_words_ids": [[5], [7], [9], [PAD]]},
    "constrained, greedy": {"num_beams": 1, "no_repeat_ngram_size": 1, "min_length": 6},
    "constrained, not renormalised": {
        "no_repeat_ngram_size": 1, "min_new_tokens": 5, "suppress_tokens": [5, 7, 9], "renormalize_logits": False,
        "max_new_tokens": 14, "early_stopping": True,
    },
}  # fmt: skip


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("generation", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize("changes", [{}, CONFIGURATIONS["two vocabularies"]], ids=["one vocabulary", "two"])
def test_searches_find_the_tokens_of_transformers(tmp_path, pieces, generation, changes):
    require_same_search(tmp_path / "marian", pieces, **changes, generation=dict(generation))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("changes", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_a_beam_of_4_finds_the_tokens_of_transformers(tmp_path, pieces, changes):
    require_same_search(tmp_path / "marian", pieces, **changes)


def require_same_search(folder, pieces, **changes):
    """Compare the searches of two models, one of which ends its sentences sooner."""
    early = 0
    for end in (4.0, 8.0):
        path = Path(f"{folder}-{end}")
        model = marian_folder(path, pieces, **changes, end=end)
        special, batch = batch_for(found := read_folder(path))
        early += count_early(model, found, batch, special, bos=special.start)
    assert early, "a test of sentences that all have the same length shows little"


def test_text_becomes_the_text_of_transformers(tmp_path, pieces, texts):
    folder = tmp_path / "marian"
    model = marian_folder(folder, pieces, **CONFIGURATIONS["two vocabularies, untied"], end=2.5).float()
    from transformers import MarianTokenizer

    assert import_model.main([str(folder), "--out", str(tmp_path / "run"), "--no-moses"]) == 0
    tokenizer = MarianTokenizer.from_pretrained(folder)
    translator = Translator.load(tmp_path / "run")
    sentences = [*texts[0][:12], ">>fra<< " + texts[0][12]]
    expected = model.generate(**tokenizer(sentences, return_tensors="pt", padding=True))
    expected = [" ".join(text.split()) for text in tokenizer.batch_decode(expected, skip_special_tokens=True)]
    assert [translation.text for translation in translator(sentences)] == expected
    assert len(set(expected)) > 3


@pytest.mark.parametrize("moses", [True, False])
def test_the_ids_are_those_of_the_tokenizer(tmp_path, pieces, texts, moses):
    folder = tmp_path / "marian"
    marian_folder(folder, pieces)
    from sacremoses import MosesPunctNormalizer
    from transformers import MarianTokenizer

    source, target = (run := import_pretrained(folder, tmp_path / "run", moses=moses).load()).source, run.target
    tokenizer = MarianTokenizer.from_pretrained(folder)
    normalize = MosesPunctNormalizer("en").normalize if moses else str
    odd = ["“Quoted” — it’s", ">>nld<< Ça va ?", "日本 <pad> x", " two  spaces ", "a\u00a0b", "…"]
    for text in [*texts[0], *odd]:
        prefix = ">>nld<<" if text.startswith(">>") else ""
        expected = tokenizer(prefix + normalize(text.removeprefix(prefix)))["input_ids"]
        ids = [*source.encode(text), 2]
        if "<pad>" not in text:  # transformers reads it as the token
            assert [source.order[i] for i in ids] == expected, text
    for text in texts[1]:
        expected = tokenizer(text_target=normalize(text))["input_ids"]
        assert [target.order[i] for i in [*target.encode(text), 2]] == expected
        assert target.decode(target.encode(text)) == tokenizer.decode(expected[:-1]).replace("<unk> ", "<unk>")


@pytest.mark.parametrize(
    "name", ["opus-mt", "two vocabularies", "two vocabularies, untied", "untied output", "float16"]
)
def test_transformers_loads_what_is_exported(tmp_path, pieces, texts, name):
    folder, run, out = (tmp_path / each for each in ("marian", "run", "out"))
    marian_folder(folder, pieces, **dict(CONFIGURATIONS[name]))
    import torch
    from transformers import MarianMTModel, MarianTokenizer

    import_pretrained(folder, run, moses=False)
    assert export_model.main([str(run), "--out", str(out)]) == 0
    given, info = MarianMTModel.from_pretrained(out, output_loading_info=True)
    assert not any(info.values()), info
    before, after = MarianMTModel.from_pretrained(folder).float().state_dict(), given.state_dict()
    shared = {"model.shared.weight"} if name == "untied output" else set()  # one more copy, which is not used
    assert set(before) - shared == set(after) - shared
    for key in (key for key in after if "embed_positions" not in key):  # these are computed
        assert after[key].dtype == torch.float32
        assert torch.equal(before[key], after[key]), key
    old, new = (MarianTokenizer.from_pretrained(path) for path in (folder, out))
    assert all(old(text)["input_ids"] == new(text)["input_ids"] for text in texts[0])
    ids = old(texts[0][:4], return_tensors="pt", padding=True)
    expected = MarianMTModel.from_pretrained(folder).float().generate(**ids)
    assert torch.equal(given.generate(**ids), expected)


HUB = """
import http.server, json, pathlib, sys, urllib.parse
root, commit = pathlib.Path(sys.argv[1]), "a" * 40
class Hub(http.server.BaseHTTPRequestHandler):
    def answer(self, content, **headers):
        self.send_response(200)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)
    def do_GET(self):
        path = urllib.parse.urlparse(self.path).path
        names = [file.name for file in sorted(root.iterdir())]
        if path.startswith("/api/models/ORG/NAME"):
            found = {"id": "ORG/NAME", "sha": commit, "siblings": [{"rfilename": name} for name in names]}
            if "/tree/" in path:
                found = [{"type": "file", "path": name, "size": 1, "oid": "0" * 40} for name in names]
            return self.answer(json.dumps(found).encode(), Content_Type="application/json")
        name = path.rpartition("/")[2]
        if path.startswith("/ORG/NAME/resolve/") and name in names:
            return self.answer((root / name).read_bytes(), ETag=f'"{name}"', X_Repo_Commit=commit)
        self.send_error(404)
    do_HEAD = do_GET
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
"""A server that gives the files of a folder as the hub does, and writes a line for each request to stderr."""


def test_a_name_is_downloaded_once(tmp_path, pieces):
    pytest.importorskip("huggingface_hub", reason="needs huggingface_hub: pip install 'jax-attn[pretrained]'")
    marian_folder(tmp_path / "marian", pieces)
    (tmp_path / "marian" / "README.md").write_text("---\nlicense: apache-2.0\n---\n", encoding="utf-8")
    (tmp_path / "marian" / "pytorch_model.bin").write_bytes(b"not fetched")
    arguments = [sys.executable, "-c", HUB, str(tmp_path / "marian")]
    with (tmp_path / "requests").open("w") as log, subprocess.Popen(arguments, stdout=-1, stderr=log) as server:
        port = int(server.stdout.readline())
        own = {"HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1"}

        def run_import(name, out):
            command = [sys.executable, "-m", "train.import_model", name, "--out", str(tmp_path / out)]
            return subprocess.run(command, env=os.environ | own, capture_output=True, text=True)

        first = run_import("ORG/NAME", "run")
        assert first.returncode == 0, first.stderr
        wrong = run_import("ORG/OTHER", "wrong")
        server.terminate()
    asked = (tmp_path / "requests").read_text()
    assert "GET /ORG/NAME/resolve" in asked
    assert "pytorch_model.bin" not in asked
    origin = json.loads((tmp_path / "run" / "origin.json").read_text(encoding="utf-8"))
    assert origin == {"source": "ORG/NAME", "revision": "a" * 40, "licence": "apache-2.0"}
    again = run_import("ORG/NAME", "again")  # without the server
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again" / "origin.json").read_text() == (tmp_path / "run" / "origin.json").read_text()
    absent = run_import("ORG/ABSENT", "absent")
    for failed in (wrong, absent):
        assert failed.returncode == 2
        assert "cannot be downloaded" in failed.stderr
        assert "or fetch config.json, generation_config.json" in failed.stderr
    assert not (tmp_path / "wrong").exists()
    assert not (tmp_path / "absent").exists()


NAMES = """
محمد أحمد علي حسن حسين عمر عثمان خالد وليد سعيد سالم سلمان سليمان داود يوسف يعقوب إبراهيم إسماعيل إسحاق موسى عيسى يحيى
زكريا إلياس هارون نوح آدم إدريس صالح هود شعيب لقمان طارق زياد كريم رشيد مجيد حميد جميل نبيل فيصل ماجد ناصر منصور
محمود مصطفى طه ياسين أنس مالك بلال حمزة عباس جعفر صادق كاظم رضا مهدي قاسم فاطمة عائشة خديجة زينب مريم آمنة حفصة سمية
أسماء سارة هاجر ليلى سلمى هند نورة لطيفة جميلة كريمة نادية سميرة منى هدى رنا دينا لينا ريم شيماء إيمان أمل وفاء
بغداد دمشق القاهرة بيروت عمان صنعاء طرابلس تونس الجزائر الرباط الخرطوم
"""


FOUR_BEST = {"beam_size": 4, "num_hypotheses": 4, "return_scores": True, "min_decoding_length": 0}


@pytest.mark.parametrize(("ngram", "least"), [(0, 0), (1, 0), (2, 0), (2, 6)])
def test_a_trained_model_gives_what_ctranslate2_gives(tmp_path, ngram, least):
    folder = Path(__file__).parents[2] / "../shared/data/aren-transliteration"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here: the model of that name in CTranslate2's repository, tests/data/models")
    ctranslate2 = pytest.importorskip("ctranslate2", reason="needs ctranslate2: pip install ctranslate2")
    names = NAMES.split()
    assert len(names) == 100
    import_pretrained(folder, tmp_path / "run")
    constraints = {"min_len": least + 1 if least else 0, "no_repeat_ngram": ngram or None}  # theirs without the end
    ours = Translator.load(tmp_path / "run", beam_size=4, **constraints)([" ".join(name) for name in names])
    theirs = ctranslate2.Translator(str(folder))
    # By default CTranslate2 finds no empty translation, and the others' probabilities sum to 1. It returns the weights
    # of the first token of another sentence where a batch holds several.
    options = {**FOUR_BEST, "return_attention": True, "max_batch_size": 1, "no_repeat_ngram_size": ngram}
    options["min_decoding_length"] = least
    theirs = theirs.translate_batch([list(name) for name in names], **options)
    differing = [name for name, o, t in zip(names, ours, theirs, strict=True) if not same_hypotheses(o, t)]
    assert not differing


def same_hypotheses(ours, theirs):
    """Compare texts, scores and weights; hypotheses whose scores are closer than 1e-5 may change places."""
    texts, scores = [" ".join(tokens) for tokens in theirs.hypotheses], theirs.scores
    if [each.text for each in ours.hypotheses] != texts:
        places = [texts.index(each.text) for each in ours.hypotheses]
        if any(abs(scores[i] - scores[place]) > 1e-5 for i, place in enumerate(places)):
            return False
        listed = [f"{texts[i]} ({scores[i]:.6f})" for i, place in enumerate(places) if i != place]
        print("in another order:", ", ".join(listed))  # `pytest -rP` shows it
        texts, scores = [texts[i] for i in places], [scores[i] for i in places]
    np.testing.assert_allclose([each.score for each in ours.hypotheses], scores, atol=1e-5)
    for each, attention in zip(ours.hypotheses, theirs.attention, strict=True):
        if len(attention[0]):
            np.testing.assert_allclose(each.weights[: len(attention), : len(attention[0])], attention, atol=1e-5)
    return True


@pytest.mark.parametrize("quantization", [None, "float16", "int8", "int16"])
@pytest.mark.parametrize("changes", [{}, {"activation_function": "relu", "encoder_layers": 2}], ids=["opus-mt", "relu"])
def test_a_converted_model_gives_what_ctranslate2_gives(tmp_path, pieces, texts, quantization, changes):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="needs ctranslate2: pip install ctranslate2")
    marian_folder(tmp_path / "marian", pieces, **changes)
    from transformers import MarianTokenizer

    converted = tmp_path / "converted"
    ctranslate2.converters.TransformersConverter(str(tmp_path / "marian")).convert(
        str(converted), quantization=quantization
    )
    for name in ("source.spm", "target.spm"):
        (converted / name).write_bytes((tmp_path / "marian" / name).read_bytes())
    run = import_pretrained(converted, tmp_path / "run", moses=False).load()
    assert run.max_source_len == SIZES["max_position_embeddings"] - 1
    sentences = texts[0][:20]
    ours = Translator.load(tmp_path / "run", beam_size=4, min_len=0, max_len=12)(sentences)
    tokenizer = MarianTokenizer.from_pretrained(tmp_path / "marian")
    tokens = [tokenizer.convert_ids_to_tokens(tokenizer.encode(text)) for text in sentences]
    options = {**FOUR_BEST, "max_decoding_length": 12}
    theirs = ctranslate2.Translator(str(converted), compute_type="float32").translate_batch(tokens, **options)
    for one, other in zip(ours, theirs, strict=True):
        assert [
            list(each.pieces[: len(tokens)]) for each, tokens in zip(one.hypotheses, other.hypotheses, strict=True)
        ] == other.hypotheses
        # A file in float16 holds rounded positions, too, which CTranslate2 takes; here they are computed.
        tolerance = 1e-3 if quantization == "float16" else 1e-5
        np.testing.assert_allclose([each.score for each in one.hypotheses], other.scores, atol=tolerance)
