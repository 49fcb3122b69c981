"""Read a configuration from a file: JSON, TOML or YAML with the fields of `Config`."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from train.config import ConfigError

NO_SETTINGS = {"format", "preset", "out", "max_source_words", "max_source_len", "max_target_len", "data_sha256"}
"""What config.json of a run folder holds beside the settings; and `out`, which each run has for itself."""


def read_options(path: Path) -> tuple[str, list[str]]:
    """Return the preset that a file begins with (`preset: book`), by default `demo`, and its settings as options.

        {"epochs": 3, "model": {"cell": "lstm", "bridge": false}}  ->  --epochs 3 --model.cell lstm --model.no-bridge

    Raises:
        ConfigError: there is no such file, or it holds something else.
    """
    settings = _read(path)
    preset = settings.get("preset", "demo")
    return preset, list(_options({key: value for key, value in settings.items() if key not in NO_SETTINGS}))


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            settings = tomllib.loads(text)
        elif path.suffix in (".yaml", ".yml"):
            settings = _read_yaml(text)
        else:
            settings = json.loads(text)
    except OSError as error:
        raise ConfigError(f"the configuration {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"the configuration {path} is no valid {path.suffix or 'JSON'}: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"the configuration {path} must hold settings by name; got {type(settings).__name__}")
    return settings


def _read_yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _options(settings: Mapping[str, Any], section: str = "") -> Iterator[str]:
    """Yield settings as options of the command line."""
    for key, value in settings.items():
        name = f"{section}{str(key).replace('_', '-')}"
        if isinstance(value, dict):
            # The optimiser's own settings are options of the training.
            yield from _options(value, section if key == "optimizer_settings" else f"{name}.")
        elif isinstance(value, bool):
            yield f"--{name}" if value else f"--{section}no-{str(key).replace('_', '-')}"
        elif isinstance(value, list | tuple):
            yield from (f"--{name}", *map(str, value)) if value else ()
        elif value is not None:
            yield from (f"--{name}", str(value))
