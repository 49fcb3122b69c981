"""CTranslate2's translators: model.bin, the vocabularies, and config.json since version 3.

The layout of model.bin is that of `ctranslate2.specs.model_spec`.
"""

import re
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np

from jax_attn.checkpoints.pretrained import (
    Option,
    Pretrained,
    find_languages,
    only,
    read_json,
    read_language,
    read_options,
    rename,
    require_matrices,
)
from jax_attn.functional.positions import sinusoidal_positions
from jax_attn.ranges import Range
from jax_attn.settings import Activation, Sinusoids, TransformerConfig

VERSIONS = range(2, 7)
"""The versions of the file that are read."""
DTYPES: tuple[Any, ...] = (np.float32, np.int8, np.int16, np.int32, np.float16, jnp.bfloat16)
"""The dtypes by their number in a file, since version 4."""
BY_SIZE: dict[int, Any] = {4: np.float32, 2: np.int16, 1: np.int8}
"""The dtypes by the bytes of one number, in files before version 4."""
ACTIVATIONS: dict[int, Activation] = {0: "relu", 2: "silu", 3: "gelu"}
OPTIONS = {
    **only(False, "add_source_bos"),
    "add_source_eos": Option(bool, False),
    "layer_norm_epsilon": Option(Annotated[float, Range(1e-12, 1)], 1e-5),
    "decoder_start_token": Option(str, None),
    "bos_token": Option(str, "<s>"),
    "eos_token": Option(str, "</s>"),
    "unk_token": Option(str, "<unk>"),
}
"""The options that config.json may have."""
LONGEST = 1024
"""The tokens of a source that CTranslate2 reads, unless it has fewer positions."""
REFUSED = (
    "with_relative_position", "alibi", "scale_outputs", "multi_query_attention", "rotary_dim", "sliding_window",
    "queries_scale",
)  # fmt: skip
"""Attributes of models of other kinds, where they are not 0."""

LAYER = {
    **{f"self_attention.W_{name}": f"self_attention.linear_0.{name}" for name in "qkv"},
    "self_attention.W_o": "self_attention.linear_1",
    "self_attention_norm": "self_attention.layer_norm",
    "cross_attention.W_q": "attention.linear_0",
    **{f"cross_attention.W_{name}": f"attention.linear_1.{name}" for name in "kv"},
    "cross_attention.W_o": "attention.linear_2",
    "cross_attention_norm": "attention.layer_norm",
    "feed_forward.dense1": "ffn.linear_0",
    "feed_forward.dense2": "ffn.linear_1",
    "feed_forward_norm": "ffn.layer_norm",
}
ROWS = {
    "source": "encoder.embeddings.weight",
    "target": "decoder.embeddings.weight",
    "output": "decoder.projection.weight",
    "bias": "decoder.projection.bias",
}


def read(folder: Path) -> Pretrained:
    """Read a folder. Weights of int8 and int16 are divided by their scales.

    Raises:
        OSError, ValueError: a file is missing, cut short or damaged, or the model is of another kind.
    """
    spec, tensors = read_file(folder / "model.bin")
    if not spec.startswith("Transformer") or "decoder/layer_0/attention/linear_0/weight" not in tensors:
        raise ValueError(f"{folder} holds a {spec}, which is not supported; supported are Transformers that translate")
    numbers = [name for name, value in tensors.items() if value.ndim == 0 and value != 0]
    if strange := sorted(name for name in numbers if name.rpartition("/")[2] in REFUSED):
        raise ValueError(f"{folder} holds a Transformer with {', '.join(strange)}, which is not supported")
    path = folder / "config.json"
    config = read_options(read_json(path) if path.is_file() else {}, OPTIONS, path.name)

    def attribute(name: str, default: int, part: str = "decoder") -> int:
        """Return an attribute of a part. Old files have one for both parts."""
        value = tensors.get(f"{part}/{name}", tensors.get(name, np.array(default)))
        if value.ndim or value.dtype.kind != "i":
            raise ValueError(f"{name} of model.bin must be a whole number; got {value.dtype} {list(value.shape)}")
        return int(value)

    arrays = take_apart(tensors)
    is_marian = bool(attribute("start_from_zero_embedding", 0))
    tokens, rows = find_rows(folder, arrays, config, is_marian)
    tables = [arrays.pop(name) for name in list(arrays) if name.endswith("position_encodings.encodings")]
    size = rows["target"].shape[1]
    defaults = {"num_heads": 16 if "Big" in spec else 8, "activation": 0}
    if other := [name for name, n in defaults.items() if attribute(name, n) != attribute(name, n, "encoder")]:
        raise ValueError(f"{other[0]} of model.bin must be the same in encoder and decoder, which is supported")
    activation = attribute("activation", defaults["activation"])
    if activation not in ACTIVATIONS:
        raise ValueError(f"the activation must be one of {', '.join(ACTIVATIONS.values())}; got number {activation}")
    settings = TransformerConfig(
        embed_size=size,
        num_hiddens=len(arrays.get("encoder.layers.0.ffn.linear_0.bias", ())),
        num_layers=_count_layers(arrays, "decoder"),
        encoder_layers=_count_layers(arrays, "encoder"),
        num_heads=attribute("num_heads", defaults["num_heads"]),
        activation=ACTIVATIONS[activation],
        norm="pre" if "decoder.layer_norm.weight" in arrays else "post",
        norm_epsilon=float(config["layer_norm_epsilon"]),
        positions=find_positions(tables, size),
        scale_embedding=_scales(tensors, size),
        use_bias=True,
        output_bias="bias" in rows,
        source_end=config["add_source_eos"] or is_marian,
        fixed_start=is_marian,
        never=(len(tokens[1]) - 1,) if is_marian else (),
        renormalize=True,
        alignment_layer=attribute("alignment_layer", -1),
        # Of several heads CTranslate2 shows the mean of the first ones, and this library that of all.
        alignment_head=0 if attribute("alignment_heads", 1) == 1 else None,
    )
    settings, weights = rename(settings, LAYER, arrays, rows)

    start, end = "<pad>" if is_marian else config["decoder_start_token"] or config["bos_token"], config["eos_token"]
    is_fairseq = start == end  # and each side begins with its language
    special = (config["bos_token"] if is_fairseq else start, end, config["unk_token"])
    source, target = (
        read_language(folder, name, each, special, len(rows[name]), "en" if is_marian else None)
        for name, each in zip(("source", "target"), tokens, strict=True)
    )
    if is_fairseq:
        settings = replace(settings, start_token=target.special[1], source_end=True)
        source, target = (replace(side, languages=find_languages(side.tokens)) for side in (source, target))
    longest = min([LONGEST, *(len(table) for table in tables)])
    search: dict[str, Any] = {"beam_size": 2, "length_penalty": 1.0, "stop": "first", "min_len": 2}
    search |= {"max_len": min(256, longest), "force_end": False, "no_repeat_ngram": None, "renormalize": True}
    return Pretrained(settings, weights, source, target, longest, search)  # which is CTranslate2's own


def read_file(path: Path) -> tuple[str, dict[str, np.ndarray]]:
    """Return the name of the model's kind, and the tensors in floats; ValueError if the file is damaged."""
    content, place = path.read_bytes(), 0

    def take(size: int) -> bytes:
        nonlocal place
        if place + size > len(content):
            raise ValueError(f"{path} is cut short or damaged: it ends at byte {len(content)}")
        place += size
        return content[place - size : place]

    def number(form: str) -> int:
        return int(struct.unpack(f"<{form}", take(struct.calcsize(form)))[0])

    def string() -> str:
        return take(number("H"))[:-1].decode(errors="replace")

    version = number("I")
    if version not in VERSIONS:
        raise ValueError(f"{path} has the version {version}, and {VERSIONS[0]} to {VERSIONS[-1]} are read")
    spec, _revision = string(), number("I")
    tensors = dict[str, np.ndarray]()
    for _ in range(number("I")):
        name, shape = string(), [number("I") for _ in range(number("B"))]
        kind = number("B")
        known = kind < len(DTYPES) if version >= 4 else kind in BY_SIZE
        if not known:
            raise ValueError(f"{path} is damaged: {name} has no known type of number")
        dtype = np.dtype(DTYPES[kind] if version >= 4 else BY_SIZE[kind])
        size = number("I") * (1 if version >= 4 else dtype.itemsize)
        if size != int(np.prod(shape, dtype=object)) * dtype.itemsize:
            raise ValueError(f"{path} is damaged: {name} is {shape} and has {size} bytes")
        tensors[name] = np.frombuffer(take(size), dtype).reshape(shape)
    for name in tensors:
        if (scale := tensors.get(f"{name}_scale")) is not None:  # int8 and int16 have a scale
            tensors[name] = tensors[name].astype(np.float32) / scale.astype(np.float32).reshape(-1, 1)
    for _ in range(number("I") if version >= 3 else 0):
        alias, name = string(), string()
        if name not in tensors:
            raise ValueError(f"{path} is damaged: {alias} is another name of {name}, which is missing")
        tensors[alias] = tensors[name]
    scales = {f"{name}_scale" for name in tensors}
    return spec, {name: array for name, array in tensors.items() if name not in scales}


def take_apart(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays by names with dots; the queries, keys and values that the file has as one layer are three."""
    found = dict[str, np.ndarray]()
    for name, array in tensors.items():
        if not array.ndim:
            if name.rpartition("/")[2] in ("weight", "bias", "gamma", "beta", "encodings"):
                raise ValueError(f"{name} of model.bin must be a vector or a matrix; got a number")
            continue  # an attribute
        name = re.sub("/layer_([0-9]+)/", r"/layers/\1/", name).replace("embeddings_0", "embeddings")
        parent, leaf = name.replace("/", ".").rsplit(".", 1) if "/" in name else (name, "")
        leaf = {"gamma": "weight", "beta": "bias"}.get(leaf, leaf)
        parts = "qkv" if parent.endswith("self_attention.linear_0") else "kv" * parent.endswith(".attention.linear_1")
        if parts:
            split = np.split(array, len(parts))
            found |= {f"{parent}.{part}.{leaf}": each for part, each in zip(parts, split, strict=True)}
        else:
            found[f"{parent}.{leaf}"] = array
    return found


def find_rows(
    folder: Path, arrays: dict[str, np.ndarray], config: Mapping[str, Any], is_marian: bool
) -> tuple[list[list[str]], dict[str, np.ndarray]]:
    """Return the tokens of both sides, and the arrays with a row for each, by the roles of `name_rows`.

    In a model of Marian's, <pad> is added again: it was taken away with its embedding, which is 0.
    """
    rows = {role: arrays.pop(name) for role, name in ROWS.items() if name in arrays}
    if missing := [ROWS[role] for role in ("source", "target", "output") if role not in rows]:
        raise ValueError(f"the weights do not fit the configuration; missing: {', '.join(missing)}")
    require_matrices(rows)
    both = []
    for side in ("source", "target"):
        tokens, unknown = read_tokens(folder, side), config["unk_token"]
        if unknown not in tokens and len(tokens) == len(rows[side]) - 1:
            tokens = [*tokens, unknown]  # CTranslate2 adds it, too
        both.append([*tokens, "<pad>"] if is_marian else tokens)
    if is_marian:
        rows = {role: np.pad(x, [(0, 1), (0, 0)][: x.ndim]) for role, x in rows.items()}
    return both, rows


def _count_layers(arrays: Mapping[str, np.ndarray], part: str) -> int:
    return len({name.split(".")[2] for name in arrays if name.startswith(f"{part}.layers.")})


def _scales(tensors: Mapping[str, np.ndarray], size: int) -> bool:
    """Return whether embeddings are multiplied by √size: the file has a factor, or only whether there is one."""
    found = [tensors.get(f"{part}/scale_embeddings", np.int8(1)) for part in ("encoder", "decoder")]
    factors = [size ** (bool(x.item()) / 2) if x.dtype == np.int8 else x.item() for x in found]
    for scales in (True, False):
        if np.allclose(factors, size**0.5 if scales else 1.0, atol=1e-3):
            return scales
    raise ValueError(f"embeddings must be multiplied by 1 or by the root of {size}; got {factors}")


def find_positions(tables: list[np.ndarray], size: int) -> Sinusoids:
    """Return the name of the positions that the file holds; those of OpenNMT where it holds none."""
    forms: tuple[Sinusoids, ...] = ("opennmt", "halves", "interleaved", "fairseq")
    for name in forms:
        known = sinusoidal_positions(64, size, form=name)
        if all(np.allclose(table[:64], known[: len(table)], rtol=0, atol=2e-3) for table in tables):
            return name
    raise ValueError("the file's positions are no sines and cosines that are supported; learnt ones are not")


def read_tokens(folder: Path, side: str) -> list[str]:
    """Read the tokens of a side, from its own file or the shared one, as JSON or one a line."""
    for name in (f"{side}_vocabulary", "shared_vocabulary"):
        if (folder / f"{name}.json").is_file():
            tokens: list[str] = read_json(folder / f"{name}.json", list)
            return tokens
        if (folder / f"{name}.txt").is_file():
            return (folder / f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    raise ValueError(f"{folder} has no {side}_vocabulary.json")
