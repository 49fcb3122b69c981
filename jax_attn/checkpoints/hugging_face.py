"""What the folders of the Hugging Face hub have in common, as transformers writes them.

A folder has config.json, generation_config.json and model.safetensors or pytorch_model.bin. Its vocabularies are those
of its kind: `marian` and `m2m100`.
"""

import json
import os
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from jax_attn.checkpoints.pretrained import (
    Option,
    Pretrained,
    name_layers,
    name_rows,
    only,
    read_json,
    read_options,
    require_matrices,
    shorten,
)
from jax_attn.checkpoints.weight_files import read_safetensors, write_safetensors
from jax_attn.ranges import Range
from jax_attn.search_options import BeamSize, LengthPenalty
from jax_attn.settings import Activation, TransformerConfig

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""The files of weights; the first that there is. Large ones are cut into files that `NAME.index.json` lists."""

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
    "tie_word_embeddings": Option(bool, True),
    "vocab_size": Option(int, None),
    "decoder_start_token_id": Option(int),
    **only(True, "is_encoder_decoder"),
    **only(False, "is_decoder", "tie_encoder_decoder"),
    **only(None, "quantization_config", "per_layer_config", "cross_attention_hidden_size", "pruned_heads"),
}
"""The options that config.json of every kind may have."""
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
POSITIONS = tuple(f"{part}.embed_positions.weight{s}" for part in ("encoder", "decoder") for s in ("", "s"))
OTHERS = (*POSITIONS, SOURCE, TARGET, OUTPUT, SHARED, BIAS)


def read_config(options: Mapping[str, Any], always: Mapping[str, Any]) -> TransformerConfig:
    """Return the settings that config.json has, and those of its kind; ValueError if sizes contradict each other."""
    settings: dict[str, Any] = dict(always)
    for ours, names in SIZES.items():
        if len({options[name] for name in names} - {None}) > 1:
            raise ValueError(f"{' and '.join(names)} of config.json must be the same, which is supported")
        settings[ours] = options[names[0]]
    settings |= {ours: float(options[theirs]) for ours, theirs in RATES.items()}
    activation, scales = ACTIVATIONS[options["activation_function"]], options["scale_embedding"]
    return TransformerConfig(**settings, activation=activation, scale_embedding=scales)


def read_search(folder: Path) -> dict[str, Any]:
    """Return the options of generation_config.json, or where there is none of config.json."""
    file = next(name for name in ("generation_config.json", "config.json") if (folder / name).is_file())
    return read_options(read_json(folder / file), OF_SEARCH, file)


def require_ids(*options: tuple[str, Any, int, str]) -> None:
    """Raise ValueError unless each option, as (name, value, expected, meaning), has its value or none."""
    for name, value, expected, meaning in options:
        if value not in (None, expected, [expected]):
            raise ValueError(f"{name} must be {expected}, {meaning}; got {shorten(str(value))}")


def find_weights(folder: Path) -> list[Path]:
    """Return model.safetensors, without it pytorch_model.bin, or the files that the index of either lists."""
    for name in WEIGHTS:
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return [folder / name]
        if index.is_file():
            listed = read_json(index).get("weight_map")
            if not isinstance(listed, dict) or not all(isinstance(each, str) for each in listed.values()):
                raise ValueError(f"{index} has no weight_map of names of files")
            files = [folder / Path(each).name for each in sorted(set(listed.values()))]
            if missing := [each.name for each in files if not each.is_file()]:
                raise ValueError(f"{folder} has no {', '.join(missing)}, which {index.name} lists")
            return files
    raise ValueError(f"{folder} has no {' and no '.join(WEIGHTS)}")


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """Read all tensors, those of a pickle by torch, which then runs no code of the file."""
    tensors = dict[str, np.ndarray]()
    for path in find_weights(folder):
        tensors |= read_safetensors(path) if path.suffix == ".safetensors" else _unpickle(path)
    return {name.removeprefix("model."): array for name, array in tensors.items()}


def _unpickle(path: Path) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError as error:
        raise ValueError(
            f"{path} is read by PyTorch, which is not installed; where it is, "
            f"`python -m torch_ref.to_safetensors {path} {path.with_name('model.safetensors')}` converts the file"
        ) from error
    try:
        with warnings.catch_warnings(action="ignore"):
            state: Any = torch.load(path, map_location="cpu", weights_only=True)
        # A name that is no string is an error, too.
        return {"" + name: (x.float() if x.dtype == torch.bfloat16 else x).numpy() for name, x in state.items()}
    except Exception as error:  # torch raises errors of many kinds, and some advise to run what the file holds
        raise ValueError(f"{path} is damaged, cut short or holds more than weights; no code of it was run") from error


def find_rows(
    tensors: Mapping[str, np.ndarray], shares: bool, ties: bool, output_bias: bool = True
) -> dict[str, np.ndarray]:
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
    for role, names in (roles | ({"bias": (BIAS,)} if output_bias else {})).items():
        copies = [name for name in names if name in tensors]
        if not copies:
            raise ValueError(f"the weights do not fit the configuration; missing: {' or '.join(names)}")
        if ties and any(not np.array_equal(tensors[copies[0]], tensors[copy]) for copy in copies[1:]):
            raise ValueError(f"{' and '.join(copies)} are one matrix by config.json, and differ in the weights")
        found[role] = tensors[copies[0]]
    require_matrices(found)
    return found | ({"bias": found["bias"].reshape(-1)} if output_bias else {})


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
    if options["no_repeat_ngram_size"] == 1 and start == end:
        raise ValueError("no_repeat_ngram_size 1 lets no sentence end, since the decoder begins with </s>")
    if options["no_repeat_ngram_size"] and start not in (*never, end):
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


def as_config(model: Pretrained, special: Mapping[str, int]) -> dict[str, Any]:
    """Return what config.json says of every kind of model."""
    settings, sizes = model.settings, asdict(model.settings)
    sizes["encoder_layers"] = settings.encoder_layers or settings.num_layers
    return {
        **{theirs: sizes[ours] for ours, names in SIZES.items() for theirs in names if theirs not in ALIASES},
        **{theirs: sizes[ours] for ours, theirs in RATES.items()},
        **special,
        "dtype": "float32",
        "activation_function": _key(ACTIVATIONS, settings.activation),
        "scale_embedding": settings.scale_embedding,
        "max_position_embeddings": model.max_len,
        "tie_word_embeddings": settings.tie_embeddings in ("output", "all"),
        "vocab_size": len(model.source.tokens),
    }


def as_generation(model: Pretrained, special: Mapping[str, int]) -> dict[str, Any]:
    """Return the content of generation_config.json."""
    settings, search = model.settings, model.search
    return {
        "num_beams": search["beam_size"],
        "length_penalty": search["length_penalty"],
        "min_length": search["min_len"],
        **special,
        "early_stopping": False if search["stop"] == "all" else _key(STOPS, search["stop"]),
        "forced_eos_token_id": special["eos_token_id"] if search["force_end"] else None,
        "no_repeat_ngram_size": search["no_repeat_ngram"] or 0,
        "max_length": search["max_len"] + 1,
        "bad_words_ids": [[i] for i in sorted(settings.never)] or None,
        "renormalize_logits": search["renormalize"] or bool(settings.never and settings.renormalize),
    }


def write_folder(folder: Path, model: Pretrained, files: Mapping[str, Any]) -> None:
    """Write a new folder with the weights, and with files of bytes or JSON; OSError if it exists or cannot be made."""
    ties = model.settings.tie_embeddings
    rows = {role: model.weights[ours] for role, ours in name_rows(ties).items() if ours in model.weights}
    tensors = {theirs: model.weights[ours] for ours, theirs in name_layers(model.settings, LAYER).items()}
    tensors |= {SHARED: rows["target"]} if ties == "all" else {SOURCE: rows["source"], TARGET: rows["target"]}
    tensors = {f"model.{name}": array for name, array in tensors.items()}
    if "bias" in rows:
        tensors[BIAS] = rows["bias"][None]
    if ties in ("none", "input"):
        tensors[OUTPUT] = rows["output"]
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    beside.mkdir(parents=True)
    try:
        for name, content in files.items():
            text = content if isinstance(content, bytes) else json.dumps(content, ensure_ascii=False, indent=2) + "\n"
            (beside / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        write_safetensors(beside / "model.safetensors", tensors)
        folder.mkdir()  # an error if another has made it meanwhile
        beside.replace(folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _key(names: Mapping[Any, str], value: str) -> Any:
    return next(key for key, each in names.items() if each == value)
