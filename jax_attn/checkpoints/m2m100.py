"""M2M100's translators between many languages in the form of the Hugging Face hub; NLLB's are such models.

    facebook/m2m100_418M, facebook/nllb-200-distilled-600M

A folder has config.json, generation_config.json, the weights, sentencepiece.bpe.model and, with the names of the
languages, special_tokens_map.json or tokenizer_config.json; of M2M100 also vocab.json. Both sides begin with the token
of their language, and the decoder begins with </s>.

Source: Fan et al., 2021, "Beyond English-Centric Multilingual Machine Translation"; NLLB Team, 2022, "No Language Left
Behind".
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from jax_attn.checkpoints import hugging_face
from jax_attn.checkpoints.hugging_face import LAYER, OTHERS, as_config, as_generation, write_folder
from jax_attn.checkpoints.pretrained import (
    Language,
    Option,
    Pretrained,
    find_languages,
    only,
    read_json,
    read_options,
    rename,
)

ALWAYS = {
    "norm": "pre", "norm_epsilon": 1e-5, "positions": "fairseq", "use_bias": True, "output_bias": False,
    "source_end": True,
}  # fmt: skip
"""Settings that every such model has."""
OF_MODEL = {
    **hugging_face.OF_MODEL,
    "activation_function": Option(tuple(hugging_face.ACTIVATIONS), "relu"),
    "attention_dropout": Option(hugging_face.Rate, 0.1),
    "scale_embedding": Option(bool, True),
    "decoder_start_token_id": Option(int, 2),
    **only(["M2M100ForConditionalGeneration"], "architectures"),
    **only(True, "normalize_before"),
    **only(1, "pad_token_id"),
}
"""The options that config.json may have."""
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
"""The first tokens, in fairseq's order."""
PIECES, VOCABULARY = "sentencepiece.bpe.model", "vocab.json"
MOST_ADDED = 10_000
"""Tokens beside the pieces, at most."""


def read(folder: Path) -> Pretrained:
    """Read a folder.

    Raises:
        OSError, ValueError: a file is missing, cut short or damaged, or the model is none of M2M100's kind.
    """
    options = read_options(read_json(folder / "config.json"), OF_MODEL, "config.json")
    if not (folder / PIECES).is_file():
        raise ValueError(f"{folder} has no {PIECES}; tokenizer.json alone is not read, since it cuts text otherwise")
    generation = hugging_face.read_search(folder)
    settings = hugging_face.read_config(options, ALWAYS)
    tensors = hugging_face.read_weights(folder)
    rows = hugging_face.find_rows(tensors, True, options["tie_word_embeddings"], output_bias=False)
    layers = {name: array for name, array in tensors.items() if name not in OTHERS}
    settings, weights = rename(settings, LAYER, layers, rows)

    tokens, size, end = read_tokens(folder), len(rows["target"]), SPECIAL.index("</s>")
    if len(tokens) > size or tokens[: len(SPECIAL)] != SPECIAL:
        raise ValueError(f"the weights have {size} rows, which are no {len(tokens)} tokens that begin with {SPECIAL}")
    languages = find_languages(tokens)
    if not languages:
        raise ValueError(f"{folder} names no languages; they stand in special_tokens_map.json or tokenizer_config.json")
    tokens += [f"madeupword{i}" for i in range(size - len(tokens))]  # as fairseq names rows that are not used
    pieces = (folder / PIECES).read_bytes()
    side = Language(tokens, (SPECIAL.index("<s>"), end, SPECIAL.index("<unk>")), pieces, languages=languages)
    hugging_face.require_ids(
        ("vocab_size", options["vocab_size"], size, "the rows of the weights"),
        ("decoder_start_token_id", options["decoder_start_token_id"], end, "the id of </s>"),
        ("decoder_start_token_id", generation["decoder_start_token_id"], end, "the id of </s>"),
        ("eos_token_id", generation["eos_token_id"], end, "the id of </s>"),
        ("forced_eos_token_id", generation["forced_eos_token_id"], end, "the id of </s>"),
    )
    longest = options["max_position_embeddings"]
    never, search = hugging_face.read_generation(generation, size, end, end)
    settings = replace(settings, start_token=end, never=never, renormalize=search["renormalize"])
    search["max_len"] = min(search["max_len"], longest)
    return Pretrained(settings, weights, side, side, longest, search)


def read_tokens(folder: Path) -> list[str]:
    """Return the tokens by their ids: special ones, pieces, languages and, in NLLB, <mask>.

    Ids of pieces are those of vocab.json or, without it, one more than in the model of sentencepiece, which has no
    <pad>. The others follow, unless the folder gives their ids.
    """
    has_vocabulary = (folder / VOCABULARY).is_file()
    tokens = hugging_face.read_tokens(folder / VOCABULARY) if has_vocabulary else read_pieces(folder)
    config, special = (
        read_json(folder / name) if (folder / name).is_file() else {}
        for name in ("tokenizer_config.json", "special_tokens_map.json")
    )
    added = {
        int(i): text
        for i, token in (config.get("added_tokens_decoder") or {}).items()
        if i.isdecimal() and (text := _text(token)) and int(i) >= len(tokens)
    }
    if find_languages(list(added.values())):
        last = min(max(added), len(tokens) + MOST_ADDED)
        return tokens + [added.get(i, f"<none {i}>") for i in range(len(tokens), last + 1)]
    names = "additional_special_tokens", "extra_special_tokens"
    named = [_text(token) for content in (special, config) for name in names for token in content.get(name) or ()]
    return [*tokens, *find_languages(list(dict.fromkeys(named))), *["<mask>"][has_vocabulary:]]


def read_pieces(folder: Path) -> list[str]:
    """Return the special tokens and the pieces; ValueError if the model of sentencepiece cannot be read."""
    try:
        import sentencepiece

        pieces = sentencepiece.SentencePieceProcessor(model_proto=(folder / PIECES).read_bytes())
    except ImportError as error:
        raise ValueError(f"{PIECES} is read by sentencepiece, which is not installed") from error
    except (RuntimeError, OSError) as error:
        raise ValueError(f"{PIECES} is damaged or cut short: it holds no model of sentencepiece") from error
    return [*SPECIAL, *(pieces.id_to_piece(i) for i in range(3, len(pieces)))]


def _text(token: Any) -> str:
    """Return the text of a token, which may stand in a record."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def write(model: Pretrained, folder: Path) -> None:
    """Write a new folder that `transformers.M2M100ForConditionalGeneration` loads, with the same weights in float32.

    Raises:
        OSError: the folder exists, or cannot be made.
        ValueError: there is no such model.
    """
    settings, side = model.settings, model.source
    matters = ALWAYS | {"tie_embeddings": "all"}
    other = [f"{name} {getattr(settings, name)}" for name, x in matters.items() if getattr(settings, name) != x]
    if other or model.target.tokens != side.tokens or not side.languages or side.pieces is None:
        raise ValueError(f"M2M100 has no model with {', '.join(other) or 'these vocabularies'}")
    is_nllb = not side.languages[0].startswith("__")
    kind, end = "NllbTokenizer" if is_nllb else "M2M100Tokenizer", side.special[1]
    special = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": end, "decoder_start_token_id": end}
    first, known = min(map(side.tokens.index, side.languages)), {*SPECIAL, *side.languages, "<mask>"}
    ids = {token: i for i, token in enumerate(side.tokens) if token in known}
    added = {str(i): {"content": token, "special": True} for token, i in ids.items()}
    named = {"additional_special_tokens": side.languages}
    config = as_config(model, special) | {"model_type": "m2m_100", "architectures": ["M2M100ForConditionalGeneration"]}
    files = {
        "config.json": config | {"tokenizer_class": kind},
        "generation_config.json": as_generation(model, special),
        "tokenizer_config.json": {"tokenizer_class": kind, "added_tokens_decoder": added} | named,
        "special_tokens_map.json": named,
        PIECES: side.pieces,
    }
    if not is_nllb:
        files[VOCABULARY] = {token: i for i, token in enumerate(side.tokens[:first])}
    write_folder(folder, model, files)
