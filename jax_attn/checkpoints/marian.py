"""Marian's translators in the form of the Hugging Face hub, such as Helsinki-NLP/opus-mt-en-fr.

A folder has config.json, generation_config.json, model.safetensors or pytorch_model.bin, source.spm, target.spm and
vocab.json; with two vocabularies also target_vocab.json.
"""

import json
import os
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from jax_attn.checkpoints.pretrained import (
    Option,
    Pretrained,
    find_ties,
    name_layers,
    name_rows,
    only,
    read_json,
    read_language,
    read_options,
    rename,
    require_matrices,
    shorten,
)
from jax_attn.checkpoints.weight_files import read_safetensors, write_safetensors
from jax_attn.ranges import Range
from jax_attn.search_options import BeamSize, LengthPenalty
from jax_attn.settings import Activation, TransformerConfig

SUPPORTED = "Marian's models (config.json with model_type marian) and CTranslate2's (model.bin)"

SIZES = {
    "embed_size": ("d_model", "hidden_size"),
    "num_layers": ("decoder_layers",),
    "encoder_layers": ("encoder_layers", "num_hidden_layers"),
    "num_hiddens": ("encoder_ffn_dim", "decoder_ffn_dim"),
    "num_heads": ("encoder_attention_heads", "decoder_attention_heads", "num_attention_heads"),
}
"""The names that config.json has for a setting, which must be the same."""
ALIASES = ("hidden_size", "num_hidden_layers", "num_attention_heads")
"""The names that config.json may leave out."""
RATES = {"dropout": "dropout", "dropout_attention": "attention_dropout", "dropout_hidden": "activation_dropout"}
ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
ALWAYS = {
    "norm": "post", "norm_epsilon": 1e-5, "positions": "halves", "use_bias": True, "output_bias": True,
    "source_end": True, "fixed_start": True,
}  # fmt: skip
"""Settings that every Marian model has."""
STOPS = {False: "likely", True: "first", "never": "never"}
"""When the search ends, by early_stopping."""

Size, Layers = Annotated[int, Range(1, 65_536)], Annotated[int, Range(1, 64)]
Count, Rate = Annotated[int, Range(0, 65_536)], Annotated[float, Range(0, 1)]
OF_MODEL = {
    **{name: Option(Layers if "layers" in name else Size) for names in SIZES.values() for name in names},
    **{name: Option(Layers if "layers" in name else Size, None) for name in ALIASES},
    **{name: Option(Rate, 0.1 if name == "dropout" else 0.0) for name in RATES.values()},
    "activation_function": Option(tuple(ACTIVATIONS), "gelu"),
    "scale_embedding": Option(bool, False),
    "max_position_embeddings": Option(Annotated[int, Range(2, 65_536)], 1024),
    "share_encoder_decoder_embeddings": Option(bool, True),
    "tie_word_embeddings": Option(bool, True),
    "vocab_size": Option(int, None),
    "decoder_vocab_size": Option(int, None),
    "decoder_start_token_id": Option(int),
    **only(["MarianMTModel"], "architectures"),
    **only(True, "is_encoder_decoder"),
    **only(False, "is_decoder", "tie_encoder_decoder", "add_bias_logits", "add_final_layer_norm"),
    **only(False, "normalize_before", "normalize_embedding"),
    **only(None, "quantization_config", "per_layer_config", "cross_attention_hidden_size", "pruned_heads"),
}
"""The options that config.json may have."""
OF_SEARCH = {
    "num_beams": Option(BeamSize, 1),
    "length_penalty": Option(LengthPenalty, 1.0),
    "early_stopping": Option(tuple(STOPS), False),
    "max_length": Option(Annotated[int, Range(2, 65_537)], 512),
    "max_new_tokens": Option(Size, None),
    "min_length": Option(Count, 0),
    "min_new_tokens": Option(Count, None),
    "no_repeat_ngram_size": Option(Count, 0),
    "renormalize_logits": Option(bool, False),
    "bad_words_ids": Option(list[list[int]], []),
    "suppress_tokens": Option(list[int], []),
    "decoder_start_token_id": Option(int, None),
    "eos_token_id": Option(int | list[int], None),
    "forced_eos_token_id": Option(int | list[int], None),
    **only(False, "do_sample", "remove_invalid_values", "token_healing"),
    **only(1.0, "repetition_penalty", "encoder_repetition_penalty", "guidance_scale"),
    **only(0, "encoder_no_repeat_ngram_size", "diversity_penalty", "penalty_alpha"),
    **only(1, "num_beam_groups"),
    **only(None, "forced_bos_token_id", "begin_suppress_tokens", "sequence_bias", "exponential_decay_length_penalty"),
    **only(None, "watermarking_config", "force_words_ids", "constraints", "dola_layers", "stop_strings", "max_time"),
    **only(None, "prompt_lookup_num_tokens"),
}
"""generation_config.json, or where there is none config.json. Options of sampling alone, such as top_k, change nothing
without do_sample."""
OF_TOKENIZER = {f"{side}_lang": Option(str, "en") for side in ("source", "target")}
"""The options that tokenizer_config.json may have."""

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
        raise ValueError(f"{folder} holds {shorten(repr(kind))}, which is not supported; supported are {SUPPORTED}")
    options = read_options(config, OF_MODEL, "config.json")
    shares, ties = options["share_encoder_decoder_embeddings"], options["tie_word_embeddings"]
    files = ["vocab.json", "vocab.json" if shares else "target_vocab.json"]
    if missing := [name for name in ("source.spm", "target.spm", *files) if not (folder / name).is_file()]:
        raise ValueError(f"{folder} has no {', '.join(missing)}")
    file = next(name for name in ("generation_config.json", "config.json") if (folder / name).is_file())
    generation = read_options(read_json(folder / file), OF_SEARCH, file)
    path = folder / "tokenizer_config.json"
    tokenizer = read_options(read_json(path) if path.is_file() else {}, OF_TOKENIZER, path.name)

    settings = read_config(options)
    tensors = {name.removeprefix("model."): array for name, array in read_weights(folder).items()}
    rows = find_rows(tensors, shares, ties)
    layers = {name: array for name, array in tensors.items() if name not in OTHERS}
    ties = find_ties(rows)
    weights = rename(layers, name_layers(settings, LAYER), rows, ties)

    vocabularies = [read_tokens(folder / name) for name in files]
    source, target = (
        read_language(folder, side, tokens, ("<pad>", "</s>", "<unk>"), len(rows[side]), tokenizer[f"{side}_lang"])
        for side, tokens in zip(("source", "target"), vocabularies, strict=True)
    )
    start, end, _ = target.special
    for name, value, expected, meaning in (
        ("vocab_size", options["vocab_size"], len(source.tokens), "the tokens of the source"),
        ("decoder_vocab_size", options["decoder_vocab_size"], len(target.tokens), "the tokens of the target"),
        ("decoder_start_token_id", options["decoder_start_token_id"], start, "the id of <pad>"),
        ("decoder_start_token_id", generation["decoder_start_token_id"], start, "the id of <pad>"),
        ("eos_token_id", generation["eos_token_id"], end, "the id of </s>"),
        ("forced_eos_token_id", generation["forced_eos_token_id"], end, "the id of </s>"),
    ):
        if value not in (None, expected, [expected]):
            raise ValueError(f"{name} must be {expected}, {meaning}; got {shorten(str(value))}")
    longest = options["max_position_embeddings"]
    never, search = read_generation(generation, len(target.tokens), start, end)
    settings = replace(settings, tie_embeddings=ties, never=never, renormalize=search["renormalize"])
    search["max_len"] = min(search["max_len"], longest)
    return Pretrained(settings, weights, source, target, longest, search)


def read_config(options: Mapping[str, Any]) -> TransformerConfig:
    """Return the settings that config.json has; ValueError if sizes contradict each other."""
    settings: dict[str, Any] = dict(ALWAYS)
    for ours, names in SIZES.items():
        if len({options[name] for name in names} - {None}) > 1:
            raise ValueError(f"{' and '.join(names)} of config.json must be the same, which is supported")
        settings[ours] = options[names[0]]
    settings |= {ours: float(options[theirs]) for ours, theirs in RATES.items()}
    activation, scales = ACTIVATIONS[options["activation_function"]], options["scale_embedding"]
    return TransformerConfig(**settings, activation=activation, scale_embedding=scales)


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
        # A name that is no string is an error, too.
        return {"" + name: (x.float() if x.dtype == torch.bfloat16 else x).numpy() for name, x in state.items()}
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
    require_matrices(found)
    return found | {"bias": found["bias"].reshape(-1)}


def read_tokens(path: Path) -> list[str]:
    """Read the tokens in the order of their ids; ValueError unless these are 0, 1, 2, …"""
    vocabulary = read_json(path)
    if sorted(vocabulary.values(), key=str) != sorted(range(len(vocabulary)), key=str):
        raise ValueError(f"{path} must give each token an id, from 0 to {len(vocabulary) - 1}")
    return sorted(vocabulary, key=vocabulary.__getitem__)


def read_generation(
    options: Mapping[str, Any], vocab_size: int, start: int, end: int
) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Return the ids that are never produced, and the options of the search by our names.

    Lengths count the decoder's first token in transformers, and not here; the new tokens of transformers do not count
    the end.
    """
    words, others = options["bad_words_ids"], options["suppress_tokens"]
    for name, ids in ("bad_words_ids", words), ("suppress_tokens", [[i] for i in others]):
        if any(len(word) != 1 or not 0 <= word[0] < vocab_size for word in ids):
            raise ValueError(f"{name} must be single ids in [0, {vocab_size}); got {shorten(str(options[name]))}")
    never = {word[0] for word in words} - {end} | {*others}  # transformers leaves the end out of the bad words
    if end in never or len(never) >= vocab_size - 1:
        raise ValueError("bad_words_ids and suppress_tokens must leave </s> and another token")
    if options["num_beams"] > vocab_size:
        raise ValueError(
            f"num_beams must be at most {vocab_size}, the tokens of the target; got {options['num_beams']}"
        )
    if options["no_repeat_ngram_size"] and start not in never:
        raise ValueError(f"no_repeat_ngram_size needs bad_words_ids with {start}, the decoder's first token")
    return tuple(sorted(never)), {
        "beam_size": options["num_beams"],
        "length_penalty": float(options["length_penalty"]),
        "stop": STOPS[options["early_stopping"]],
        "force_end": options["forced_eos_token_id"] is not None,
        "no_repeat_ngram": options["no_repeat_ngram_size"] or None,
        "min_len": options["min_length"] if options["min_new_tokens"] is None else options["min_new_tokens"] + 1,
        "max_len": options["max_new_tokens"] or options["max_length"] - 1,
        "renormalize": options["renormalize_logits"],
    }


def write(model: Pretrained, folder: Path) -> None:
    """Write a new folder that `transformers.MarianMTModel.from_pretrained` loads, with the same weights in float32.

    Raises:
        OSError: the folder exists, or cannot be made.
        ValueError: Marian has no such model.
    """
    settings, source, target, search = model.settings, model.source, model.target, model.search
    matters = {name: value for name, value in ALWAYS.items() if name != "fixed_start"}  # which is of the training alone
    other = [f"{name} {getattr(settings, name)}" for name, value in matters.items() if getattr(settings, name) != value]
    if source.special != target.special:
        other.append("special tokens that have other ids in the source than in the target")
    if any(len(set(side.tokens)) < len(side.tokens) for side in (source, target)):
        other.append("two tokens of one name")
    if source.pieces is None or target.pieces is None:
        raise ValueError("Marian has no model with tokens that are no pieces")
    if other:
        raise ValueError(f"Marian has no model with {', '.join(other)}")
    ties, sizes = settings.tie_embeddings, asdict(settings)
    sizes["encoder_layers"] = settings.encoder_layers or settings.num_layers
    start, end, _ = target.special
    special = {"eos_token_id": end, "pad_token_id": start, "decoder_start_token_id": start}
    config = {
        **{theirs: sizes[ours] for ours, names in SIZES.items() for theirs in names if theirs not in ALIASES},
        **{theirs: sizes[ours] for ours, theirs in RATES.items()},
        **special,
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "dtype": "float32",
        "activation_function": _key(ACTIVATIONS, settings.activation),
        "scale_embedding": settings.scale_embedding,
        "max_position_embeddings": model.max_len,
        "share_encoder_decoder_embeddings": ties == "all",
        "tie_word_embeddings": ties in ("output", "all"),
        "vocab_size": len(source.tokens),
        "decoder_vocab_size": len(target.tokens),
    }
    generation = {
        "num_beams": search["beam_size"],
        "length_penalty": search["length_penalty"],
        "min_length": search["min_len"],
        **special,
        "early_stopping": False if search["stop"] == "all" else _key(STOPS, search["stop"]),
        "forced_eos_token_id": end if search["force_end"] else None,
        "no_repeat_ngram_size": search["no_repeat_ngram"] or 0,
        "max_length": search["max_len"] + 1,
        "bad_words_ids": [[i] for i in sorted(settings.never)] or None,
        "renormalize_logits": search["renormalize"] or bool(settings.never and settings.renormalize),
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
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    beside.mkdir(parents=True)
    try:
        for name, side in (("vocab", source), ("target_vocab", target))[: 1 if ties == "all" else 2]:
            _write_json(beside / f"{name}.json", {token: i for i, token in enumerate(side.tokens)})
        for name, content in (("config", config), ("generation_config", generation), ("tokenizer_config", tokenizer)):
            _write_json(beside / f"{name}.json", content)
        (beside / "source.spm").write_bytes(source.pieces)
        (beside / "target.spm").write_bytes(target.pieces)
        write_safetensors(beside / "model.safetensors", tensors)
        folder.mkdir()  # an error if another has made it meanwhile
        beside.replace(folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _key(names: Mapping[Any, str], value: str) -> Any:
    return next(key for key, each in names.items() if each == value)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
