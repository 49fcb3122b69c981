"""The book's translation data: text, vocabularies and arrays in NumPy, and BLEU. No framework is imported."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from train.data.corpus import CorpusError
from train.data.download import fetch, is_name
from train.data.embedded import embedded_pairs
from train.data.pair_files import read_usable_lines

SPECIAL = ["<pad>", "<bos>", "<eos>"]

EDITIONS = ("2020", "0.17")

EMBEDDED_SIZE = 10_000
"""Pairs that are taken of the corpus that comes with this project; all 21,000 would take longer."""


class Vocab:
    """A vocabulary: `vocab[tokens]` are ids, `vocab.to_tokens(ids)` are tokens.

    It is called as `Vocab(source, min_freq=2, reserved_tokens=["<pad>", "<bos>", "<eos>"])` (0.17),
    `Vocab(sentences, min_freq=2)` (1.0), and `Vocab(tokens, min_freq=3, use_special_tokens=True)` (2020). The ids are
    those of 0.17: `<unk>`, the reserved tokens, and then tokens by frequency, equally frequent ones in the order in
    which they occur. With `use_special_tokens` they begin with `<pad>`, `<bos>`, `<eos>`, `<unk>`.

    Args:
        tokens: a list of tokens, or a list of sentences, each a list of tokens.
        min_freq: rarer tokens are unknown.
        reserved_tokens: tokens that are known in any case.
        use_special_tokens: reserve the three special tokens, and put `<unk>` after them.
    """

    def __init__(
        self,
        tokens: Sequence[Any] | None = None,
        min_freq: int = 0,
        reserved_tokens: Sequence[str] | None = None,
        use_special_tokens: bool = False,
    ) -> None:
        tokens = [] if tokens is None else tokens
        if isinstance(tokens, str):
            raise TypeError(f"tokens must be a list of tokens, or a list of such lists; got the text {tokens[:40]!r}")
        flat = chain.from_iterable([token] if isinstance(token, str) else token for token in tokens)
        self.token_freqs: list[tuple[str, int]] = Counter(flat).most_common()
        first = [*SPECIAL, "<unk>"] if use_special_tokens else ["<unk>"]
        frequent = [token for token, count in self.token_freqs if count >= min_freq]
        self.idx_to_token = list(dict.fromkeys([*first, *(reserved_tokens or ()), *frequent]))
        self.token_to_idx = {token: i for i, token in enumerate(self.idx_to_token)}

    def __len__(self) -> int:
        return len(self.idx_to_token)

    def __getitem__(self, tokens: Any) -> Any:
        """Return the id of a token, or the ids of a list of tokens. An unknown token has the id of `<unk>`."""
        if isinstance(tokens, str):
            return self.token_to_idx.get(tokens, self.unk)
        return [self[token] for token in tokens]

    def to_tokens(self, indices: Any) -> Any:
        """Return the token of an id, or the tokens of a list or an array of ids.

        Raises:
            IndexError: an id is not in the vocabulary.
        """
        if np.ndim(indices) > 0:
            return [self.to_tokens(index) for index in indices]
        if not 0 <= int(indices) < len(self):
            raise IndexError(f"indices must be in [0, {len(self)}); got {int(indices)}")
        return self.idx_to_token[int(indices)]

    @property
    def unk(self) -> int:
        """The id of `<unk>`."""
        return self.token_to_idx["<unk>"]

    @property
    def pad(self) -> int:
        """The id of `<pad>` (2020)."""
        return self._special("<pad>")

    @property
    def bos(self) -> int:
        """The id of `<bos>` (2020)."""
        return self._special("<bos>")

    @property
    def eos(self) -> int:
        """The id of `<eos>` (2020)."""
        return self._special("<eos>")

    def _special(self, token: str) -> int:
        """Return the id of a special token; ValueError where it was not reserved."""
        if token not in self.token_to_idx:
            raise ValueError(f'vocab must know {token}; build it with reserved_tokens=["<pad>", "<bos>", "<eos>"]')
        return self.token_to_idx[token]


def read_data_nmt(path: str | Path | None = None) -> str:
    """Return the text of the English-French corpus, one pair on a line: source, a tab, target.

    The book calls `read_data_nmt()`, which downloads the book's own archive once. Without a network, give a file, or
    take the corpus that comes with this project by `read_data_nmt("embedded")`.

    Args:
        path: a file (plain or gzipped), "embedded", or the name of a public corpus such as "tatoeba:eng-fra".

    Raises:
        CorpusError: there is no such file, it is no text, or it cannot be downloaded. The message says what to do.
    """
    if path == "embedded":
        return "".join(f"{pair.source}\t{pair.target}\n" for pair in embedded_pairs()[:EMBEDDED_SIZE])
    if path is None or is_name(str(path)):
        try:
            path = fetch(str(path or "d2l:eng-fra")).train.paths[0]
        except CorpusError as error:
            reason = str(error).removesuffix(", or name its folder with --mirror")
            raise CorpusError(
                f"{reason}. Or give path='fra.txt', a file of yours, or path='embedded', which comes with this project"
            ) from error
    lines = chain.from_iterable(read_usable_lines(Path(path), Counter()))
    return "".join(f"{line}\n" for line in lines if line is not None)


def preprocess_nmt(text: str, marks: str = ",.!?") -> str:
    """Make no-break spaces spaces, letters lower-case, and put a space before each of the marks.

    The edition of 2020 has `marks=",.!"`.
    """
    text = text.replace("\u202f", " ").replace("\xa0", " ").lower()
    return re.sub(rf"(?<=\S)([{re.escape(marks)}])", r" \1", text)


def tokenize_nmt(text: str, num_examples: int | None = None) -> tuple[list[list[str]], list[list[str]]]:
    """Cut a text from `preprocess_nmt` into tokens: a list of source sentences and one of target sentences.

    Lines without a tab, and lines with an empty side, are left out. A third column, as today's files have, is too.

    Args:
        num_examples: the number of pairs to take, all by default.

    Raises:
        CorpusError: the text has no pair.
    """
    require_positive(num_examples=num_examples)
    source: list[list[str]] = []
    target: list[list[str]] = []
    for line in text.split("\n"):
        if len(source) == num_examples:
            break
        sides = [side.split() for side in line.split("\t")[:2]]
        if len(sides) == 2 and all(sides):
            source.append(sides[0])
            target.append(sides[1])
    if not source:
        raise CorpusError(f"no pair in the text of {len(text)} characters; each line must be: source, a tab, target")
    return source, target


def truncate_pad(line: list[Any], num_steps: int, padding_token: Any) -> list[Any]:
    """Cut a line to `num_steps` tokens, or fill it up: `truncate_pad(src_vocab[source[0]], 10, src_vocab["<pad>"])`."""
    require_positive(num_steps=num_steps)
    return [*line[:num_steps], *[padding_token] * (num_steps - len(line))]


def build_array_nmt(lines: list[list[str]], vocab: Vocab, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Turn sentences into ids `[len(lines), num_steps]`, with `<eos>` at the end, and lengths `[len(lines)]`.

    A sentence that is longer is cut, and then has no `<eos>`.
    """
    ids = [truncate_pad([*vocab[line], vocab.eos], num_steps, vocab.pad) for line in lines]
    array = np.array(ids, np.int32).reshape(len(lines), num_steps)
    return array, np.array([min(len(line) + 1, num_steps) for line in lines], np.int32)


class Batches:
    """Arrays in batches. Each pass has its own order, which depends on the seed and the number of the pass alone."""

    def __init__(self, data_arrays: Sequence[Any], batch_size: int, is_train: bool = True, seed: int = 0) -> None:
        require_positive(batch_size=batch_size)
        lengths = [len(array) for array in data_arrays]
        if len(set(lengths)) != 1:
            raise ValueError(f"data_arrays must have one length; got {lengths}")
        self.data_arrays, self.batch_size, self.is_train, self.seed = tuple(data_arrays), batch_size, is_train, seed
        self.num_passes = 0

    def __len__(self) -> int:
        return -(-len(self.data_arrays[0]) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        size = len(self.data_arrays[0])
        order = np.arange(size)
        if self.is_train:
            order = np.random.default_rng([self.seed, self.num_passes]).permutation(size)
            self.num_passes += 1
        for start in range(0, size, self.batch_size):
            rows = order[start : start + self.batch_size]
            yield tuple(array[rows] for array in self.data_arrays)


def load_array(data_arrays: Sequence[Any], batch_size: int, is_train: bool = True) -> Batches:
    """Return an iterator over batches of arrays that belong together; `is_train=False` keeps their order."""
    return Batches(data_arrays, batch_size, is_train)


def load_data_nmt(
    batch_size: int,
    num_steps: int,
    num_examples: int | None = None,
    *,
    path: str | Path | None = None,
    edition: str = "0.17",
    seed: int = 0,
) -> tuple[Any, ...]:
    """Return batches and vocabularies: `train_iter, src_vocab, tgt_vocab = load_data_nmt(batch_size, num_steps)`.

    A batch is (X, X_valid_len, Y, Y_valid_len): ids `[batch_size, num_steps]` and lengths `[batch_size]`. The editions
    make the same call and mean different things:

        "0.17"   the first 600 pairs, tokens that occur twice
        "2020"   the first 1000 pairs, tokens that occur three times, no space before `?`, and `<bos>` as the first id
                 of Y. It returns the vocabularies first: `src_vocab, tgt_vocab, train_iter`

    Args:
        num_examples: the number of pairs, by default the edition's.
        path: where the text comes from, see `read_data_nmt`.
        edition: "0.17" or "2020".
        seed: what the order of the pairs depends on.
    """
    if edition not in EDITIONS:
        raise ValueError(f"edition must be one of {EDITIONS}; got {edition!r}")
    require_positive(batch_size=batch_size, num_steps=num_steps, num_examples=num_examples)
    is_2020 = edition == "2020"
    text = preprocess_nmt(read_data_nmt(path), ",.!" if is_2020 else ",.!?")
    source, target = tokenize_nmt(text, num_examples or (1000 if is_2020 else 600))
    src_vocab, tgt_vocab = (
        Vocab(side, min_freq=3 if is_2020 else 2, reserved_tokens=SPECIAL, use_special_tokens=is_2020)
        for side in (source, target)
    )
    arrays = *build_array_nmt(source, src_vocab, num_steps), *build_array_nmt(target, tgt_vocab, num_steps)
    if is_2020:
        Y, lens = build_array_nmt(target, tgt_vocab, num_steps - 1)
        first = np.full((len(Y), 1), tgt_vocab.bos, np.int32)
        return src_vocab, tgt_vocab, Batches((*arrays[:2], np.hstack([first, Y]), lens + 1), batch_size, seed=seed)
    return Batches(arrays, batch_size, seed=seed), src_vocab, tgt_vocab


class MTFraEng:
    """The English-French data of 1.0: `data = MTFraEng(batch_size=128)`.

    A batch is (src, tgt, src_valid_len, label): ids `[batch_size, num_steps]` of the sources, of what the decoder
    reads (`<bos>` first), and of what it shall predict, and the lengths `[batch_size]` of the sources.

    Args:
        batch_size, num_steps: the shape of a batch.
        num_train, num_val: the first pairs of the corpus are for training, the next ones for validation.
        path: where the text comes from, see `read_data_nmt`.
        seed: what the order of the training pairs depends on.
    """

    def __init__(
        self,
        batch_size: int,
        num_steps: int = 9,
        num_train: int = 512,
        num_val: int = 128,
        *,
        path: str | Path | None = None,
        seed: int = 0,
    ) -> None:
        require_positive(batch_size=batch_size, num_steps=num_steps, num_train=num_train, num_val=num_val)
        self.batch_size, self.num_steps, self.num_train, self.num_val = batch_size, num_steps, num_train, num_val
        self.seed = seed
        source, target = tokenize_nmt(preprocess_nmt(read_data_nmt(path)), num_train + num_val)
        if len(source) < num_train + num_val:
            raise CorpusError(f"num_train + num_val = {num_train + num_val} pairs are asked for; got {len(source)}")
        self.src_vocab, self.tgt_vocab = (Vocab(side, 2, SPECIAL) for side in (source, target))
        self.arrays = self._arrays(source, target)

    def _arrays(self, source: list[list[str]], target: list[list[str]]) -> tuple[Any, ...]:
        src, src_valid_len = build_array_nmt(source, self.src_vocab, self.num_steps)
        label, _ = build_array_nmt(target, self.tgt_vocab, self.num_steps)
        tgt = np.hstack([np.full((len(label), 1), self.tgt_vocab.bos, np.int32), label[:, :-1]])
        return src, tgt, src_valid_len, label

    def build(self, src_sentences: Sequence[str], tgt_sentences: Sequence[str]) -> tuple[Any, ...]:
        """Return the arrays of other sentences: `data.build(["hi ."], ["salut ."])`."""
        if len(src_sentences) != len(tgt_sentences):
            raise ValueError(
                f"src_sentences and tgt_sentences must be as many; got {len(src_sentences)} and {len(tgt_sentences)}"
            )
        sides = ([preprocess_nmt(text).split() for text in side] for side in (src_sentences, tgt_sentences))
        return self._arrays(*sides)

    def train_dataloader(self) -> Batches:
        return self.get_dataloader(train=True)

    def val_dataloader(self) -> Batches:
        return self.get_dataloader(train=False)

    def get_dataloader(self, train: bool) -> Batches:
        """Return the batches for training or for validation."""
        rows = slice(0, self.num_train) if train else slice(self.num_train, None)
        return Batches([array[rows] for array in self.arrays], self.batch_size, train, self.seed)


def encode_source(src_sentence: str, src_vocab: Vocab, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids `[1, num_steps]` and the length `[1]` of a sentence, whose tokens are separated by spaces."""
    return build_array_nmt([src_sentence.lower().split()], src_vocab, num_steps)


def bleu(pred_seq: str, label_seq: str, k: int) -> float:
    """Compute BLEU of one sentence with n-grams up to k, weighted as in the book:

        exp(min(0, 1 − len_label / len_pred)) · Π_{n ≤ k} p_n^(1/2ⁿ)

    p_n is the share of the prediction's n-grams that are in the label; an n that is longer than the prediction is left
    out. `bleu("va !", "va !", k=2)` is 1. Corpora are scored by `train.evaluate`, which uses sacrebleu.
    """
    require_positive(k=k)
    pred, label = pred_seq.split(), label_seq.split()
    if not pred or not label:
        return 0.0
    score = math.exp(min(0, 1 - len(label) / len(pred)))
    for n in range(1, min(k, len(pred)) + 1):
        ours, theirs = (Counter(tuple(x[i : i + n]) for i in range(len(x) - n + 1)) for x in (pred, label))
        score *= ((ours & theirs).total() / ours.total()) ** 0.5**n
    return score


def teacher_forcing(batch: Sequence[Any], bos: int | None) -> tuple[Any, Any, Any, Any, Any]:
    """Return (X, X_valid_len, dec_input, label, label_len) of a batch: what the decoder reads and shall predict.

    Args:
        batch: (X, X_valid_len, Y, Y_valid_len), of NumPy or of PyTorch.
        bos: the id that is put before Y (0.17). None: Y begins with it (2020).

    Raises:
        ValueError: Y comes from the other edition's data.
    """
    X, X_valid_len, Y, Y_valid_len = batch
    first = set(Y[:, 0].tolist())
    if bos is None:
        if len(first) > 1:
            raise ValueError(
                'Y must begin with <bos> in every row; load the data with edition="2020", or give tgt_vocab as well'
            )
        return X, X_valid_len, Y[:, :-1], Y[:, 1:], Y_valid_len - 1
    if first == {bos}:
        raise ValueError('Y must not begin with <bos>; load the data without edition="2020", or leave tgt_vocab out')
    dec_input = Y[:, [0, *range(Y.shape[1] - 1)]]  # a copy, moved by one
    dec_input[:, 0] = bos
    return X, X_valid_len, dec_input, Y, Y_valid_len


def require_batches(data_iter: Any) -> None:
    """Raise TypeError for a vocabulary instead of batches: the editions return them in different orders."""
    if isinstance(data_iter, Vocab):
        raise TypeError(
            "data_iter must be batches; got a Vocab: load_data_nmt returns train_iter, src_vocab, tgt_vocab, and with "
            'edition="2020" src_vocab, tgt_vocab, train_iter'
        )


def require_positive(**numbers: int | None) -> None:
    """Raise ValueError unless every number that is given is at least 1."""
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1; got {number}")


class Epochs:
    """The settings and the losses of a `Trainer` of 1.0."""

    def __init__(self, max_epochs: int, num_gpus: int = 0, gradient_clip_val: float = 0) -> None:
        self.max_epochs, self.num_gpus, self.gradient_clip_val = max_epochs, num_gpus, gradient_clip_val
        self.losses: list[tuple[float, float]] = []

    def end_epoch(self, values: Sequence[Any], validation: Sequence[Any]) -> None:
        """Keep the losses (training, validation) of an epoch, and print every tenth."""
        self.losses.append((float(np.mean(values)), float(np.mean(validation))))
        epoch = len(self.losses)
        if epoch % 10 == 0 or epoch == self.max_epochs:
            print("epoch {:3d}, loss {:.3f}, validation {:.3f}".format(epoch, *self.losses[-1]))
