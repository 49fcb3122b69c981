"""Read a run folder: everything that a translator needs, or an error that says what is wrong with the folder."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from jax_attn.checkpoints import read_safetensors
from train.config import ConfigError, CorpusConfig, ModelConfig, SearchConfig
from train.data.tokens import Tokenizer
from train.data.vocabulary import Vocabulary
from train.run_folder import FORMAT

Settings = TypeVar("Settings", CorpusConfig, ModelConfig, SearchConfig)


@dataclass(frozen=True)
class SavedRun:
    """The run that a folder holds, trained by either framework, on this machine or another."""

    folder: Path
    model: ModelConfig
    search: SearchConfig
    tokenizer: Tokenizer
    source: Vocabulary
    target: Vocabulary
    max_source_words: int
    """The length of the longest source in training. The model reads no more words of a sentence."""
    max_target_len: int
    """The length of the longest target in training, with `<eos>`."""
    weights: dict[str, np.ndarray]
    """The parameters under PyTorch's names."""

    @classmethod
    def load(cls, folder: Path | str) -> "SavedRun":
        """Read a folder.

        Raises:
            ConfigError: the folder does not exist, holds no run, a damaged run or one of another version, or weights
                that are NaN or infinite.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {folder}; name the run folder that `python -m train.nmt` wrote")
        try:
            settings = _read_json(folder / "config.json", dict)
            if settings.get("format", 1) != FORMAT:
                raise ValueError(f"it has format {settings['format']}, and this version of the program reads {FORMAT}")
            return cls(
                folder,
                _read_settings(ModelConfig, settings, "model"),
                _read_settings(SearchConfig, settings, "search"),
                _read_settings(CorpusConfig, settings, "corpus").tokenizer,
                Vocabulary(tuple(_read_json(folder / "source.json", list))),
                Vocabulary(tuple(_read_json(folder / "target.json", list))),
                _read_length(settings, "max_source_words"),
                _read_length(settings, "max_target_len"),
                _read_weights(folder / "model.safetensors"),
            )
        except FileNotFoundError as error:
            reason = f"it has no {Path(error.filename).name}; name the run folder that `python -m train.nmt` wrote"
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
        raise ConfigError(f"{folder} holds no run that can be loaded: {reason}")


def _read_json(path: Path, kind: type) -> Any:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name} is damaged, it is not JSON ({error}); copy the folder again") from error
    if not isinstance(content, kind):
        raise ValueError(f"{path.name} is damaged: it must hold a JSON {kind.__name__}; copy the folder again")
    return content


def _read_settings(kind: type[Settings], settings: Mapping[str, Any], name: str) -> Settings:
    """Return the settings called `name`. A setting that an older version did not write has its default.

    Raises:
        ValueError: there are no such settings, or one of them is unknown.
    """
    given = settings.get(name)
    if not isinstance(given, dict):
        raise ValueError(f"config.json is damaged: it has no settings called {name}")
    for key in given.keys() - {field.name for field in fields(kind)}:
        raise ValueError(f"another version of this program wrote it, which had {name}.{key}; use that version")
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    return kind(**values)


def _read_length(settings: Mapping[str, Any], name: str) -> int:
    length = settings.get(name)
    if type(length) is not int or not 1 <= length <= 65_536:
        raise ValueError(f"config.json is damaged: {name} must be a length; got {length!r}")
    return length


def _read_weights(path: Path) -> dict[str, np.ndarray]:
    weights = read_safetensors(path)
    for name, array in weights.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{path.name} is damaged: {name} holds NaN or infinite numbers; train the run again")
    return weights
