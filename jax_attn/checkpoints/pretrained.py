"""Translators that others have trained: what every format of a folder gives, and the model that it makes."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike

from jax_attn.models.build import build_model
from jax_attn.ranges import Range
from jax_attn.settings import Ties, TransformerConfig
from jax_attn.weights import from_torch


@dataclass(frozen=True)
class Language:
    """The tokens of one language and how text is cut into them."""

    tokens: list[str]
    """In the order of the folder's ids."""
    special: tuple[int, int, int]
    """The ids of the decoder's first token, of the end and of the unknown token."""
    pieces: bytes | None
    """The model of sentencepiece; None if tokens are what spaces separate."""
    moses: str | None = None
    """The language by whose rules Moses normalises punctuation before; None leaves it."""
    languages: list[str] = field(default_factory=list)
    """The tokens that name a language, if both sides begin with one: the source's is read, the target's is forced."""


@dataclass(frozen=True)
class Pretrained:
    """A translator as its folder has it. Ids are those of the folder."""

    settings: TransformerConfig
    weights: dict[str, np.ndarray]
    """By the names of `weights.to_torch`, in float32 or float64."""
    source: Language
    target: Language
    max_len: int
    """The most tokens of a sentence."""
    search: dict[str, Any]
    """The search that its makers recommend, by the names of `SearchOptions` and `max_len`."""

    def load(self, param_dtype: DTypeLike = jnp.float32) -> tuple[nn.Module, dict[str, Any]]:
        """Return the model and its parameters; ValueError if the weights have other names or shapes."""
        module = build_model(self.settings, len(self.source.tokens), len(self.target.tokens), param_dtype=param_dtype)
        token = jnp.zeros((1, 1), jnp.int32)
        like = jax.eval_shape(module.init, jax.random.key(0), token, token)
        try:
            return module, from_torch(self.weights, like)
        except (KeyError, TypeError) as error:
            raise ValueError(error.args[0]) from error

    def check(self) -> None:
        """Do as `load` without memory for the parameters; ValueError if the weights have other names or shapes."""
        jax.eval_shape(lambda weights: replace(self, weights=weights).load()[1], self.weights)


class Option(NamedTuple):
    """What a folder's file may say under one name. Where it says nothing, or null, the default holds."""

    kind: Any
    """A type of JSON, perhaps with a `Range`; or a tuple of all values that are supported."""
    default: Any = ...
    """`...` if the file must say it."""


def only(value: Any, *names: str) -> dict[str, Option]:
    """Return options that are supported where they change nothing: with one value, or with nothing for None."""
    return dict.fromkeys(names, Option((None, [], {}) if value is None else (value,), value))


def read_options(content: Mapping[str, Any], options: Mapping[str, Option], file: str) -> dict[str, Any]:
    """Return the value of each option. Other names change no result, and are ignored.

    Raises:
        ValueError: a value is of another kind or not supported, or missing; the message names it.
    """
    found = {}
    for name, (kind, default) in options.items():
        value = default if content.get(name) is None else content[name]
        if value is ... or (value is not default and not _is(value, kind)):
            given = "nothing" if value is ... else shorten(json.dumps(value))
            raise ValueError(f"{name} of {file} must be {_describe(kind)}; got {given}")
        found[name] = value
    return found


def _is(value: Any, kind: Any) -> bool:
    """Return whether a value of JSON is of a kind; true is no number."""
    if isinstance(kind, tuple):
        return any(value == each and (type(value) is bool) == (type(each) is bool) for each in kind)
    if isinstance(kind, UnionType):
        return any(_is(value, each) for each in get_args(kind))
    hint, *limits = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    if get_origin(hint) is list:
        return type(value) is list and all(_is(each, *get_args(hint)) for each in value)
    if type(value) not in ((int, float) if hint is float else (hint,)):
        return False
    return all(limit.error("", value) is None for limit in limits if isinstance(limit, Range))


def _describe(kind: Any) -> str:
    if isinstance(kind, tuple):
        return f"{' or '.join(map(json.dumps, kind))}, since no other value is supported"
    if isinstance(kind, UnionType):
        return " or ".join(map(_describe, get_args(kind)))
    hint, *limits = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", list[int]: "a list of ids"}
    ranges = "".join(f" in [{each.lowest}, {each.highest}]" for each in limits if isinstance(each, Range))
    return names.get(hint, "a list of lists of ids") + ranges


def shorten(text: str, longest: int = 80) -> str:
    """Return a text that fits into a message."""
    return text if len(text) <= longest else f"{text[:longest]}…"


def name_layers(settings: TransformerConfig, layer: Mapping[str, str]) -> dict[str, str]:
    """Return a format's name for each tensor of the layers, and of the norms after them.

    Args:
        settings: of the Transformer.
        layer: the format's names for the parts of a decoder's layer.
    """
    last = ("encoder", "decoder") if settings.norm == "pre" else ()
    names = {f"{part}.last_norm.{leaf}": f"{part}.layer_norm.{leaf}" for part in last for leaf in ("weight", "bias")}
    return names | {
        f"{part}.layers.{number}.{ours}.{leaf}": f"{part}.layers.{number}.{theirs}.{leaf}"
        for part, layers in (("encoder", settings.encoder_layers), ("decoder", settings.num_layers))
        for number in range(layers or settings.num_layers)
        for ours, theirs in layer.items()
        if part == "decoder" or not ours.startswith("cross_attention")
        for leaf in ("weight", "bias")
    }


def name_rows(ties: str) -> dict[str, str]:
    """Return the tensors with a row for each token, by their roles: source, target and output, and the bias."""
    target, is_output = "decoder.embedding.weight", ties in ("output", "all")
    return {
        "source": target if ties in ("input", "all") else "encoder.embedding.weight",
        "target": target,
        "output": target if is_output else "decoder.dense.weight",
        "bias": "decoder.dense_bias" if is_output else "decoder.dense.bias",
    }


def require_matrices(rows: Mapping[str, np.ndarray]) -> None:
    """Raise ValueError unless the tensors with a row for each token, see `name_rows`, are matrices."""
    for role in ("source", "target", "output"):
        if rows[role].ndim != 2:
            raise ValueError(f"the embeddings of the {role} must be [N, D]; got {list(rows[role].shape)}")


def find_languages(tokens: Sequence[str]) -> list[str]:
    """Return the tokens that name a language in the models of fairseq: eng_Latn in NLLB, __en__ in M2M100."""
    return [token for token in tokens if re.fullmatch("[a-z]{3}_[A-Z][a-z]{3}|__[a-z]{2,3}__", token)]


def find_ties(rows: Mapping[str, np.ndarray]) -> Ties:
    """Return `tie_embeddings` of the matrices of `name_rows`: those that are equal become one."""
    is_source, is_output = (np.array_equal(rows["target"], rows[role]) for role in ("source", "output"))
    if is_source:
        return "all" if is_output else "input"
    return "output" if is_output else "none"


def rename(
    settings: TransformerConfig,
    layer: Mapping[str, str],
    layers: Mapping[str, np.ndarray],
    rows: Mapping[str, np.ndarray],
) -> tuple[TransformerConfig, dict[str, np.ndarray]]:
    """Return the settings with the ties that the rows have, and the weights by our names.

    float16 and bfloat16 are widened to float32, which changes no number.

    Args:
        settings: of the Transformer.
        layer: see `name_layers`.
        layers: the tensors of the layers by the format's names.
        rows: the tensors with a row for each token by their roles, see `name_rows`.

    Raises:
        ValueError: tensors are missing, are others, or hold integers, NaN or infinity.
    """
    ties, names = find_ties(rows), name_layers(settings, layer)
    for problem, found in (
        ("missing", set(names.values()) - set(layers)),
        ("unknown", set(layers) - {*names.values()}),
    ):
        if found:
            named = ", ".join(map(str, sorted(found)[:3])) + f" and {len(found) - 3} more" * (len(found) > 3)
            raise ValueError(f"the weights do not fit the configuration; {problem}: {shorten(named, 200)}")
    weights = {ours: layers[theirs] for ours, theirs in names.items()}
    weights |= {ours: rows[role] for role, ours in name_rows(ties).items() if role in rows}
    for name, array in weights.items():
        weights[name] = array.astype(np.float32) if array.dtype.itemsize < 4 else array
        if array.dtype.kind in "biuc" or not np.isfinite(weights[name]).all():
            raise ValueError(f"{name} must hold finite numbers; got {array.dtype}, or NaN or infinity")
    return replace(settings, tie_embeddings=ties), weights


def read_json(path: Path, kind: type = dict) -> Any:
    """Read an object or a list of JSON; ValueError if the file holds something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or cut short: it is no JSON ({error})") from error
    if not isinstance(content, kind):
        raise ValueError(f"{path} must hold a JSON {kind.__name__}; got {type(content).__name__}")
    return content


def read_language(
    folder: Path, name: str, tokens: list[str], special: Sequence[str], rows: int, moses: str | None
) -> Language:
    """Return one language of a folder; ValueError unless there is a token for each row, with the special ones."""
    if len(tokens) != rows:
        raise ValueError(f"the vocabulary of the {name} has {len(tokens)} tokens, and the weights have {rows} rows")
    if missing := [token for token in special if token not in tokens]:
        raise ValueError(f"the vocabulary of the {name} has no {', '.join(missing)}")
    start, end, unknown = map(tokens.index, special)
    if len({start, end, unknown}) < 3:
        raise ValueError(f"the first token, the end and the unknown token must be three; got {', '.join(special)}")
    paths = (folder / f"{name}.spm", folder / "sentencepiece.bpe.model")  # of one language, and of many
    path = next((each for each in paths if each.is_file()), paths[0])
    pieces = path.read_bytes() if path.is_file() else None
    if pieces == b"":
        raise ValueError(f"{path} is empty; copy it again")
    return Language(tokens, (start, end, unknown), pieces, moses)
