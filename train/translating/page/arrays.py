"""Read the attention of any model from a file of arrays, and check it. The help of `train.page` explains the form."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from train.setting import ConfigError
from train.translating.maps import AttentionMap, Maps

REQUIRED = ("source", "target", "weights")
OPTIONAL = ("source_weights", "target_weights", "read")

MAX_UNPACKED = 200_000_000
"""Bytes that the arrays of an .npz may unpack to: more than the largest page's weights take in float64."""

TOLERANCE = 0.02
"""How far the sum of a row may be from 1: the weights may be those of bfloat16."""


class Sentence(NamedTuple):
    """The tokens of both sides, and the attention between them."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    maps: Maps


def read_arrays(path: Path) -> list[Sentence]:
    """Read the sentences of a file.

    Raises:
        ConfigError: the file cannot be read, or its arrays do not fit together.
    """
    formats = {".npz": _from_npz, ".json": _from_json}
    if path.suffix not in formats:
        raise ConfigError(f"the file must end in .npz or .json; got {path}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    sentences = formats[path.suffix](content, path)
    if not sentences:
        raise ConfigError(f"{path} holds no sentence")
    names = [str(path)] if len(sentences) == 1 else [f"sentence {i} of {path}" for i in range(len(sentences))]
    return [_sentence(given, name) for given, name in zip(sentences, names, strict=True)]


def _from_json(content: bytes, path: Path) -> list[Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    return found if isinstance(found, list) else [found]


def _from_npz(content: bytes, path: Path) -> list[Any]:
    """Read arrays named by a key or, of several sentences, by a number, a dot and a key. No pickle is read."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            size = sum(member.file_size for member in file.zip.infolist())
            arrays = dict(file) if size <= MAX_UNPACKED else {}
    except Exception as error:  # NumPy and zipfile raise a dozen kinds for what is damaged
        raise ConfigError(f"{path} must be of numpy.savez, with tokens as arrays of text and no pickle") from error
    if size > MAX_UNPACKED:
        raise ConfigError(f"{path} unpacks to {size:,} bytes; a page has room for {MAX_UNPACKED:,}")
    sentences: dict[str, dict[str, Any]] = {}
    for name, array in arrays.items():
        number, dot, key = name.rpartition(".")
        sentences.setdefault(number if dot else "0", {})[key] = array
    wrong = sorted(sentences.keys() - set(map(str, range(len(sentences)))))
    if wrong:
        raise ConfigError(f"the sentences of {path} must be numbered 0 to {len(sentences) - 1}; got {', '.join(wrong)}")
    return [sentences[str(i)] for i in range(len(sentences))]


def _sentence(given: Any, name: str) -> Sentence:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{name} must be an object with {', '.join(REQUIRED)}; got {type(given).__name__}")
    missing, unknown = set(REQUIRED) - given.keys(), given.keys() - {*REQUIRED, *OPTIONAL}
    if missing:
        raise ConfigError(f"{name} has no {', '.join(sorted(missing))}")
    if unknown:
        raise ConfigError(f"{name} has {', '.join(sorted(unknown))}; it may have {', '.join(REQUIRED + OPTIONAL)}")
    source, target = _tokens(given["source"], f"source of {name}"), _tokens(given["target"], f"target of {name}")
    read = _tokens(given.get("read", given["target"]), f"read of {name}")

    axes: dict[str, Any] = {
        "weights": ("cross", target, source),
        "source_weights": ("source", source, source),
        "target_weights": ("target", target, read),
    }
    maps = []
    for key, (kind, rows, columns) in axes.items():
        if key in given:
            weights = _weights(given[key], len(rows), len(columns), f"{key} of {name}")
            maps.append(AttentionMap(kind, rows, columns, weights, layer=len(weights) - 1))
    return Sentence(source, target, maps)


def _tokens(given: Any, name: str) -> tuple[str, ...]:
    tokens = given.tolist() if isinstance(given, np.ndarray) else given
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise ConfigError(f"{name} must be a list of one or more texts, one for each token")
    return tuple(token.encode("utf-8", "backslashreplace").decode() for token in tokens)  # a lone surrogate escaped


def _weights(given: Any, rows: int, columns: int, name: str) -> Float[np.ndarray, "layer head row column"]:
    try:
        weights = np.asarray(given, float)
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"{name} must be numbers [layers, heads, {rows}, {columns}]") from error
    if weights.ndim != 4 or weights.shape[2:] != (rows, columns) or not weights.size:
        raise ConfigError(
            f"{name} must be [layers, heads, {rows}, {columns}], with a row and a column for each token; "
            f"got {list(weights.shape)}"
        )
    sums = np.where((weights >= 0).all(axis=-1), weights.sum(axis=-1), np.nan)  # NaN for what is no probability
    wrong = np.argwhere(~(np.abs(sums - 1) <= TOLERANCE))
    if len(wrong):
        layer, head, row = wrong[0].tolist()
        numbers = weights[layer, head, row]
        raise ConfigError(
            f"each row of {name} must be probabilities with the sum 1; row {row} of layer {layer}, head {head} has "
            f"the sum {numbers.sum():.4g} and the least {numbers.min():.4g}"
        )
    return weights
