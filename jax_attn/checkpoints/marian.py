"""Marian's translators in the form of the Hugging Face hub, such as Helsinki-NLP/opus-mt-en-fr.

A folder has config.json, generation_config.json, model.safetensors or pytorch_model.bin, source.spm, target.spm and
vocab.json; with two vocabularies also target_vocab.json.
"""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jax_attn.checkpoints.files import read_safetensors, write_safetensors
from jax_attn.checkpoints.pretrained import (
    Pretrained,
    find_ties,
    make_side,
    name_layers,
    name_rows,
    read_json,
    rename,
)

SUPPORTED = "Marian's models (config.json with model_type marian) and CTranslate2's (model.bin)"

SIZES = {
    "embed_size": ("d_model",),
    "num_layers": ("decoder_layers",),
    "encoder_layers": ("encoder_layers",),
    "num_hiddens": ("encoder_ffn_dim", "decoder_ffn_dim"),
    "num_heads": ("encoder_attention_heads", "decoder_attention_heads"),
}
"""The names that config.json has for a setting."""
RATES = {"dropout": "dropout", "dropout_attention": "attention_dropout", "dropout_hidden": "activation_dropout"}
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
ALWAYS = {
    "norm": "post", "norm_epsilon": 1e-5, "positions": "halves", "use_bias": True, "output_bias": True,
    "source_end": True, "fixed_start": True,
}  # fmt: skip
"""Settings that every Marian model has."""
SEARCH = {"beam_size": ("num_beams", 1), "length_penalty": ("length_penalty", 1.0), "min_len": ("min_length", 0)}
"""The names that generation_config.json has for options, and what they are where it has none."""
STOPS = {False: "likely", True: "first", "never": "never"}
"""When the search ends, by early_stopping."""

LAYER = {
    **{f"self_attention.W_{name}": f"self_attn.{name}_proj" for name in "qkv"},
    "self_attention.W_o": "self_attn.out_proj",
    "self_attention_norm": "self_attn_layer_norm",
    **{f"cross_attention.W_{name}": f"encoder_attn.{name}_proj" for name in "qkv"},
    "cross_attention.W_o": "encoder_attn.out_proj",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "feed_forward.dense1": "fc1",
    "feed_forward.dense2": "fc2",
    "feed_forward_norm": "final_layer_norm",
}
SOURCE, TARGET, OUTPUT = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"
SHARED, BIAS = "shared.weight", "final_logits_bias"
OTHERS = ("encoder.embed_positions.weight", "decoder.embed_positions.weight", SOURCE, TARGET, OUTPUT, SHARED, BIAS)


def read(folder: Path) -> Pretrained:
    """Read a folder.

    Raises:
        OSError, ValueError: a file is missing, cut short or damaged, or the model is no Marian translator.
    """
    config = read_json(folder / "config.json")
    if config.get("model_type") != "marian":
        kind = config.get("model_type", config.get("architectures", "no model_type"))
        raise ValueError(f"{folder} holds {kind!r}, which is not supported; supported are {SUPPORTED}")
    shares, ties = (config.get(f"{name}_embeddings", True) for name in ("share_encoder_decoder", "tie_word"))
    files = ["vocab.json", "vocab.json" if shares else "target_vocab.json"]
    if missing := [name for name in ("source.spm", "target.spm", *files) if not (folder / name).is_file()]:
        raise ValueError(f"{folder} has no {', '.join(missing)}")
    optional = [folder / f"{name}_config.json" for name in ("generation", "tokenizer")]
    generation, tokenizer = (read_json(path) if path.is_file() else {} for path in optional)

    settings = read_config(config)
    tensors = {name.removeprefix("model."): array for name, array in read_weights(folder).items()}
    rows = find_rows(tensors, shares, ties)
    layers = {name: array for name, array in tensors.items() if name not in OTHERS}
    settings["tie_embeddings"] = find_ties(rows)
    weights = rename(layers, name_layers(settings, LAYER), rows, settings["tie_embeddings"])

    vocabularies = [read_tokens(folder / name) for name in files]
    start = config.get("decoder_start_token_id")
    if type(start) is not int or not 0 <= start < len(vocabularies[1]) or vocabularies[1][start] in ("</s>", "<unk>"):
        raise ValueError(f"decoder_start_token_id must be the id of <pad>; got {start!r}")
    source, target = (
        make_side(
            folder,
            side,
            tokens,
            (vocabularies[1][start], "</s>", "<unk>"),
            len(rows[side]),
            tokenizer.get(f"{side}_lang") or "en",
        )
        for side, tokens in zip(("source", "target"), vocabularies, strict=True)
    )
    longest = config.get("max_position_embeddings", 512)
    never, search = read_generation(config | generation, len(target.tokens))
    settings["never"] = tuple(sorted({*never, start}))
    search["max_len"] = min(search["max_len"], longest)
    return Pretrained(settings, weights, source, target, longest, search)


def read_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings but for `tie_embeddings` and `never`; ValueError for those that are not supported."""
    settings: dict[str, Any] = dict(ALWAYS)
    for ours, names in SIZES.items():
        for name in names:
            if type(config.get(name)) is not int or not 1 <= config[name] <= 65_536:
                raise ValueError(f"config.json must have {name}, a number from 1 to 65536; got {config.get(name)!r}")
            if config[name] != config[names[0]]:
                raise ValueError(f"{' and '.join(names)} of config.json must be the same, which is supported")
        settings[ours] = config[names[0]]
    for name in ("normalize_before", "normalize_embedding", "add_final_layer_norm"):
        if config.get(name):
            raise ValueError(f"{name} of config.json is not supported; Marian's models have it false")
    activation = config.get("activation_function", "gelu")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation_function must be one of {', '.join(ACTIVATIONS)}; got {activation!r}")
    rates = {ours: float(config.get(theirs, 0.1 if ours == "dropout" else 0.0)) for ours, theirs in RATES.items()}
    scales = bool(config.get("scale_embedding", False))
    return settings | rates | {"activation": ACTIVATIONS[activation], "scale_embedding": scales}


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """Read model.safetensors; without it pytorch_model.bin, by torch, which then runs no code of the file."""
    if (folder / "model.safetensors").is_file():
        return read_safetensors(folder / "model.safetensors")
    path = folder / "pytorch_model.bin"
    if not path.is_file():
        raise ValueError(f"{folder} has no model.safetensors and no pytorch_model.bin")
    try:
        import torch
    except ImportError as error:
        raise ValueError(
            f"{path} is read by PyTorch, which is not installed; where it is, "
            f"`python -m torch_ref.to_safetensors {path} {folder / 'model.safetensors'}` converts the file"
        ) from error
    try:
        with warnings.catch_warnings(action="ignore"):
            state: Any = torch.load(path, map_location="cpu", weights_only=True)
        return {name: (x.float() if x.dtype == torch.bfloat16 else x).numpy() for name, x in state.items()}
    except Exception as error:  # torch raises errors of many kinds, and some advise to run what the file holds
        raise ValueError(f"{path} is damaged, cut short or holds more than weights; no code of it was run") from error


def find_rows(tensors: Mapping[str, np.ndarray], shares: bool, ties: bool) -> dict[str, np.ndarray]:
    """Return the tensors that have a row for each token, by the roles of `name_rows`.

    A file may hold a matrix more than once. Without `ties` nothing is shared, as in transformers since version 5.

    Raises:
        ValueError: one is missing, or differs from another that is the same by config.json.
    """
    if not ties:
        roles = {"source": (SOURCE, SHARED), "target": (TARGET, SHARED), "output": (OUTPUT,)}
    elif shares:
        roles = dict.fromkeys(("source", "target", "output"), (SHARED, SOURCE, TARGET, OUTPUT))
    else:
        roles = {"source": (SOURCE,), "target": (TARGET, OUTPUT), "output": (TARGET, OUTPUT)}
    found = dict[str, np.ndarray]()
    for role, names in (roles | {"bias": (BIAS,)}).items():
        copies = [name for name in names if name in tensors]
        if not copies:
            raise ValueError(f"the weights do not fit the configuration; missing: {' or '.join(names)}")
        if ties and any(not np.array_equal(tensors[copies[0]], tensors[copy]) for copy in copies[1:]):
            raise ValueError(f"{' and '.join(copies)} are one matrix by config.json, and differ in the weights")
        found[role] = tensors[copies[0]]
    return found | {"bias": found["bias"].reshape(-1)}


def read_tokens(path: Path) -> list[str]:
    """Read the tokens in the order of their ids; ValueError unless these are 0, 1, 2, …"""
    vocabulary = read_json(path)
    if sorted(vocabulary.values(), key=str) != sorted(range(len(vocabulary)), key=str):
        raise ValueError(f"{path} must give each token an id, from 0 to {len(vocabulary) - 1}")
    return sorted(vocabulary, key=vocabulary.__getitem__)


def read_generation(config: Mapping[str, Any], vocab_size: int) -> tuple[list[int], dict[str, Any]]:
    """Return the ids that are never produced, and the options of the search by our names."""
    words = config.get("bad_words_ids") or []
    if any(len(word) != 1 or not 0 <= word[0] < vocab_size for word in words):
        raise ValueError(f"bad_words_ids must be single ids in [0, {vocab_size}), which is supported; got {words}")
    given = {ours: (config.get(theirs), default) for ours, (theirs, default) in SEARCH.items()}
    search = {ours: type(default)(default if value is None else value) for ours, (value, default) in given.items()}
    return [word[0] for word in words], search | {
        "stop": STOPS.get(config.get("early_stopping") or False, "likely"),
        "force_end": config.get("forced_eos_token_id") is not None,
        "no_repeat_ngram": config.get("no_repeat_ngram_size") or None,
        "max_len": (config.get("max_length") or 512) - 1,  # theirs counts the decoder's first token
    }


def write(model: Pretrained, folder: Path) -> None:
    """Write a new folder that `transformers.MarianMTModel.from_pretrained` loads, with the same weights in float32.

    Raises:
        OSError: the folder exists, or cannot be made.
        ValueError: Marian has no such model.
    """
    settings, source, target, search = model.settings, model.source, model.target, model.search
    matters = {name: value for name, value in ALWAYS.items() if name != "fixed_start"}  # which is of the training alone
    other = [f"{name} {settings[name]}" for name, value in matters.items() if settings[name] != value]
    if source.special != target.special:
        other.append("special tokens that have other ids in the source than in the target")
    if any(len(set(side.tokens)) < len(side.tokens) for side in (source, target)):
        other.append("two tokens of one name")
    if source.pieces is None or target.pieces is None:
        raise ValueError("Marian has no model with tokens that are no pieces")
    if other:
        raise ValueError(f"Marian has no model with {', '.join(other)}")
    ties = settings["tie_embeddings"]
    start, end, _ = target.special
    special = {"eos_token_id": end, "pad_token_id": start, "decoder_start_token_id": start}
    config = {
        **{theirs: settings[ours] for ours, names in SIZES.items() for theirs in names},
        **{theirs: settings[ours] for ours, theirs in RATES.items()},
        **special,
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "dtype": "float32",
        "activation_function": _key(ACTIVATIONS, settings["activation"]),
        "scale_embedding": settings["scale_embedding"],
        "max_position_embeddings": model.max_len,
        "share_encoder_decoder_embeddings": ties == "all",
        "tie_word_embeddings": ties in ("output", "all"),
        "vocab_size": len(source.tokens),
        "decoder_vocab_size": len(target.tokens),
    }
    generation = {
        **{theirs: search[ours] for ours, (theirs, _) in SEARCH.items()},
        **special,
        "early_stopping": False if search["stop"] == "all" else _key(STOPS, search["stop"]),
        "forced_eos_token_id": end if search["force_end"] else None,
        "no_repeat_ngram_size": search["no_repeat_ngram"] or 0,
        "max_length": search["max_len"] + 1,
        "bad_words_ids": [[i] for i in sorted({*settings["never"], start})],
        "renormalize_logits": True,
    }
    tokenizer = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": ties != "all",
        "model_max_length": model.max_len,
    }
    tokenizer |= {"source_lang": source.moses, "target_lang": target.moses}
    rows = {role: model.weights[ours] for role, ours in name_rows(ties).items()}
    tensors = {theirs: model.weights[ours] for ours, theirs in name_layers(settings, LAYER).items()}
    tensors |= {SHARED: rows["target"]} if ties == "all" else {SOURCE: rows["source"], TARGET: rows["target"]}
    tensors = {f"model.{name}": array for name, array in tensors.items()} | {BIAS: rows["bias"][None]}
    if ties in ("none", "input"):
        tensors[OUTPUT] = rows["output"]
    folder.mkdir(parents=True)
    for name, side in (("vocab", source), ("target_vocab", target))[: 1 if ties == "all" else 2]:
        _write_json(folder / f"{name}.json", {token: i for i, token in enumerate(side.tokens)})
    for name, content in (("config", config), ("generation_config", generation), ("tokenizer_config", tokenizer)):
        _write_json(folder / f"{name}.json", content)
    (folder / "source.spm").write_bytes(source.pieces)
    (folder / "target.spm").write_bytes(target.pieces)
    write_safetensors(folder / "model.safetensors", tensors)


def _key(names: Mapping[Any, str], value: str) -> Any:
    return next(key for key, each in names.items() if each == value)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
