"""Marian's translators in the form of the Hugging Face hub, such as Helsinki-NLP/opus-mt-en-fr.

A folder has config.json, generation_config.json, model.safetensors or pytorch_model.bin, source.spm, target.spm and
vocab.json; with two vocabularies also target_vocab.json.
"""

from dataclasses import replace
from pathlib import Path

from jax_attn.checkpoints import hugging_face
from jax_attn.checkpoints.hugging_face import LAYER, OTHERS, as_config, as_generation, write_folder
from jax_attn.checkpoints.pretrained import (
    Option,
    Pretrained,
    only,
    read_json,
    read_language,
    read_options,
    rename,
)

ALWAYS = {
    "norm": "post", "norm_epsilon": 1e-5, "positions": "halves", "use_bias": True, "output_bias": True,
    "source_end": True, "fixed_start": True,
}  # fmt: skip
"""Settings that every Marian model has."""
OF_MODEL = {
    **hugging_face.OF_MODEL,
    "share_encoder_decoder_embeddings": Option(bool, True),
    "decoder_vocab_size": Option(int, None),
    **only(["MarianMTModel"], "architectures"),
    **only(False, "add_bias_logits", "add_final_layer_norm", "normalize_before", "normalize_embedding"),
}
"""The options that config.json may have."""
OF_TOKENIZER = {f"{side}_lang": Option(str, "en") for side in ("source", "target")}
"""The options that tokenizer_config.json may have."""


def read(folder: Path) -> Pretrained:
    """Read a folder.

    Raises:
        OSError, ValueError: a file is missing, cut short or damaged, or the model is no Marian translator.
    """
    options = read_options(read_json(folder / "config.json"), OF_MODEL, "config.json")
    shares, ties = options["share_encoder_decoder_embeddings"], options["tie_word_embeddings"]
    files = ["vocab.json", "vocab.json" if shares else "target_vocab.json"]
    if missing := [name for name in ("source.spm", "target.spm", *files) if not (folder / name).is_file()]:
        raise ValueError(f"{folder} has no {', '.join(missing)}")
    generation = hugging_face.read_search(folder)
    path = folder / "tokenizer_config.json"
    tokenizer = read_options(read_json(path) if path.is_file() else {}, OF_TOKENIZER, path.name)

    settings = hugging_face.read_config(options, ALWAYS)
    tensors = hugging_face.read_weights(folder)
    rows = hugging_face.find_rows(tensors, shares, ties)
    layers = {name: array for name, array in tensors.items() if name not in OTHERS}
    settings, weights = rename(settings, LAYER, layers, rows)

    vocabularies = [hugging_face.read_tokens(folder / name) for name in files]
    source, target = (
        read_language(folder, side, tokens, ("<pad>", "</s>", "<unk>"), len(rows[side]), tokenizer[f"{side}_lang"])
        for side, tokens in zip(("source", "target"), vocabularies, strict=True)
    )
    start, end, _ = target.special
    hugging_face.require_ids(
        ("vocab_size", options["vocab_size"], len(source.tokens), "the tokens of the source"),
        ("decoder_vocab_size", options["decoder_vocab_size"], len(target.tokens), "the tokens of the target"),
        ("decoder_start_token_id", options["decoder_start_token_id"], start, "the id of <pad>"),
        ("decoder_start_token_id", generation["decoder_start_token_id"], start, "the id of <pad>"),
        ("eos_token_id", generation["eos_token_id"], end, "the id of </s>"),
        ("forced_eos_token_id", generation["forced_eos_token_id"], end, "the id of </s>"),
    )
    longest = options["max_position_embeddings"]
    never, search = hugging_face.read_generation(generation, len(target.tokens), start, end)
    settings = replace(settings, never=never, renormalize=search["renormalize"])
    search["max_len"] = min(search["max_len"], longest)
    return Pretrained(settings, weights, source, target, longest, search)


def write(model: Pretrained, folder: Path) -> None:
    """Write a new folder that `transformers.MarianMTModel.from_pretrained` loads, with the same weights in float32.

    Raises:
        OSError: the folder exists, or cannot be made.
        ValueError: Marian has no such model.
    """
    settings, source, target = model.settings, model.source, model.target
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
    shares = settings.tie_embeddings == "all"
    start, end, _ = target.special
    special = {"eos_token_id": end, "pad_token_id": start, "decoder_start_token_id": start}
    config = as_config(model, special) | {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "share_encoder_decoder_embeddings": shares,
        "decoder_vocab_size": len(target.tokens),
    }
    tokenizer = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": not shares,
        "model_max_length": model.max_len,
    }
    files = {
        "config.json": config,
        "generation_config.json": as_generation(model, special),
        "tokenizer_config.json": tokenizer | {"source_lang": source.moses, "target_lang": target.moses},
        "vocab.json": {token: i for i, token in enumerate(source.tokens)},
        "source.spm": source.pieces,
        "target.spm": target.pieces,
    }
    if not shares:
        files["target_vocab.json"] = {token: i for i, token in enumerate(target.tokens)}
    write_folder(folder, model, files)
