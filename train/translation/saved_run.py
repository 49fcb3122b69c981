"""Read a run folder: everything that a translator needs, or an error that says what is wrong with the folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from errno import ENOENT
from pathlib import Path
from typing import Any

import numpy as np

from jax_attn.checkpoints import read_safetensors
from train.config import Config, ConfigError, ModelConfig, SearchConfig, wrong_numbers
from train.config_file import NO_SETTINGS, read_settings
from train.data.tokens import Tokenizer
from train.data.vocabulary import FILES, Vocabulary, load_vocabularies
from train.manifest import DamageError, read_json
from train.run_folder import FORMAT, MANIFEST, WEIGHTS, check_files


@dataclass(frozen=True)
class SavedRun:
    """The run that a folder holds, trained by either framework, on this machine or another."""

    folder: Path
    model: ModelConfig
    search: SearchConfig
    tokenizer: Tokenizer
    source: Vocabulary
    target: Vocabulary
    max_source_len: int
    """The tokens of the longest source in training. The model reads no more of a sentence."""
    max_target_len: int
    """The tokens of the longest target in training, `<eos>` included."""
    weights: dict[str, np.ndarray]
    """The parameters under PyTorch's names."""
    settings: Mapping[str, Any]
    """The content of config.json."""

    @classmethod
    def load(cls, folder: Path | str) -> "SavedRun":
        """Read a folder.

        Raises:
            ConfigError: the folder does not exist, holds no run, a damaged run or one of a newer version, or weights
                that are NaN or infinite.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {folder}; name the run folder that `python -m train.nmt` wrote")
        try:
            return cls._read(folder)
        except FileNotFoundError as error:
            reason = f"it has no {Path(error.filename).name}; name the run folder that `python -m train.nmt` wrote"
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
        raise ConfigError(f"{folder} holds no run that can be loaded: {reason}")

    @classmethod
    def _read(cls, folder: Path) -> "SavedRun":
        for name in ("config.json", WEIGHTS):
            if not (folder / name).is_file():
                raise FileNotFoundError(ENOENT, "", folder / name)
        settings = read_json(folder / "config.json")
        version = settings.get("format", 1)
        if type(version) is not int or not 1 <= version <= FORMAT:
            raise ValueError(
                f"config.json has format {version!r}, and this version of the program reads up to {FORMAT}"
            )
        model = _read_section(ModelConfig, settings, "model")
        search = _read_section(SearchConfig, settings, "search")
        tokenizer = _read_tokenizer(settings)
        if (folder / MANIFEST).exists():  # a folder without one is of an older version
            needed = "config.json", WEIGHTS, *FILES[tokenizer]
            try:
                check_files(folder, needed)
            except DamageError:  # the weights may have been replaced by a run that is still training
                check_files(folder, needed)
        source, target = load_vocabularies(folder, tokenizer)
        old_name = "max_source_words"  # of folders that hold words alone
        source_name = old_name if old_name in settings else "max_source_len"
        return cls(
            folder,
            model,
            search,
            tokenizer,
            source,
            target,
            _read_length(settings, source_name),
            _read_length(settings, "max_target_len"),
            _read_weights(folder / WEIGHTS),
            settings,
        )

    def config(self) -> Config:
        """Return the whole configuration; ConfigError if another version wrote it, with settings unknown here."""
        try:
            return read_settings(Config, {key: v for key, v in self.settings.items() if key not in NO_SETTINGS})
        except ValueError as error:
            raise ConfigError(f"{self.folder}/config.json is of another version: {error}") from error


def _read_section(kind: Any, settings: Mapping[str, Any], name: str) -> Any:
    """Return the settings called `name`. A setting that an older version did not write has its default."""
    given = settings.get(name)
    if not isinstance(given, dict):
        raise ValueError(f"config.json is damaged: it has no settings called {name}")
    try:
        section = read_settings(kind, given, f"{name}.")
    except ValueError as error:
        raise ValueError(f"config.json is damaged or of another version of this program: {error}") from error
    wrong = wrong_numbers(section, lambda field: f"{name}.{field}")
    if wrong:
        raise ValueError(f"config.json is damaged: {'; '.join(wrong)}")
    return section


def _read_tokenizer(settings: Mapping[str, Any]) -> Tokenizer:
    corpus = settings.get("corpus")
    tokenizer = corpus.get("tokenizer", "words") if isinstance(corpus, dict) else None
    if not isinstance(tokenizer, str) or tokenizer not in FILES:
        raise ValueError(f"config.json is damaged: corpus.tokenizer must be one of {', '.join(FILES)}; got {tokenizer}")
    return tokenizer  # type: ignore[return-value] # a key of FILES


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
