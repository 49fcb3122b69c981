"""Translators that others have trained: what every format of a folder gives, and the model that it makes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike

from jax_attn.models import EncoderDecoder, TransformerDecoder, TransformerEncoder
from jax_attn.weights import from_torch

OF_DECODER = ("output_bias", "start", "never", "renormalize", "alignment_layer", "alignment_head")
"""Settings that the decoder has, and the encoder does not."""


@dataclass(frozen=True)
class Side:
    """The tokens of one language and how text is cut into them."""

    tokens: list[str]
    """In the order of the folder's ids."""
    special: tuple[int | None, ...]
    """The ids of the decoder's first token, None if there is none, of the end and of the unknown token."""
    pieces: bytes | None
    """The model of sentencepiece; None if tokens are what spaces separate."""
    language: str = "en"
    """The language by whose rules Moses normalises punctuation."""


@dataclass(frozen=True)
class Pretrained:
    """A translator as its folder has it. Ids are those of the folder."""

    settings: dict[str, Any]
    """Of the Transformer, by the names of `TransformerDecoder`; `encoder_layers`; `tie_embeddings`, one of "none",
    "output" (the decoder's embedding is the output layer), "input" (it is the encoder's embedding) and "all"."""
    weights: dict[str, np.ndarray]
    """By the names of `weights.to_torch`, in float32 or as the file has them."""
    source: Side
    target: Side
    max_len: int
    """The most tokens of a sentence."""
    search: dict[str, Any] = field(default_factory=dict)
    """The search that its makers recommend, by the names of `SearchOptions` and `max_len`."""
    normalizes: bool = False
    """Whether punctuation was normalised before the text was cut."""
    licence: str | None = None

    def module(self, param_dtype: DTypeLike = jnp.float32) -> EncoderDecoder:
        """Return the model without its parameters."""
        settings = self.settings | {"param_dtype": param_dtype}
        ties, layers = settings.pop("tie_embeddings"), settings.pop("encoder_layers")
        of_encoder = {name: value for name, value in settings.items() if name not in OF_DECODER}
        tied = ties in ("output", "all")
        return EncoderDecoder(
            TransformerEncoder(len(self.source.tokens), **of_encoder | {"num_layers": layers}),
            TransformerDecoder(len(self.target.tokens), **settings, tie_embeddings=tied),
            share_embedding=ties in ("input", "all"),
        )

    def load(self, param_dtype: DTypeLike = jnp.float32) -> tuple[nn.Module, dict[str, Any]]:
        """Return the model and its parameters; ValueError if the weights have other names or shapes."""
        module = self.module(param_dtype)
        token = jnp.zeros((1, 1), jnp.int32)
        like = jax.eval_shape(module.init, jax.random.key(0), token, token)
        try:
            return module, from_torch(self.weights, like)
        except (KeyError, TypeError) as error:
            raise ValueError(error.args[0]) from error


def read_json(path: Path, kind: type = dict) -> Any:
    """Read an object or a list of JSON; ValueError if the file holds something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged or cut short: it is no JSON ({error})") from error
    if not isinstance(content, kind):
        raise ValueError(f"{path} must hold a JSON {kind.__name__}; got {type(content).__name__}")
    return content


def require_files(folder: Path, names: Sequence[str]) -> None:
    """Raise ValueError, with all the files that the folder lacks."""
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} has no {', '.join(missing)}")


def require_rows(name: str, tokens: Sequence[str], rows: int) -> None:
    """Raise ValueError unless there are as many tokens as rows of weights."""
    if len(tokens) != rows:
        raise ValueError(f"the vocabulary of the {name} has {len(tokens)} tokens, and the weights have {rows} rows")


def as_float32(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Widen float16 and bfloat16, which changes no number; ValueError for NaN and infinity."""
    wide = {
        name: array.astype(np.float32) if array.dtype.itemsize < 4 else np.asarray(array)
        for name, array in weights.items()
    }
    for name, array in wide.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name} holds NaN or infinite numbers")
    return wide
