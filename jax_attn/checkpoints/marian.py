"""Marian's translators in the form of the Hugging Face hub, such as Helsinki-NLP/opus-mt-en-fr.

A folder has config.json, generation_config.json, model.safetensors or pytorch_model.bin, source.spm, target.spm and
vocab.json; with two vocabularies also target_vocab.json.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jax_attn.checkpoints.files import read_safetensors
from jax_attn.checkpoints.pretrained import Pretrained, Side, as_float32, read_json, require_files, require_rows

SUPPORTED = "Marian's models (config.json with model_type marian) and CTranslate2's (model.bin)"

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}

PROJECTIONS = {"q": "q", "k": "k", "v": "v", "o": "out"}
LAYER = {
    **{f"self_attention.W_{ours}": f"self_attn.{theirs}_proj" for ours, theirs in PROJECTIONS.items()},
    "self_attention_norm": "self_attn_layer_norm",
    "feed_forward.dense1": "fc1",
    "feed_forward.dense2": "fc2",
    "feed_forward_norm": "final_layer_norm",
}
OF_SOURCE = {
    **{f"cross_attention.W_{ours}": f"encoder_attn.{theirs}_proj" for ours, theirs in PROJECTIONS.items()},
    "cross_attention_norm": "encoder_attn_layer_norm",
}

EMBEDDINGS = {
    "all": {"decoder.embedding.weight": ("shared", "encoder.embed_tokens", "decoder.embed_tokens", "lm_head")},
    "input": {
        "decoder.embedding.weight": ("shared", "encoder.embed_tokens", "decoder.embed_tokens"),
        "decoder.dense.weight": ("lm_head",),
    },
    "output": {
        "encoder.embedding.weight": ("encoder.embed_tokens",),
        "decoder.embedding.weight": ("decoder.embed_tokens", "lm_head"),
    },
    "none": {
        "encoder.embedding.weight": ("encoder.embed_tokens",),
        "decoder.embedding.weight": ("decoder.embed_tokens",),
        "decoder.dense.weight": ("lm_head",),
    },
}
"""By `tie_embeddings`: each matrix with the names that it may have in a file, which may hold it more than once."""


def recognise(folder: Path) -> bool:
    """Return whether this is a folder of the hub, of Marian or not."""
    return (folder / "config.json").is_file() and not (folder / "model.bin").is_file()


def read(folder: Path) -> Pretrained:
    """Read a folder.

    Raises:
        OSError, ValueError: a file is missing, cut short or damaged, or the model is no Marian translator.
    """
    config = read_json(folder / "config.json")
    if config.get("model_type") != "marian":
        kind = config.get("model_type", config.get("architectures", "no model_type"))
        raise ValueError(f"{folder} holds {kind!r}, which is not supported; supported are {SUPPORTED}")
    shares = config.get("share_encoder_decoder_embeddings", True)
    require_files(folder, ["source.spm", "target.spm", "vocab.json", *([] if shares else ["target_vocab.json"])])
    settings = read_config(config)
    tensors = read_weights(folder)
    both = [tensors[name] for name in sorted(tensors) if name.endswith("coder.embed_tokens.weight")]
    if settings["tie_embeddings"] == "input" and len(both) == 2 and not np.array_equal(both[0], both[1]):
        settings["tie_embeddings"] = "none"  # transformers ties nothing with tie_word_embeddings false, since version 5
    weights = rename(tensors, settings)
    tokenizer = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    vocabularies = [read_tokens(folder / "vocab.json")]
    vocabularies.append(vocabularies[0] if shares else read_tokens(folder / "target_vocab.json"))
    special = _special(config, vocabularies)
    sides = [
        Side(tokens, special, (folder / f"{name}.spm").read_bytes(), tokenizer.get(f"{name}_lang") or "en")
        for name, tokens in zip(("source", "target"), vocabularies, strict=True)
    ]
    for name, side in zip(("source", "target"), sides, strict=True):
        embedding = weights.get(f"{'encoder' if name == 'source' else 'decoder'}.embedding.weight")
        require_rows(name, side.tokens, len(weights["decoder.embedding.weight"] if embedding is None else embedding))
    generation = folder / "generation_config.json"
    generation_config = config | (read_json(generation) if generation.is_file() else {})
    never, search = read_generation(generation_config, len(sides[1].tokens))
    settings |= {"never": tuple(sorted({*never, special[0]})), "renormalize": search.pop("renormalize")}
    longest = config.get("max_position_embeddings", 512)
    search["max_len"] = min(search["max_len"], longest)
    return Pretrained(settings, weights, sides[0], sides[1], longest, search, normalizes=True)


def read_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Transformer's settings; ValueError for those that it cannot have."""
    names = ("d_model", "encoder_layers", "decoder_layers", "encoder_ffn_dim", "encoder_attention_heads")
    for name in (*names, "decoder_ffn_dim", "decoder_attention_heads"):
        if type(config.get(name)) is not int or not 1 <= config[name] <= 65_536:
            raise ValueError(f"config.json must have {name}, a number from 1 to 65536; got {config.get(name)!r}")
    for name in ("ffn_dim", "attention_heads"):
        if config[f"encoder_{name}"] != config[f"decoder_{name}"]:
            raise ValueError(f"encoder_{name} and decoder_{name} of config.json must be the same, which is supported")
    for name in ("normalize_before", "normalize_embedding", "add_final_layer_norm"):
        if config.get(name):
            raise ValueError(f"{name} of config.json is not supported; Marian's models have it false")
    activation = config.get("activation_function", "gelu")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation_function must be one of {', '.join(ACTIVATIONS)}; got {activation!r}")
    shares, ties = config.get("share_encoder_decoder_embeddings", True), config.get("tie_word_embeddings", True)
    return {
        "embed_size": config["d_model"],
        "num_hiddens": config["encoder_ffn_dim"],
        "num_layers": config["decoder_layers"],
        "encoder_layers": config["encoder_layers"],
        "num_heads": config["encoder_attention_heads"],
        "dropout": float(config.get("dropout", 0.1)),
        "dropout_attention": float(config.get("attention_dropout", 0.0)),
        "dropout_hidden": float(config.get("activation_dropout", 0.0)),
        "activation": ACTIVATIONS[activation],
        "norm": "post",
        "positions": "halves",
        "scale_embedding": bool(config.get("scale_embedding", False)),
        "tie_embeddings": {(True, True): "all", (True, False): "input", (False, True): "output"}.get(
            (bool(shares), bool(ties)), "none"
        ),
        "start": "fixed" if config.get("decoder_start_token_id") == config.get("pad_token_id") else "learnt",
    }


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
    except Exception as error:  # torch raises errors of many kinds, and some advise to run what the file holds
        raise ValueError(f"{path} is damaged, cut short or holds more than weights; no code of it was run") from error
    if not isinstance(state, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        raise ValueError(f"{path} must hold tensors by name")
    return {name: (x.float() if x.dtype == torch.bfloat16 else x).numpy() for name, x in state.items()}


def names(settings: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return our name of each tensor, and the names that it may have in a file, without a leading `model.`."""
    found = dict[str, tuple[str, ...]]()
    for part, layers in (("encoder", settings["encoder_layers"]), ("decoder", settings["num_layers"])):
        layer = LAYER | OF_SOURCE if part == "decoder" else LAYER
        for number in range(layers):
            for ours, theirs in layer.items():
                for leaf in ("weight", "bias"):
                    found[f"{part}.layers.{number}.{ours}.{leaf}"] = (f"{part}.layers.{number}.{theirs}.{leaf}",)
    for ours, theirs in EMBEDDINGS[settings["tie_embeddings"]].items():
        found[ours] = tuple(f"{name}.weight" for name in theirs)
    return found | {output_bias(settings): ("final_logits_bias",)}


def output_bias(settings: Mapping[str, Any]) -> str:
    """Return the name of the output layer's bias."""
    return "decoder.dense_bias" if settings["tie_embeddings"] in ("output", "all") else "decoder.dense.bias"


def rename(tensors: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the weights by our names.

    Raises:
        ValueError: tensors are missing, are others, or differ where config.json says that they are one.
    """
    given = {name.removeprefix("model."): array for name, array in tensors.items()}
    expected = names(settings)
    unknown = set(given) - {name for every in expected.values() for name in every}
    unknown -= {"encoder.embed_positions.weight", "decoder.embed_positions.weight", "shared.weight"}
    if unknown:
        raise ValueError(f"the weights do not fit config.json; unknown: {', '.join(sorted(unknown))}")
    weights = dict[str, np.ndarray]()
    for ours, theirs in expected.items():
        copies = [name for name in theirs if name in given]
        if not copies:
            raise ValueError(f"the weights do not fit config.json; missing: {' or '.join(theirs)}")
        if any(not np.array_equal(given[copies[0]], given[copy]) for copy in copies[1:]):
            raise ValueError(f"{' and '.join(copies)} are one matrix by config.json, and differ in the weights")
        weights[ours] = given[copies[0]]
    bias = output_bias(settings)
    weights[bias] = weights[bias].reshape(-1)
    return as_float32(weights)


def read_tokens(path: Path) -> list[str]:
    """Read the tokens in the order of their ids; ValueError unless these are 0, 1, 2, …"""
    vocabulary = read_json(path)
    if sorted(vocabulary.values(), key=str) != sorted(range(len(vocabulary)), key=str):
        raise ValueError(f"{path} must give each token an id, from 0 to {len(vocabulary) - 1}")
    return sorted(vocabulary, key=vocabulary.__getitem__)


def _special(config: Mapping[str, Any], vocabularies: list[list[str]]) -> tuple[int, int, int]:
    """Return the ids of the decoder's first token, the end and the unknown token, which both vocabularies share."""
    start, end = (config.get(name) for name in ("decoder_start_token_id", "eos_token_id"))
    unknown = [tokens.index("<unk>") if "<unk>" in tokens else None for tokens in vocabularies]
    ends = [tokens.index("</s>") if "</s>" in tokens else None for tokens in vocabularies]
    size = min(map(len, vocabularies))
    if type(end) is not int or unknown[0] is None or unknown[0] != unknown[1] or ends != [end, end]:
        raise ValueError(f"both vocabularies must have </s> with the id {end!r}, and <unk> with one id")
    if type(start) is not int or not 0 <= start < size or start in (end, unknown[0]):
        raise ValueError(f"decoder_start_token_id must be in [0, {size}), and neither </s> nor <unk>; got {start!r}")
    return start, end, unknown[0]


def read_generation(config: Mapping[str, Any], vocab_size: int) -> tuple[list[int], dict[str, Any]]:
    """Return the ids that are never produced, and the options of the search by our names."""
    words = config.get("bad_words_ids") or []
    if any(len(word) != 1 or not 0 <= word[0] < vocab_size for word in words):
        raise ValueError(f"bad_words_ids must be single ids in [0, {vocab_size}), which is supported; got {words}")
    early = config.get("early_stopping") or False
    search = {
        "beam_size": config.get("num_beams") or 1,
        "length_penalty": float(1.0 if config.get("length_penalty") is None else config["length_penalty"]),
        "stop": {True: "first", False: "likely"}.get(early, "never"),
        "force_end": config.get("forced_eos_token_id") is not None,
        "no_repeat_ngram": config.get("no_repeat_ngram_size") or None,
        "max_len": (config.get("max_length") or 512) - 1,  # theirs counts the decoder's first token
        "renormalize": bool(config.get("renormalize_logits", False)),
    }
    return [word[0] for word in words], search
