"""Measure pretrained translators of opus-mt's size: `python -m benchmarks.pretrained`, with `--quick` in minutes.

The same drawn weights, 6 + 6 layers of width 512 and 60,000 pieces, translate the same sentences of about 13 pieces in
float32 on two cores: ours from text (`Translator`), `transformers.generate` and CTranslate2. `</s>` is never probable,
so that all translations have 16 pieces.

Peak memory is that of a beam with a batch of 32, above the process after its imports, loading included. The first
translation is that of a new process, from the start of Python to its end, with JAX's programs in their cache; that of
transformers includes no tokenizer.

Needs `pip install 'jax-attn[pretrained]' transformers ctranslate2`. Only ratios of one run on an otherwise idle machine
mean something.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from benchmarks.__main__ import CONSOLE, measure_all, show
from benchmarks.measure import RETURN_MEMORY, Worker, peak_memory
from benchmarks.records import OURS, Program, Ratio, Workload
from benchmarks.translators import random_for

PIECES, LENGTH, CORES = 60_000, 16, 2
SCENARIOS = {"greedy_1": (1, 1), "greedy_32": (1, 32), "beam_1": (4, 1), "beam_32": (4, 32)}
"""Beam size and batch size."""

Sentences = list[list[str]]
Translate = Callable[[Sentences], list[list[str]]]


@dataclass(frozen=True)
class Options:
    """What to measure."""

    quick: bool = False
    """Take fewer rounds."""


def main() -> int:
    """Measure, print the tables, and return the exit status."""
    options = tyro.cli(Options, prog="python -m benchmarks.pretrained", description=__doc__)
    os.environ |= {
        "OMP_NUM_THREADS": str(CORES),
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Worker("the folders") as worker:
            weights = worker.ask(make_folders, folder)
        run = measure_all([scenario(folder, name) for name in SCENARIOS], 3 if options.quick else 15)
        show(run)
        for each in LOADERS if sys.platform == "linux" else ():
            with Worker(each, RETURN_MEMORY) as worker:
                peak = worker.ask(whole_memory, each, folder)
            CONSOLE.print(f"peak memory of {each}: {peak / weights:.2f} times the weights")
        for each in FIRST:
            CONSOLE.print(f"first translation of {each}: {min(first_seconds(each, folder) for _ in range(3)):.2f} s")
    return int(bool(run.failures))


def scenario(folder: Path, name: str) -> Workload:
    """Translate 8 batches a call; a quarter of the translations may be others, where pieces are equally likely."""
    beam, batch = SCENARIOS[name]
    implementations = {each: partial(build, each, folder, beam, batch, 8 * batch) for each in LOADERS}
    ratios = tuple(Ratio(f"{name}_vs_{each}", (each,), 1) for each in LOADERS if each != OURS)
    return Workload(name, "sentence", implementations, ratios, differing_ids=0.25, units=8 * batch)


def draw_sentences() -> Sentences:
    """Draw a thousand sentences of about 13 pieces."""
    rng = random_for("pretrained")
    lens = np.clip(rng.normal(13, 4, 1000), 4, 40).astype(int)
    return [[f"t{i}" for i in rng.integers(2, PIECES - 1, length)] for length in lens]


# In the workers' processes:


def make_folders(folder: Path) -> int:
    """Write a Marian model, its conversion to CTranslate2 and a run folder of that; return the weights' bytes."""
    import ctranslate2
    import sentencepiece
    import torch
    import transformers

    from train.runs.importing import import_pretrained

    marian, tokens = folder / "marian", ["</s>", "<unk>", *(f"t{i}" for i in range(2, PIECES - 1)), "<pad>"]
    marian.mkdir()
    (marian / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    for name in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["some words here"] * 9), model_prefix=marian / name, vocab_size=20, minloglevel=3,
            hard_vocab_limit=False,
        )  # fmt: skip
        (marian / f"{name}.model").rename(marian / f"{name}.spm")
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        vocab_size=PIECES, d_model=512, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=2048, decoder_ffn_dim=2048,
        encoder_attention_heads=8, decoder_attention_heads=8, activation_function="swish", scale_embedding=True,
        max_position_embeddings=512, pad_token_id=PIECES - 1, eos_token_id=0, decoder_start_token_id=PIECES - 1,
        forced_eos_token_id=None, init_std=0.05,
    )  # fmt: skip
    model = transformers.MarianMTModel(config)
    model.final_logits_bias[0, 0] = -1e4
    model.generation_config = transformers.GenerationConfig(
        bad_words_ids=[[PIECES - 1]], pad_token_id=PIECES - 1, decoder_start_token_id=PIECES - 1, eos_token_id=0
    )
    model.save_pretrained(marian)
    ctranslate2.converters.TransformersConverter(str(marian)).convert(str(folder / "converted"))
    import_pretrained(folder / "converted", folder / "run", moses=False)
    return sum(parameter.nbytes for parameter in model.parameters())


def load_ours(folder: Path, beam: int, batch: int) -> Translate:
    """Return this library's translator."""
    from train.machine.devices import start_jax
    from train.translating.translator import Translator

    start_jax()
    options: dict[str, Any] = {"beam_size": beam, "batch_size": batch, "max_len": LENGTH, "min_len": 0}
    translator = Translator.load(folder / "run", **options)

    def translate(sentences: Sentences) -> list[list[str]]:
        texts = [" ".join(each) for each in sentences]
        found = [translator(text) for text in texts] if batch == 1 else translator(texts)
        return [list(translation.best.pieces) for translation in found]

    return translate


def load_transformers(folder: Path, beam: int, batch: int) -> Translate:
    """Return PyTorch's translator of transformers, which pads a batch to its longest sentence."""
    import torch
    import transformers

    torch.set_num_threads(CORES)
    model = transformers.MarianMTModel.from_pretrained(folder / "marian").eval()
    ids = json.loads((folder / "marian" / "vocab.json").read_text())
    names, pad = list(ids), PIECES - 1

    @torch.inference_mode()
    def translate(sentences: Sentences) -> list[list[str]]:
        found = list[list[str]]()
        for start in range(0, len(sentences), batch):
            rows = [torch.tensor([*(ids[token] for token in each), 0]) for each in sentences[start : start + batch]]
            given = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
            options = {"attention_mask": (given != pad).long(), "num_beams": beam, "max_new_tokens": LENGTH}
            found += [[names[i] for i in row[1:]] for row in model.generate(given, **options).tolist()]
        return found

    return translate


def load_ctranslate2(folder: Path, beam: int, batch: int) -> Translate:
    """Return CTranslate2's translator."""
    import ctranslate2

    options = {"compute_type": "float32", "inter_threads": 1, "intra_threads": CORES}
    translator = ctranslate2.Translator(str(folder / "converted"), **options)

    def translate(sentences: Sentences) -> list[list[str]]:
        given = [[*tokens, "</s>"] for tokens in sentences]
        options = {"beam_size": beam, "max_decoding_length": LENGTH, "max_batch_size": batch}
        return [found.hypotheses[0] for found in translator.translate_batch(given, **options)]

    return translate


LOADERS = {OURS: load_ours, "transformers": load_transformers, "CTranslate2": load_ctranslate2}
IMPORTS = {
    OURS: "train.translating.translator",
    "transformers": "transformers.models.marian.modeling_marian",
    "CTranslate2": "ctranslate2",
}
"""What is imported before memory is measured."""


def build(name: str, folder: Path, beam: int, batch: int, chunk: int) -> Program:
    """Make a program of which each call translates the next sentences, after the first of them for the comparison."""
    translate, sentences = LOADERS[name](folder, beam, batch), draw_sentences()
    chunks = cycle(sentences[i : i + chunk] for i in range(0, len(sentences) - chunk + 1, chunk))

    def outputs() -> dict[str, Any]:
        return {"tokens": np.array([[int(token[1:]) for token in tokens] for tokens in translate(sentences[:4])])}

    return Program(lambda: translate(next(chunks)), outputs)


def whole_memory(name: str, folder: Path) -> int:
    """Return the most bytes that loading and translating hold, above what is imported."""
    importlib.import_module(IMPORTS[name])
    return peak_memory(lambda: build(name, folder, 4, 32, 32).run())


WITH_TRANSFORMERS = """
import sys, torch
from transformers import MarianMTModel
model = MarianMTModel.from_pretrained(sys.argv[1]).eval()
ids = [int(name[1:]) for name in sys.argv[-1].split()]
model.generate(torch.tensor([[*ids, 0]]), num_beams=1, max_new_tokens=int(sys.argv[3]))
"""
FIRST = {
    OURS: ["-m", "train.translate", "{}/run", "--max-len", str(LENGTH)],
    "transformers": ["-c", WITH_TRANSFORMERS, "{}/marian", "--max-len", str(LENGTH)],
}
"""Arguments of Python, with the folder, to translate one sentence by greedy search; transformers gets its ids."""


def first_seconds(name: str, folder: Path) -> float:
    """Return the seconds of a process that translates one sentence; the first one of ours fills the cache."""
    start = time.perf_counter()
    command = [sys.executable, *(argument.replace("{}", str(folder)) for argument in FIRST[name])]
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
    subprocess.run([*command, " ".join(draw_sentences()[0])], env=environment, check=True, capture_output=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
