"""The folder of a run: made once, and never overwritten."""

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from train.config import Config, ConfigError
from train.data.dataset import Data

FORMAT = 1
"""The version of the folder's layout: a change that a reader has to know of raises it."""


class RunFolder:
    """The files of a run.

    config.json           the configuration, every setting of it
    source.json           the vocabularies, a word a line
    target.json
    metrics.jsonl         one line for each epoch
    checkpoint/           parameters, optimiser state and step (Orbax); or PyTorch's parameters
    model.safetensors     the parameters under PyTorch's names
    attention.png         the attention weights of a few translations
    test.jsonl            one line for each test sentence: its translation, and the links that attention found
    summary.json          the results
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def require_free(path: Path) -> None:
        """Raise ConfigError if the folder cannot be made. Nothing is made yet."""
        try:
            taken = path.exists() or path.is_symlink()
            parent = next(folder for folder in path.absolute().parents if folder.exists() or folder.is_symlink())
            writable = parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)
        except OSError as error:
            raise ConfigError(f"the run folder {path} cannot be made: {error.strerror}") from error
        if taken:
            raise ConfigError(f"{path} exists already; name another folder with --out, or remove it")
        if not writable:
            raise ConfigError(f"the run folder {path} cannot be made: {parent} is no folder that can be written to")

    @classmethod
    def create(cls, path: Path) -> "RunFolder":
        """Make the folder. Raise ConfigError if it exists or cannot be made."""
        cls.require_free(path)
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise ConfigError(f"the run folder {path} cannot be made: {error.strerror}") from error
        return cls(path)

    def save_inputs(self, config: Config, data: Data) -> None:
        """Write what is known before training: the settings, the longest lengths, and the vocabularies."""
        lengths = {"max_source_words": data.max_source_words, "max_target_len": data.max_target_len}
        self._write_json("config.json", {"format": FORMAT} | dataclasses.asdict(config) | lengths)
        data.source.save(self.path / "source.json")
        data.target.save(self.path / "target.json")

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")

    def save_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Write the parameters as safetensors, with PyTorch's names and layouts."""
        from jax_attn.checkpoints import write_safetensors

        write_safetensors(self.path / "model.safetensors", weights)

    def save_test(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write the test set, one sentence a line: see `train.evaluate`."""
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
        (self.path / "test.jsonl").write_text("".join(lines), encoding="utf-8")

    def save_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the results, last of all: a folder without a summary is a run that did not end."""
        self._write_json("summary.json", summary)

    def _write_json(self, name: str, content: Any) -> None:
        text = json.dumps(content, ensure_ascii=False, indent=2, default=str, allow_nan=False)
        (self.path / name).write_text(text + "\n", encoding="utf-8")


def next_free(folder: Path, name: str) -> Path:
    """Return the first of `folder/name-1`, `folder/name-2`, … that does not exist."""
    number = 1
    while (folder / f"{name}-{number}").exists():
        number += 1
    return folder / f"{name}-{number}"


def save_state(path: Path, state: Any) -> None:
    """Write a training state with Orbax, completely or not at all."""
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path.absolute(), state)
