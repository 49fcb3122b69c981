import pytest

from train.data.tokens import detokenize, tokenize


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("J'ai faim!", ["j'", "ai", "faim", "!"]),
        ("Est-ce que l'eau est bonne\u202f?", ["est-ce", "que", "l'", "eau", "est", "bonne", "?"]),
        ("cafe\u0301", ["café"]),
        ("", []),
    ],
)
def test_words_split_off_punctuation_and_what_stands_before_an_apostrophe(text, words):
    assert tokenize(text) == words


def test_the_book_splits_off_comma_full_stop_and_exclamation_mark_and_nothing_else():
    assert tokenize("I'm OK, Tom.", "book") == ["i'm", "ok", ",", "tom", "."]
    assert tokenize("Va\u202f!", "book") == ["va", "!"]
    assert tokenize("Who?", "book") == ["who?"]


def test_detokenize_is_the_inverse_on_text_with_spaced_punctuation():
    text = "est-ce que l'homme n'a pas mangé ?"
    assert detokenize(tokenize(text)) == text
