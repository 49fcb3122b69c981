"""What the tests of the programs share: no checks of shapes, and a small training."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from unittest.mock import patch

import jax
import jaxtyping
import numpy as np
import pytest

from train.data.vocabulary import BOS, EOS

OPTIONS = [
    *(
        "--corpus.train",
        "600",
        "--corpus.valid",
        "16",
        "--corpus.test",
        "16",
        "--corpus.min-freq",
        "3",
        "--epochs",
        "3",
    ),
    *("--model.num-hiddens", "32", "--model.embed-size", "16", "--search.batch-size", "16"),
]
"""Of a small training."""


def unchecked() -> AbstractContextManager:
    """Check no shapes: the library's tests do, and here that would be the greater part of the compilation."""
    return patch.object(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(autouse=True, scope="module")
def _unchecked() -> Iterator[None]:
    with unchecked():
        yield


def save_untrained(folder: Path, options: list[str]) -> Path:
    """Save a run of these options with drawn weights. Return its folder."""
    from jax_attn.models import build_model
    from jax_attn.weights import to_torch
    from train import nmt
    from train.data import dataset
    from train.runs.run_folder import RunFolder

    config = nmt.parse(options).config
    data = dataset.load(config)
    model, token = build_model(config.model, len(data.source), len(data.target)), np.zeros((1, 1), np.int32)
    saved = RunFolder.create(folder / "run", "")
    saved.save_inputs("demo", config, (data.source, data.target), data.facts())
    saved.save_weights(to_torch(jax.jit(model.init)(jax.random.key(1), token, token)))
    return saved.path


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> tuple[Path, dict]:
    """Train a small model for a short time, once for all processes. Return its folder and summary."""
    from train import nmt

    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "small"
    with unchecked(), (shared / "small.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        if not (folder / "summary.json").exists():
            assert nmt.main([*OPTIONS, "--out", str(folder)]) == 0
    return folder, json.loads((folder / "summary.json").read_text(encoding="utf-8"))


def translate_as_in_pytorch(folder, sentences):
    """Translate greedily. The model of `torch_ref` with the run's weights must find the same. Return translations."""
    import torch

    import torch_ref
    from jax_attn.models.build import parts_of
    from train.runs.run_folder import RunFolder
    from train.translate import Translator

    saved = RunFolder(folder).load()
    encoder, decoder = (
        getattr(torch_ref, part.func.__name__)(len(vocabulary), **part.keywords)
        for part, vocabulary in zip(parts_of(saved.model), (saved.source, saved.target), strict=True)
    )
    model = torch_ref.EncoderDecoder(encoder, decoder)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in saved.weights.items()})
    model.eval()
    translations = Translator.load(folder, beam_size=1)(sentences)
    for sentence, translation in zip(sentences, translations, strict=True):
        ids = torch.tensor([[*saved.source.encode(sentence), EOS]])
        with torch.no_grad():
            memory = model.encode(ids, torch.tensor([ids.shape[1]]))
        settings = {"bos": BOS, "eos": EOS, "max_len": saved.max_target_len, "batch_size": 1}
        found = torch_ref.greedy_search(model.step, model.initial_state(memory), memory, **settings)
        length = int(found.lengths[0, 0])
        assert translation.best.ids == tuple(found.ids[0, 0, :length].tolist())
        assert translation.score == pytest.approx(float(found.scores[0, 0]), rel=1e-6, abs=1e-5)
        assert (translation.weights is None) == (found.weights is None)
        if found.weights is not None:
            np.testing.assert_allclose(translation.weights, found.weights[0, 0, :length], atol=1e-5)
    return translations
