"""CTranslate2's translators: model.bin, the vocabularies, and config.json since version 3.

The layout of model.bin is that of `ctranslate2.specs.model_spec`.
"""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_attn.checkpoints.pretrained import Pretrained, Side, as_float32, read_json, require_files, require_rows
from jax_attn.functional.positions import opennmt_positions, sinusoidal_positions

VERSIONS = range(2, 7)
"""The versions of the file that are read."""
DTYPES: tuple[Any, ...] = (np.float32, np.int8, np.int16, np.int32, np.float16, jnp.bfloat16)
"""By the number that a file has for them, since version 4."""
BY_SIZE: dict[int, Any] = {4: np.float32, 2: np.int16, 1: np.int8}
"""By the bytes of an item, before."""
ACTIVATIONS = {0: "relu", 2: "silu", 3: "gelu"}
UNSUPPORTED = (
    "relative_position", "layernorm_embedding", "rotary", "alibi", "linear_0_noact", "residual", "project_in",
    "project_out", "embeddings_1", "conv", "gate", "scale_outputs",
)  # fmt: skip
"""Parts of names of tensors that belong to models of other kinds."""


def recognise(folder: Path) -> bool:
    """Return whether this is a folder of CTranslate2."""
    return (folder / "model.bin").is_file()


def read(folder: Path) -> Pretrained:
    """Read a folder. Weights of int8 and int16 are divided by their scales.

    Raises:
        OSError, ValueError: a file is missing, cut short or damaged, or the model is of another kind.
    """
    spec, tensors = read_file(folder / "model.bin")
    if not spec.startswith("Transformer") or "decoder/layer_0/attention/linear_0/weight" not in tensors:
        raise ValueError(f"{folder} holds a {spec}, which is not supported; supported are Transformers that translate")
    strange = sorted({part for part in UNSUPPORTED for name in tensors if part in name and tensors[name].any()})
    if strange:
        raise ValueError(f"{folder} holds a Transformer with {', '.join(strange)}, which is not supported")
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    settings, weights = convert(spec, tensors)
    if config.get("add_source_bos"):
        raise ValueError("config.json has add_source_bos, which is not supported")
    if (epsilon := config.get("layer_norm_epsilon")) is not None:
        settings["norm_epsilon"] = float(epsilon)
    is_marian = bool(_scalar(tensors, "start_from_zero_embedding", 0))
    settings["source_end"] = bool(config.get("add_source_eos", False)) or is_marian
    settings["start"] = "zero" if is_marian else "learnt"
    sides = []
    for part, name in (("encoder", "source"), ("decoder", "target")):
        tokens = read_tokens(folder, name)
        rows = len(weights.get(f"{part}.embedding.weight", weights["decoder.embedding.weight"]))
        unknown = config.get("unk_token", "<unk>")
        if unknown not in tokens and len(tokens) == rows - 1:
            tokens = [*tokens, unknown]  # CTranslate2 adds it, too
        require_rows(name, tokens, rows)
        start = None if is_marian else config.get("decoder_start_token") or config.get("bos_token", "<s>")
        special = (start, config.get("eos_token", "</s>"), unknown)
        missing = [token for token in special if token is not None and token not in tokens]
        if missing and (name == "target" or missing != [start]):
            raise ValueError(f"the vocabulary of the {name} has no {', '.join(missing)}")
        ids = tuple(tokens.index(token) if token in tokens else None for token in special)
        pieces = folder / f"{name}.spm"
        sides.append(Side(tokens, ids, pieces.read_bytes() if pieces.is_file() else None))
    search = {"beam_size": 2, "length_penalty": 1.0, "stop": "first", "min_len": 2, "max_len": 256}  # its defaults
    return Pretrained(settings, weights, sides[0], sides[1], 1024, search, normalizes=is_marian)


def read_file(path: Path) -> tuple[str, dict[str, np.ndarray]]:
    """Return the name of the model's kind, and the tensors; ValueError if the file is damaged."""
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
    for _ in range(number("I") if version >= 3 else 0):
        alias, name = string(), string()
        if name not in tensors:
            raise ValueError(f"{path} is damaged: {alias} is another name of {name}, which is missing")
        tensors[alias] = tensors[name]
    return spec, tensors


def _scalar(tensors: Mapping[str, np.ndarray], name: str, default: int) -> float:
    """Return an attribute of the model. Old files have one for both parts."""
    for key in (f"decoder/{name}", name):
        if key in tensors:
            return float(tensors[key].reshape(-1)[0])
    return float(default)


def convert(spec: str, tensors: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the settings of the Transformer, and its weights by our names."""

    def array(name: str) -> np.ndarray:
        if name not in tensors:
            raise ValueError(f"the weights have no {name}")
        found = tensors[name]
        if found.dtype in (np.int8, np.int16):
            same = [each for each in tensors if tensors[each] is found]  # an alias of the weights has no scale
            scale = next((tensors[f"{each}_scale"] for each in same if f"{each}_scale" in tensors), None)
            if scale is None:
                raise ValueError(f"the weights have no {name}_scale")
            return found.astype(np.float32) / scale.astype(np.float32).reshape(-1, *[1] * (found.ndim - 1))
        return found

    weights = dict[str, np.ndarray]()

    def add(ours: str, theirs: str, split: tuple[str, ...] = ()) -> None:
        """Add a layer, or several that the file has as one."""
        for leaf in ("weight", "bias"):
            parts = np.split(array(f"{theirs}/{leaf}"), max(len(split), 1))
            for name, each in zip(split or ("",), parts, strict=True):
                weights[f"{ours}{name}.{leaf}"] = each

    def add_norm(ours: str, theirs: str) -> None:
        weights[f"{ours}.weight"], weights[f"{ours}.bias"] = array(f"{theirs}/gamma"), array(f"{theirs}/beta")

    layers = dict[str, int]()
    for part in ("encoder", "decoder"):
        layers[part] = len(
            {name.split("/")[1] for name in tensors if name.startswith(f"{part}/layer_") and name[14:15].isdigit()}
        )
        for number in range(layers[part]):
            ours, theirs = f"{part}.layers.{number}", f"{part}/layer_{number}"
            add(f"{ours}.self_attention.", f"{theirs}/self_attention/linear_0", ("W_q", "W_k", "W_v"))
            add(f"{ours}.self_attention.W_o", f"{theirs}/self_attention/linear_1")
            add_norm(f"{ours}.self_attention_norm", f"{theirs}/self_attention/layer_norm")
            if part == "decoder":
                add(f"{ours}.cross_attention.W_q", f"{theirs}/attention/linear_0")
                add(f"{ours}.cross_attention.", f"{theirs}/attention/linear_1", ("W_k", "W_v"))
                add(f"{ours}.cross_attention.W_o", f"{theirs}/attention/linear_2")
                add_norm(f"{ours}.cross_attention_norm", f"{theirs}/attention/layer_norm")
            add(f"{ours}.feed_forward.dense1", f"{theirs}/ffn/linear_0")
            add(f"{ours}.feed_forward.dense2", f"{theirs}/ffn/linear_1")
            add_norm(f"{ours}.feed_forward_norm", f"{theirs}/ffn/layer_norm")
        if f"{part}/layer_norm/gamma" in tensors:
            add_norm(f"{part}.last_norm", f"{part}/layer_norm")
    name = "encoder/embeddings_0/weight" if "encoder/embeddings_0/weight" in tensors else "encoder/embeddings/weight"
    source, target, output = array(name), array("decoder/embeddings/weight"), array("decoder/projection/weight")
    reads, writes = np.array_equal(source, target), np.array_equal(target, output)
    weights["decoder.embedding.weight"] = target
    if not reads:
        weights["encoder.embedding.weight"] = source
    if not writes:
        weights["decoder.dense.weight"] = output
    has_bias = "decoder/projection/bias" in tensors
    if has_bias:
        weights["decoder.dense_bias" if writes else "decoder.dense.bias"] = array("decoder/projection/bias")
    size = target.shape[1]
    settings = {
        "embed_size": size,
        "num_hiddens": len(array("encoder/layer_0/ffn/linear_0/weight")),
        "num_layers": layers["decoder"],
        "encoder_layers": layers["encoder"],
        "num_heads": int(_scalar(tensors, "num_heads", 16 if "Big" in spec else 8)),
        "activation": _activation(tensors),
        "norm": "pre" if "decoder.last_norm.weight" in weights else "post",
        "positions": _positions(tensors, size),
        "scale_embedding": _scales(tensors, size),
        "tie_embeddings": {(True, True): "all", (True, False): "input", (False, True): "output"}.get(
            (reads, writes), "none"
        ),
        "output_bias": has_bias,
        "alignment_layer": int(_scalar(tensors, "alignment_layer", -1)),
        "alignment_head": 0 if _scalar(tensors, "alignment_heads", 1) == 1 else None,  # else the mean of all
    }
    return settings, as_float32(weights)


def _activation(tensors: Mapping[str, np.ndarray]) -> str:
    number = int(_scalar(tensors, "activation", 0))
    if number not in ACTIVATIONS:
        raise ValueError(f"the activation must be one of {', '.join(ACTIVATIONS.values())}; got number {number}")
    return ACTIVATIONS[number]


def _scales(tensors: Mapping[str, np.ndarray], size: int) -> bool:
    """Return whether embeddings are multiplied by √size."""
    found = {part: tensors.get(f"{part}/scale_embeddings") for part in ("encoder", "decoder")}
    factors = {
        part: size**0.5
        if x is None or (x.dtype == np.int8 and x.any())
        else 1.0
        if x.dtype == np.int8
        else float(x.item())
        for part, x in found.items()
    }
    for scales, factor in ((True, size**0.5), (False, 1.0)):
        if all(abs(each - factor) < 1e-3 for each in factors.values()):
            return scales
    raise ValueError(f"embeddings must be multiplied by 1 or by the root of {size}; got {factors}")


def _positions(tensors: Mapping[str, np.ndarray], size: int) -> str:
    """Return which positions the file holds; those of OpenNMT where it holds none."""
    tables = [tensors[name] for name in tensors if name.endswith("position_encodings/encodings")]
    if not tables:
        return "opennmt"
    rows = min(len(tables[0]), 64)
    known = {
        "halves": sinusoidal_positions(rows, size, interleaved=False),
        "interleaved": sinusoidal_positions(rows, size),
        "opennmt": opennmt_positions(rows, size),
    }
    for name, expected in known.items():
        if all(np.abs(table[:rows].astype(np.float32) - expected).max() < 2e-3 for table in tables):
            return name
    raise ValueError("the file's positions are no sines and cosines that are supported; learnt ones are not")


def read_tokens(folder: Path, side: str) -> list[str]:
    """Read the tokens of a side, from its own file or the shared one, as JSON or one a line."""
    for name in (f"{side}_vocabulary", "shared_vocabulary"):
        path = folder / f"{name}.json"
        if path.is_file():
            tokens = read_json(path, list)
            if not all(isinstance(token, str) for token in tokens):
                raise ValueError(f"{path} must hold a list of tokens")
            return list(tokens)
        if (folder / f"{name}.txt").is_file():
            return (folder / f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    require_files(folder, [f"{side}_vocabulary.json"])
    return []
