"""A run folder read again: everything that a translator needs, or an error that says what is wrong with the folder."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np

from jax_attn.checkpoints import read_safetensors
from train.checkpoint import FORMAT
from train.config import ConfigError, CorpusConfig, ModelConfig, SearchConfig
from train.data.tokens import Tokenizer
from train.data.vocabulary import Vocabulary

Settings = TypeVar("Settings", CorpusConfig, ModelConfig, SearchConfig)


@dataclass(frozen=True)
class SavedRun:
    """What `train.checkpoint.RunFolder` wrote, whichever framework and whichever machine trained it."""

    folder: Path
    model: ModelConfig
    search: SearchConfig
    tokenizer: Tokenizer
    source: Vocabulary
    target: Vocabulary
    max_source_words: int
    """The longest source that training saw; more is not read."""
    max_target_len: int
    """The longest target that training saw, `<eos>` counted in."""
    weights: dict[str, np.ndarray]
    """The parameters under PyTorch's names."""

    @classmethod
    def load(cls, folder: Path | str) -> "SavedRun":
        """Read a folder.

        Raises:
            ConfigError: a folder that is none, that holds no run, a damaged one or one of another version, or numbers
                that are not finite.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {folder}; name the run folder that `python -m train.nmt` wrote")
        try:
            return cls._load(folder)
        except FileNotFoundError as error:
            reason = f"it has no {Path(error.filename).name}; name the run folder that `python -m train.nmt` wrote"
        except OSError as error:
            reason = str(error)
        except ValueError as error:
            reason = " ".join(str(error).split())
        raise ConfigError(f"{folder} holds no run that can be loaded: {reason}")

    @classmethod
    def _load(cls, folder: Path) -> "SavedRun":
        settings = _read_json(folder / "config.json")
        if not isinstance(settings, dict):
            raise ValueError("config.json is damaged: it holds no settings")
        version = settings.get("format", 1)
        if version != FORMAT:
            raise ValueError(
                f"it is of format {version} and this version reads format {FORMAT}; use the one that wrote it"
            )
        return cls(
            folder,
            _read_settings(ModelConfig, settings, "model"),
            _read_settings(SearchConfig, settings, "search"),
            _read_settings(CorpusConfig, settings, "corpus").tokenizer,
            _read_vocabulary(folder / "source.json"),
            _read_vocabulary(folder / "target.json"),
            _read_length(settings, "max_source_words"),
            _read_length(settings, "max_target_len"),
            _read_weights(folder / "model.safetensors"),
        )


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is damaged, it is not JSON ({error}); copy the folder again") from error


def _read_settings(kind: type[Settings], settings: Mapping[str, Any], name: str) -> Settings:
    """The settings called `name`; what is not there is as by default, since that is how it was before it was a setting.

    Raises:
        ValueError: no such settings, one that this version does not know, or one of a wrong type.
    """
    given = settings.get(name)
    if not isinstance(given, dict):
        raise ValueError(f"config.json is damaged: it has no settings called {name}")
    hints = get_type_hints(kind)
    unknown = sorted(set(given) - set(hints))
    if unknown:
        known = ", ".join(f"{name}.{key}" for key in unknown)
        raise ValueError(f"it was written by another version of this program, which had {known}; use that one")
    for key, value in given.items():
        if not _fits(value, hints[key]):
            raise ValueError(f"config.json is damaged: {name}.{key} is {value!r}")
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    return kind(**values)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value from JSON may stand where a field of a configuration says `hint`."""
    options = get_args(hint)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(hint, type) and not options:
        return type(value) is hint
    if NoneType in options:
        return value is None or any(_fits(value, option) for option in options if option is not NoneType)
    if Ellipsis in options:
        return isinstance(value, list) and all(_fits(part, options[0]) for part in value)
    return value in options  # a Literal


def _read_vocabulary(path: Path) -> Vocabulary:
    words = _read_json(path)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"{path.name} is damaged: it must be a list of words")
    return Vocabulary(tuple(words))


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
