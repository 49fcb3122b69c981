"""Read a configuration from a file: JSON or TOML with the fields of `Config`."""

import dataclasses
import json
import tomllib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from jax_attn.settings import FAMILIES, ModelConfig, other_family
from train.config import Config
from train.machine.whole_files import without_repetition
from train.presets import PRESETS, in_family
from train.setting import ConfigError

NO_SETTINGS = ("format", "preset", "max_source_len", "max_target_len", "data_sha256")
"""What config.json of a run folder holds beside the settings."""


def read_config(path: Path, family: str | None = None, given: str | None = None) -> tuple[str, Config]:
    """Return the preset that a file names (`preset: book`; demo without a name), changed by the file's settings.

    Args:
        family: of the model, instead of the file's.
        given: the preset of the command line, which takes the place of a name in the file.

    Raises:
        ConfigError: there is no such file, it holds something else, or it names another preset than the one given.
    """
    values = _read_file(path)
    preset = values.get("preset", given or "demo")
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ConfigError(f"{path}: there is no preset {preset!r}; there are: {', '.join(PRESETS)}")
    if given not in (None, preset):
        raise ConfigError(f"{path} changes the preset {preset}, and not {given}: name {preset}, or leave the name out")
    values = {key: value for key, value in values.items() if key not in (*NO_SETTINGS, "out")}  # each run has its own
    try:
        default = PRESETS[preset]
        if family is not None:
            values = _merge(values, {"model": {"family": family}})
        model = values.get("model")
        if isinstance(model, dict) and model.get("family") in tuple(FAMILIES):
            default = in_family(default, model["family"])
        return preset, read_settings(Config, _merge(dataclasses.asdict(default), values))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def _merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the old settings with the new ones in their places, section by section."""
    both_sections = {key for key in new if isinstance(old.get(key), dict) and isinstance(new[key], dict)}
    return {**old, **new, **{key: _merge(old[key], new[key]) for key in both_sections}}


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            values = tomllib.loads(text)
        else:
            values = json.loads(text, object_pairs_hook=without_repetition)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} is no valid {'TOML' if path.suffix == '.toml' else 'JSON'}: {reason}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold settings by name; got {type(values).__name__}")
    return values


Settings = TypeVar("Settings")


def read_settings(kind: type[Settings], values: Mapping[str, Any], path: str = "") -> Settings:
    """Make a dataclass of settings from what JSON holds. A setting that is not given has its default.

    Raises:
        ValueError: a setting that there is not, or a value of another type; the message names it.
    """
    hints = get_type_hints(kind, include_extras=True)
    unknown = sorted(map(str, values.keys() - hints.keys()))
    if unknown:
        raise ValueError(f"there is no setting {path}{unknown[0]}")
    return kind(**{name: _read(hints[name], value, f"{path}{name}") for name, value in values.items()})


def _read(hint: Any, value: Any, name: str) -> Any:
    """Return a value as its type hint says; ValueError if it is something else."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _read(arguments[0], value, name)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _read(next(argument for argument in arguments if argument is not type(None)), value, name)
    if origin is Literal and value in arguments:
        return value
    if hint is ModelConfig and isinstance(value, dict):
        family = value.get("family", "recurrent")
        if family not in tuple(FAMILIES):
            raise ValueError(f"{name}.family must be {' or '.join(FAMILIES)}; got {family!r}")
        hint = FAMILIES[family]
        for setting in value:
            if other := other_family(setting, family):
                raise ValueError(f"{name}.{setting} needs {name}.family {other}; the model's family is {family}")
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and isinstance(value, dict):
        return read_settings(hint, value, f"{name}.")
    if origin is tuple and isinstance(value, str):
        value = [value]
    if origin is tuple and isinstance(value, list | tuple) and (... in arguments or len(value) == len(arguments)):
        return tuple(_read(arguments[0], item, name) for item in value)
    if origin is dict and isinstance(value, dict):
        return {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}
    if hint is Path and isinstance(value, str | Path):
        return Path(value)
    if hint is float and type(value) in (int, float):
        return float(value)
    if hint in (int, str, bool) and type(value) is hint:
        return value
    raise ValueError(f"{name} must be {_describe(hint)}; got {value!r}")


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    if get_origin(hint) is tuple and ... not in get_args(hint):
        return f"{len(get_args(hint))} values"
    return "settings" if hint is ModelConfig or dataclasses.is_dataclass(hint) else getattr(hint, "__name__", str(hint))
