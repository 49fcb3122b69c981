"""What a folder's files say is read, neutral, or refused by name."""

import math
import struct

import numpy as np
import pytest

from jax_attn.checkpoints import ctranslate2, hugging_face, m2m100, marian
from jax_attn.checkpoints.pretrained import read_json, read_language, read_options

TABLES = {
    "config.json": marian.OF_MODEL,
    "M2M100's config.json": m2m100.OF_MODEL,
    "generation_config.json": hugging_face.OF_SEARCH,
    "tokenizer_config.json": marian.OF_TOKENIZER,
    "CTranslate2's config.json": ctranslate2.OPTIONS,
}
EACH = [(file, name) for file, table in TABLES.items() for name in table]
WRONG = ["x", -7, 0.3, 70_000, math.nan, math.inf, 10**400, [[None]], ["x"], {"x": 1}, [[[]]]]
"""Values of which no option has all. A text, a whole number or a number may be right somewhere."""


@pytest.mark.parametrize(("file", "name"), EACH)
def test_what_is_not_supported_is_refused_by_name(file, name):
    option, errors = TABLES[file][name], list[str]()
    for value in WRONG:
        try:
            assert read_options({name: value}, {name: option}, file) == {name: value}
        except ValueError as error:
            errors.append(str(error))
    for error in errors:
        assert error.startswith(f"{name} of {file} must be ")
        assert "; got " in error
        assert len(error) < 300
        assert "\n" not in error
    assert len(errors) >= len(WRONG) - (0 if isinstance(option.kind, tuple) else 4)


@pytest.mark.parametrize(("file", "name"), EACH)
def test_a_default_may_be_given_or_left_out(file, name):
    option = TABLES[file][name]
    if option.default is ...:
        with pytest.raises(ValueError, match=f"^{name} of {file} must be .*; got nothing$"):
            read_options({}, {name: option}, file)
        return
    for content in ({}, {name: None}, {name: option.default}):
        assert read_options(content, {name: option}, file) == {name: option.default}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("do_sample", True, "do_sample of F must be false, since no other value is supported; got true"),
        ("repetition_penalty", 1.2, "repetition_penalty of F must be 1.0, since no other value is supported; got 1.2"),
        ("num_beams", 0, "num_beams of F must be a whole number in [1, 10000]; got 0"),
        ("num_beams", True, "num_beams of F must be a whole number in [1, 10000]; got true"),
        ("length_penalty", -1, "length_penalty of F must be a number in [0, 10]; got -1"),
        ("length_penalty", math.nan, "length_penalty of F must be a number in [0, 10]; got NaN"),
        ("early_stopping", "x", 'early_stopping of F must be false or true or "never", since no other value is '
         'supported; got "x"'),
        ("max_length", 1, "max_length of F must be a whole number in [2, 65537]; got 1"),
        ("bad_words_ids", [7], "bad_words_ids of F must be a list of lists of ids; got [7]"),
        ("eos_token_id", "x", 'eos_token_id of F must be a whole number or a list of ids; got "x"'),
        ("sequence_bias", [[[1], -9.0]] * 99, "sequence_bias of F must be null or [] or {}, since no other value is "
         f"supported; got {str([[[1], -9.0]] * 99)[:80]}…"),
    ],
)  # fmt: skip
def test_a_refusal_is_one_line(name, value, message):
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (the whole message is compared)
        read_options({name: value}, {name: hugging_face.OF_SEARCH[name]}, "F")
    assert str(refused.value) == message


GENERATION = {"bad_words_ids": [[1], [9]]}


def generation(**changes):
    content = read_options(GENERATION | changes, hugging_face.OF_SEARCH, "generation_config.json")
    return hugging_face.read_generation(content, 10, start=9, end=0)


def test_the_search_is_that_of_transformers():
    never, search = generation(num_beams=4, length_penalty=2, early_stopping=True, max_length=20, min_length=3)
    assert never == (1, 9)
    assert search == {
        "beam_size": 4, "length_penalty": 2.0, "stop": "first", "force_end": False, "no_repeat_ngram": None,
        "min_len": 3, "max_len": 19, "renormalize": False,
    }  # fmt: skip
    never, search = generation(
        suppress_tokens=[4], bad_words_ids=[[0], [9]], max_new_tokens=7, min_new_tokens=5, min_length=9,
        no_repeat_ngram_size=2, renormalize_logits=True, forced_eos_token_id=[0],
    )  # fmt: skip
    assert never == (4, 9)  # transformers leaves the end out of the bad words
    assert (search["max_len"], search["min_len"], search["no_repeat_ngram"]) == (7, 6, 2)
    assert (search["renormalize"], search["force_end"]) == (True, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bad_words_ids": [[1, 2]]}, r"bad_words_ids must be single ids in \[0, 10\); got \[\[1, 2\]\]"),
        ({"bad_words_ids": [[10]]}, r"bad_words_ids must be single ids in \[0, 10\); got \[\[10\]\]"),
        ({"suppress_tokens": [-1]}, r"suppress_tokens must be single ids in \[0, 10\); got \[-1\]"),
        ({"bad_words_ids": [[i] for i in range(10)]}, "must leave </s> and another token"),
        ({"suppress_tokens": [0]}, "must leave </s> and another token"),
        ({"bad_words_ids": [], "no_repeat_ngram_size": 2}, "no_repeat_ngram_size needs bad_words_ids with 9"),
    ],
)
def test_tokens_that_cannot_be_left_out_are_an_error(changes, message):
    with pytest.raises(ValueError, match=message):
        generation(**changes)


def test_json_that_is_nested_too_deep_is_damaged(tmp_path):
    (tmp_path / "deep.json").write_text("[" * 100_000 + "]" * 100_000, encoding="utf-8")
    with pytest.raises(ValueError, match=r"deep\.json is damaged or cut short"):
        read_json(tmp_path / "deep.json", list)


def test_a_side_has_three_special_tokens_and_pieces_that_are_some(tmp_path):
    tokens = ["</s>", "<unk>", "a"]
    with pytest.raises(ValueError, match="must be three; got </s>, </s>, <unk>"):
        read_language(tmp_path, "target", tokens, ("</s>", "</s>", "<unk>"), 3, None)
    (tmp_path / "source.spm").write_bytes(b"")
    with pytest.raises(ValueError, match=r"source\.spm is empty"):
        read_language(tmp_path, "source", tokens, ("a", "</s>", "<unk>"), 3, None)


@pytest.mark.parametrize("name", ctranslate2.REFUSED)
def test_an_attribute_of_another_kind_of_transformer_is_refused(name, tmp_path):
    tensors = {"decoder/layer_0/attention/linear_0/weight": np.ones((2, 2), np.float32)}
    tensors[f"decoder/layer_0/self_attention/{name}"] = np.array(0.5, np.float32)

    def text(string):
        return struct.pack("<H", len(string) + 1) + string.encode() + b"\0"

    content = struct.pack("<I", 6) + text("TransformerSpec") + struct.pack("<II", 1, len(tensors))
    for key, array in tensors.items():
        shape = struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        content += text(key) + shape + struct.pack("<BI", 0, array.nbytes) + array.tobytes()
    (tmp_path / "model.bin").write_bytes(content + struct.pack("<I", 0))
    with pytest.raises(ValueError, match=f"{name}, which is not supported"):
        ctranslate2.read(tmp_path)
