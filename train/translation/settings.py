"""Make settings from what a JSON file holds: every value has its type, and no name is unknown."""

import dataclasses
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Settings = TypeVar("Settings")


def read_settings(kind: type[Settings], values: Mapping[str, Any], path: str = "") -> Settings:
    """Make a dataclass of settings, those within it included. A setting that is not given has its default.

    Raises:
        ValueError: a setting that there is not, or a value of another type; the message names it.
    """
    hints = get_type_hints(kind, include_extras=True)
    unknown = sorted(values.keys() - hints.keys())
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
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and isinstance(value, dict):
        return read_settings(hint, value, f"{name}.")
    if (origin or hint) is tuple and isinstance(value, list):
        return tuple(_read(arguments[0], item, name) for item in value)
    if (origin or hint) is dict and isinstance(value, dict):
        return {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is float and type(value) in (int, float):
        return float(value)
    if hint in (int, str, bool) and type(value) is hint:
        return value
    raise ValueError(f"{name} must be {_describe(hint)}; got {value!r}")


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    return "settings" if dataclasses.is_dataclass(hint) else getattr(hint, "__name__", str(hint))
