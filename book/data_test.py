"""The chapters on translation data and BLEU: what they call, and what they print."""

import numpy as np
import pytest

from book import data
from book.data import (
    MTFraEng,
    Vocab,
    bleu,
    build_array_nmt,
    load_array,
    load_data_nmt,
    preprocess_nmt,
    read_data_nmt,
    teacher_forcing,
    tokenize_nmt,
    truncate_pad,
)
from train.data import download
from train.data.corpus import CorpusError

TEXT = "Go.\tVa !\nHi.\tSalut !\tCC-BY 2.0\nRun!\tCours\u202f!\n\nWho?\tQui ?\nno tab\nGo on.\tVas-y.\n"


@pytest.fixture
def path(tmp_path):
    (tmp_path / "fra.txt").write_text(TEXT * 20, encoding="utf-8")
    return tmp_path / "fra.txt"


def test_text_to_tokens(path):
    text = read_data_nmt(path)
    assert text[:22] == "Go.\tVa !\nHi.\tSalut !\tC"
    text = preprocess_nmt(text)
    assert text[:17] == "go .\tva !\nhi .\tsa"
    source, target = tokenize_nmt(text)
    assert len(source) == len(target) == 5 * 20  # the third column and the lines without a tab are left out
    assert source[:3] == [["go", "."], ["hi", "."], ["run", "!"]]
    assert target[:4] == [["va", "!"], ["salut", "!"], ["cours", "!"], ["qui", "?"]]
    assert len(tokenize_nmt(text, 3)[0]) == 3  # the book's code takes one more
    assert tokenize_nmt(preprocess_nmt(TEXT, ",.!"))[0][3] == ["who?"]  # the edition of 2020


def test_vocab():
    vocab = Vocab([["go", "."], ["hi", "."]], min_freq=1, reserved_tokens=["<pad>", "<bos>", "<eos>"])
    assert vocab.idx_to_token == ["<unk>", "<pad>", "<bos>", "<eos>", ".", "go", "hi"]
    assert vocab["."] == 4
    assert vocab[["hi", "never seen"]] == [6, 0]
    assert vocab.to_tokens(np.array([5, 4, 3])) == ["go", ".", "<eos>"]
    assert vocab.token_freqs[0] == (".", 2)
    assert len(Vocab(["a", "a", "b"], min_freq=2)) == 2
    old = Vocab(["a", "a", "b"], use_special_tokens=True)
    assert (old.pad, old.bos, old.eos, old.unk, old["a"]) == (0, 1, 2, 3, 4)
    assert old.to_tokens([3]) == ["<unk>"]  # the first PyTorch port prints nothing
    with pytest.raises(IndexError, match=r"indices must be in \[0, 7\); got -1"):
        vocab.to_tokens([-1])
    with pytest.raises(ValueError, match="vocab must know <eos>"):
        build_array_nmt([["go"]], Vocab(["go"]), 4)
    with pytest.raises(TypeError, match="tokens must be a list of tokens"):
        Vocab("go")


def test_padding_and_arrays():
    vocab = Vocab([["go", "."]], reserved_tokens=data.SPECIAL)
    assert truncate_pad([7, 8, 9], 2, 1) == [7, 8]
    assert truncate_pad([7, 8, 9], 5, 1) == [7, 8, 9, 1, 1]
    array, valid_len = build_array_nmt([["go", "."], ["go"] * 9], vocab, 5)
    np.testing.assert_array_equal(array, [[4, 5, 3, 1, 1], [4, 4, 4, 4, 4]])
    np.testing.assert_array_equal(valid_len, [3, 5])


def test_the_first_batch(path):
    train_iter, src_vocab, tgt_vocab = load_data_nmt(batch_size=2, num_steps=8, path=path)
    X, X_valid_len, Y, Y_valid_len = next(iter(train_iter))
    assert X.shape == Y.shape == (2, 8)
    assert X_valid_len.shape == Y_valid_len.shape == (2,)
    assert (X[np.arange(2), X_valid_len - 1] == src_vocab["<eos>"]).all()
    assert len(train_iter) == 50
    assert tgt_vocab.to_tokens(Y[0])[-1] == "<pad>"
    first, second = (np.concatenate([batch[0] for batch in train_iter]).tolist() for _ in range(2))
    assert first != second  # each pass has its own order
    assert sorted(first) == sorted(second)


def test_the_edition_of_2020_returns_vocabularies_first_and_targets_with_bos(path):
    src_vocab, tgt_vocab, train_iter = load_data_nmt(4, 6, path=path, edition="2020")
    batch = next(iter(train_iter))
    assert (batch[2][:, 0] == tgt_vocab.bos).all()
    assert batch[2].shape == (4, 6)
    X, _, dec_input, label, label_len = teacher_forcing(batch, None)
    assert dec_input.shape == label.shape == (4, 5)
    assert (label[np.arange(4), label_len - 1] == tgt_vocab.eos).all()
    assert src_vocab.to_tokens(X[0])[-1] == "<pad>"
    with pytest.raises(ValueError, match="Y must not begin with <bos>"):
        teacher_forcing(batch, tgt_vocab.bos)
    train_iter, *_ = load_data_nmt(4, 6, path=path)
    batch = next(iter(train_iter))
    _, _, dec_input, label, _ = teacher_forcing(batch, 2)
    np.testing.assert_array_equal(dec_input[:, 1:], batch[2][:, :-1])
    assert (dec_input[:, 0] == 2).all()
    np.testing.assert_array_equal(label, batch[2])
    with pytest.raises(ValueError, match="Y must begin with <bos> in every row"):
        teacher_forcing(batch, None)


def test_mt_fra_eng(path):
    fra_eng = MTFraEng(batch_size=3, num_train=60, num_val=20, path=path)
    src, tgt, src_valid_len, label = next(iter(fra_eng.train_dataloader()))
    assert src.shape == tgt.shape == label.shape == (3, 9)
    assert src_valid_len.shape == (3,)
    np.testing.assert_array_equal(tgt[:, 1:], label[:, :-1])
    assert len(fra_eng.train_dataloader()) == 20
    assert len(fra_eng.val_dataloader()) == 7
    src, tgt, src_valid_len, _ = fra_eng.build(["Hi."], ["Salut !"])
    assert fra_eng.src_vocab.to_tokens(src[0])[:4] == ["hi", ".", "<eos>", "<pad>"]
    assert fra_eng.tgt_vocab.to_tokens(tgt[0])[:4] == ["<bos>", "salut", "!", "<eos>"]
    assert src_valid_len.tolist() == [3]


def test_bleu():
    assert bleu("va !", "va !", k=2) == 1
    assert bleu("A B B C D", "A B C D E F", k=1) == pytest.approx(np.exp(-1 / 5) * (4 / 5) ** 0.5)
    assert bleu("A B B C D", "A B C D E F", k=3) == pytest.approx(
        np.exp(-1 / 5) * (4 / 5) ** 0.5 * (3 / 4) ** 0.25 * (1 / 3) ** 0.125
    )
    assert bleu("A B B C D", "A B C D E F", k=4) == 0
    assert bleu("A B", "A B C D E F", k=2) == pytest.approx(np.exp(1 - 6 / 2))
    assert bleu("il est riche .", "il est calme .", k=2) == pytest.approx(0.658, abs=5e-4)
    assert bleu("va", "va", k=2) == 1  # an edition divides by zero here
    assert bleu("a bc", "ab c", k=2) == 0  # an edition joins n-grams without a space
    assert bleu("", "va !", k=2) == 0
    with pytest.raises(ValueError, match="k must be at least 1; got 0"):
        bleu("va", "va", k=0)


def test_the_corpus_that_comes_with_the_project(monkeypatch):
    monkeypatch.setattr(data, "EMBEDDED_SIZE", 5)
    source, target = tokenize_nmt(preprocess_nmt(read_data_nmt("embedded")))
    assert len(source) == 5
    assert target[0][0] == "est-ce"


def test_bad_input(path, monkeypatch, tmp_path):
    with pytest.raises(CorpusError, match=r"there is no file .*nowhere\.txt"):
        read_data_nmt(tmp_path / "nowhere.txt")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(CorpusError, match="no pair in the text of 0 characters"):
        load_data_nmt(2, 8, path=tmp_path / "empty.txt")
    for options, said in [
        ({"batch_size": 0, "num_steps": 8}, "batch_size must be at least 1; got 0"),
        ({"batch_size": 2, "num_steps": 0}, "num_steps must be at least 1; got 0"),
        ({"batch_size": 2, "num_steps": 8, "num_examples": -1}, "num_examples must be at least 1; got -1"),
        ({"batch_size": 2, "num_steps": 8, "edition": "2019"}, "edition must be one of"),
    ]:
        with pytest.raises(ValueError, match=said):
            load_data_nmt(**options, path=path)
    with pytest.raises(CorpusError, match="num_train \\+ num_val = 640 pairs are asked for; got 100"):
        MTFraEng(3, path=path)
    with pytest.raises(ValueError, match="data_arrays must have one length"):
        load_array((np.zeros(3), np.zeros(4)), 2)

    def no_network(*_):
        raise CorpusError("it cannot be downloaded, or name its folder with --mirror")

    monkeypatch.setattr(download, "_download", no_network)
    with pytest.raises(CorpusError, match=r"it cannot be downloaded\. Or give path='fra.txt', .*path='embedded'"):
        read_data_nmt()
