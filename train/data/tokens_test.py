import pytest

from train.data.tokens import clean, detokenize, split_sentences, tokenize


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("नमस्ते दुनिया।", ["नमस्ते", "दुनिया", "।"]),
        ("வணக்கம்", ["வணக்கம்"]),
        ("สวัสดีครับ", ["สวัสดีครับ"]),
        ("বাংলা ភាសាខ្មែរ", ["বাংলা", "ភាសាខ្មែរ"]),
        ("שָׁלוֹם, السَّلَامُ", ["שָׁלוֹם", ",", "السَّلَامُ"]),
        ("İstanbul", ["i̇stanbul"]),
        ("می\u200cخواهم", ["می\u200cخواهم"]),
        ("👩\u200d👩\u200d👧ok👍🏽🇫🇷!", ["👩\u200d👩\u200d👧", "ok", "👍🏽", "🇫🇷", "!"]),
        ("2½ m² 1\ufe0f\u20e3", ["2½", "m²", "1\ufe0f\u20e3"]),
    ],
)
def test_marks_and_joiners_stay_with_their_word(text, words):
    assert tokenize(text) == words


def test_control_characters_and_spaces_of_every_kind_are_spaces():
    assert clean(" a\u202fb\x1b\x00c\u2028\u00a0d\u2581") == "a b c d"
    assert tokenize("a\x1b[31mb") == ["a", "[", "31mb"]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Hi! Is it far? Yes, 3.5 km.", ["Hi!", "Is it far?", "Yes, 3.5 km."]),
        ("Mr. Smith came. “Go.” He said (so.) J. S. Bach", ["Mr. Smith came.", "“Go.”", "He said (so.)", "J. S. Bach"]),
        ("Il dit : « Oui. » Elle part. 2 chats.", ["Il dit : « Oui. »", "Elle part.", "2 chats."]),
        ("It is e.g. old. and so on… maybe", ["It is e.g. old. and so on… maybe"]),
        ("你好。（我很好！）好", ["你好。", "（我很好！）", "好"]),
        ("真的！？好。 “你好。”他说", ["真的！？", "好。", "“你好。”", "他说"]),
        ("„Geh.“ Er kam am 3. Oktober. »Komm.« Nein.", ["„Geh.“", "Er kam am 3. Oktober.", "»Komm.«", "Nein."]),
        ("من هذا؟ أنا. वह आया। ठीक", ["من هذا؟", "أنا.", "वह आया।", "ठीक"]),
        (">>fra<< One.  Two. ", [">>fra<< One.", ">>fra<< Two."]),
        ("", [""]),
    ],
)
def test_a_text_is_cut_into_its_sentences(text, sentences):
    assert split_sentences(text) == sentences
