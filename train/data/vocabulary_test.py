import pytest

from train.data.vocabulary import SPECIAL, UNKNOWN, Vocabulary

SENTENCES = [["b", "a"], ["b", "c", "a"], ["b", "rare"]]


def test_words_are_ordered_by_frequency_then_by_the_alphabet_and_rare_ones_left_out():
    assert Vocabulary.build(SENTENCES).words == (*SPECIAL, "b", "a", "c", "rare")
    assert Vocabulary.build(SENTENCES, min_freq=2).words == (*SPECIAL, "b", "a")


def test_an_unknown_word_and_a_word_called_like_a_special_one_are_unknown():
    assert Vocabulary.build(SENTENCES).encode(["a", "never", "<eos>"]) == [5, UNKNOWN, UNKNOWN]


def test_decoding_ends_at_eos_and_shows_unknown_words():
    assert Vocabulary.build(SENTENCES).decode([4, 3, 2, 5]) == ["b", "<unk>"]


@pytest.mark.parametrize("wrong", [-1, 8])
def test_an_id_out_of_range_is_an_error(wrong):
    with pytest.raises(IndexError, match=r"ids must be in \[0, 8\)"):
        Vocabulary.build(SENTENCES).decode([wrong])


def test_saving_and_loading_gives_the_same_vocabulary(tmp_path):
    vocabulary = Vocabulary.build([["é", "l'", "œuf"]])
    vocabulary.save(tmp_path / "v.json")
    assert Vocabulary.load(tmp_path / "v.json") == vocabulary


def test_a_list_without_the_special_words_or_with_a_word_twice_is_refused():
    with pytest.raises(ValueError, match="must begin with"):
        Vocabulary(("a", "b"))
    with pytest.raises(ValueError, match="it holds 'a' twice"):
        Vocabulary((*SPECIAL, "a", "a"))
