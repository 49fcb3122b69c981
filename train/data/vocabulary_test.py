import pytest

from train.config import CorpusConfig
from train.data.corpus import Pair
from train.data.vocabularies import build_vocabularies, load_vocabularies, save_vocabularies
from train.data.vocabulary import SPECIAL, UNKNOWN
from train.data.word_vocabulary import WordVocabulary
from train.setting import ConfigError

TEXTS = ["B a", "b c a", "b rare"]


def build(texts: list[str], **settings) -> WordVocabulary:
    return build_vocabularies(CorpusConfig(**settings), [Pair(text, "x") for text in texts])[0]


def test_words_are_ordered_by_frequency_then_by_the_alphabet_and_rare_ones_left_out():
    assert build(TEXTS).tokens == (*SPECIAL, "b", "a", "c", "rare")
    assert build(TEXTS, min_freq=2).tokens == (*SPECIAL, "b", "a")


def test_an_unknown_word_and_a_word_called_like_a_special_one_are_unknown():
    book = build(TEXTS, tokenizer="book")  # which leaves <eos> in one piece
    assert book.encode("A never <eos> <pad>") == [5, UNKNOWN, UNKNOWN, UNKNOWN]
    assert book.sample_all(["a"], 0) == book.encode_all(["a"]) == [[5]]


def test_decoding_ends_at_eos_and_shows_unknown_words():
    vocabulary = build(["j' ai b"])
    assert vocabulary.decode(vocabulary.encode("J'ai vu")) == "j'ai <unk>"
    assert vocabulary.decode([4, 2, 5]) == vocabulary.tokens[4]
    assert vocabulary.words([4, 2]) == [range(0, 1), range(1, 2)]


@pytest.mark.parametrize("wrong", [-1, 8])
def test_an_id_out_of_range_is_an_error(wrong):
    with pytest.raises(IndexError, match=r"ids must be in \[0, 8\)"):
        build(TEXTS).decode([wrong])


def test_saving_and_loading_gives_the_same_vocabularies(tmp_path):
    built = build_vocabularies(CorpusConfig(tokenizer="book"), [Pair("É l'œuf!", "x")])
    save_vocabularies(tmp_path, "book", *built)
    assert load_vocabularies(tmp_path, "book") == built
    assert built[0].tokens[4:] == ("!", "l'œuf", "é")


def test_a_damaged_file_is_an_error(tmp_path):
    for content, message in {
        '["a", "b"]': "must begin with",
        '["<pad>", "<bos>", "<eos>", "<unk>", "a", "a"]': "it holds 'a' twice",
        '["<pad>", "<bos>", "<eos>", "<unk>", 7]': "it holds 7",
        '["<pad>': "it is not JSON",
        "{}": "must hold a JSON list",
    }.items():
        (tmp_path / "source.json").write_text(content)
        (tmp_path / "target.json").write_text(content)
        with pytest.raises(ConfigError, match=f"source.json is damaged: .*{message}"):
            load_vocabularies(tmp_path, "words")
