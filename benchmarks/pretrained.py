"""Measure pretrained translators of opus-mt's size: `python -m benchmarks.pretrained`, with `--quick` in minutes.

The same drawn weights, 6 + 6 layers of width 512 and 60,000 pieces, translate the same sentences in float32 on two
cores: ours from text (`Translator`), `transformers.generate` and CTranslate2. `</s>` is never probable, so that all
translations have 16 pieces. The sources have about 13, or as many as the lines of `--lines` have words. Each
implementation runs in a process of its own, and they take turns.

Peak memory is that of a beam with a batch of 32, above the process after its imports, loading included. The first
translation is that of a new process, from the start of Python, with JAX's programs in its cache.

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
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from benchmarks import process
from benchmarks.inputs import random_for
from benchmarks.measure import require_agreement, take_turns
from benchmarks.process import Worker
from benchmarks.records import OURS, Program, Spread

PIECES, LENGTH, CORES = 60_000, 16, 2
SCENARIOS = {
    "greedy, batch 1": (1, 1),
    "greedy, batch 32": (1, 32),
    "beam 4, batch 1": (4, 1),
    "beam 4, batch 32": (4, 32),
}
"""Beam size and batch size."""
THREADS = {"OMP_NUM_THREADS": str(CORES), "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

Sentences = list[list[str]]
Translate = Callable[[Sentences], list[list[str]]]


@dataclass(frozen=True)
class Options:
    """What to measure."""

    quick: bool = False
    """Translate a few sentences in place of a thousand."""
    lines: Path | None = None
    """A text whose first thousand lines give the lengths of the sources."""


def main() -> int:
    """Measure, and print each number as soon as it is known."""
    options = tyro.cli(Options, prog="python -m benchmarks.pretrained", description=__doc__)
    sentences = draw_sentences(options.lines)
    if len(sentences) < 256:
        print(
            f"error: --lines must have at least 256 lines with words; {options.lines} has {len(sentences)}",
            file=sys.stderr,
        )
        return 2
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Worker("the folders") as worker:
            weights = worker.ask(make_folders, folder)
        for scenario, (beam, batch) in SCENARIOS.items():
            chunk = 8 * batch  # given at once, but for those that are translated one at a time
            found = measure(folder, sentences[: 3 * chunk] if options.quick else sentences, beam, batch, chunk)
            for each, seconds in found.items():
                rate = chunk / Spread.of(seconds).median
                ratio = Spread.of([theirs / ours for ours, theirs in zip(found[OURS], seconds, strict=True)])
                than_it = f"ours is {ratio.median:.2f} times as fast (spread {ratio.iqr:.2f})"
                print(f"{scenario:18} {each:13} {rate:7.2f} sentences/s   {than_it}", flush=True)
        for each in BUILDS if sys.platform == "linux" else ():
            with Worker(each, THREADS | process.RETURN_MEMORY) as worker:
                peak = worker.ask(peak_memory, each, folder, sentences[:32], 4, 32, 32)
            print(f"{'peak memory':18} {each:13} {peak / weights:7.2f} times the weights", flush=True)
        seconds = [first_seconds(folder, sentences[0]) for _ in range(3)]
        print(f"{'first translation':18} {OURS:13} {min(seconds):7.2f} s", flush=True)
    return 0


def draw_sentences(lines: Path | None) -> Sentences:
    """Draw a thousand sentences of pieces; their lengths are those of the lines, or about 13."""
    rng = random_for("pretrained")
    lens = np.clip(rng.normal(13, 4, 1000), 4, 40).astype(int)
    if lines is not None:
        words = [len(line.split()) for line in lines.read_text(encoding="utf-8").splitlines()]
        lens = np.array([count for count in words if count][:1000])
    return [[f"t{i}" for i in rng.integers(2, PIECES - 1, length)] for length in lens]


def measure(folder: Path, sentences: Sentences, beam: int, batch: int, chunk: int) -> dict[str, list[float]]:
    """Return the seconds that each implementation took for each chunk of sentences.

    Raises:
        DisagreementError: more than a quarter of an implementation's translations are others.
    """
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(name, THREADS)) for name in BUILDS}
        given = folder, sentences, beam, batch, chunk
        outputs = {name: worker.ask(process.prepare, build, name, *given) for name, worker in workers.items()}
        for name in outputs:
            require_agreement(name, outputs[name], outputs["transformers"], differing_ids=0.25)
        runs = {name: partial(worker.ask, process.run) for name, worker in workers.items()}
        return take_turns(runs, len(sentences) // chunk)


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


IMPORTS = {
    OURS: "train.translating.translator",
    "transformers": "transformers.models.marian.modeling_marian",
    "CTranslate2": "ctranslate2",
}
"""What is imported before memory is measured."""
BUILDS = {OURS: load_ours, "transformers": load_transformers, "CTranslate2": load_ctranslate2}


def build(name: str, folder: Path, sentences: Sentences, beam: int, batch: int, chunk: int) -> Program:
    """Make a program of which each call translates the next sentences, after the first of them for the comparison."""
    translate = BUILDS[name](folder, beam, batch)
    chunks = cycle(sentences[i : i + chunk] for i in range(0, len(sentences) - chunk + 1, chunk))

    def outputs() -> dict[str, np.ndarray]:
        return {"tokens": np.array([[int(token[1:]) for token in tokens] for tokens in translate(sentences[:4])])}

    return Program(lambda: translate(next(chunks)), outputs)


def peak_memory(name: str, *arguments: Any) -> int:
    """Return the most bytes that loading and translating hold, above what is imported."""
    importlib.import_module(IMPORTS[name])
    return process.linux_peak(lambda: build(name, *arguments).run())


def first_seconds(folder: Path, sentence: list[str]) -> float:
    """Return the seconds of a process that translates one sentence; the first one fills the cache."""
    start = time.perf_counter()
    command = f"-m train.translate {folder / 'run'} --max-len {LENGTH}".split()
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, *command, " ".join(sentence)], env=environment, check=True, capture_output=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
