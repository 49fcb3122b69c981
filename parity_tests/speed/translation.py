"""The translators that are trained and searched with: their sizes, their weights, and sentences for them.

    W1  the book's: LSTMs of two layers, embed 32, hidden 32, vocabulary 200, 1000 pairs padded to 10 ids whose lengths
        are spread as those of the book's first 1000 pairs, batch 64, the sum of the sentences' mean losses
    W2  the same shape with embed 256, hidden 512, vocabulary 8000, batch 64, 30 source and 30 target steps, all full
    J   JoeyNMT's: one layer of GRU, 2 × 256 → 256, embed 256, vocabulary 8000, query "new", input feeding, a bridge,
        dropout 0.3, label smoothing 0.1, the mean over the tokens; sentences of 8 to 25 tokens, sorted by length and
        cut into batches of at most 2048 padded target tokens

    "vocabulary N"  W2's shape with embed 128, hidden 256, vocabulary N, and one batch of 64 sentences of 20 steps

(With one layer, our dropout acts on the attention weights alone.) The words are random: what is learnt is of no account
here. The weights are drawn by PyTorch's names, so that every contestant begins with the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from parity_tests.case import random_for

PAD, BOS, EOS, FIRST_WORD = 0, 1, 2, 4


@dataclass(frozen=True)
class Translator:
    """A model and how it is trained."""

    name: str
    encoder: Mapping[str, Any]
    decoder: Mapping[str, Any]
    loss: Literal["tokens", "sentences"]
    learning_rate: float
    label_smoothing: float = 0.0

    @property
    def encoder_size(self) -> int:
        """Features of the encoder's outputs."""
        size: int = self.encoder["num_hiddens"] * (2 if self.encoder.get("bidirectional") else 1)
        return size

    @property
    def dropout(self) -> float:
        rate: float = self.decoder.get("dropout", 0.0)
        return rate

    def without(self, *settings: str) -> "Translator":
        """The same model with some of its settings left out: `dropout`, for one."""
        encoder, decoder = ({k: v for k, v in of.items() if k not in settings} for of in (self.encoder, self.decoder))
        return replace(self, encoder=encoder, decoder=decoder)


def _book(name: str, vocab_size: int, embed_size: int, num_hiddens: int) -> Translator:
    sizes = {
        "vocab_size": vocab_size,
        "embed_size": embed_size,
        "num_hiddens": num_hiddens,
        "num_layers": 2,
        "cell": "lstm",
    }
    return Translator(name, sizes, {**sizes, "query": "previous"}, "sentences", 0.005)


_JOEY = {"vocab_size": 8000, "embed_size": 256, "num_hiddens": 256, "num_layers": 1, "cell": "gru"}
W1 = _book("w1", 200, 32, 32)
W2 = _book("w2", 8000, 256, 512)
J = Translator(
    "j",
    {**_JOEY, "bidirectional": True},
    {**_JOEY, "query": "new", "input_feeding": True, "bridge": True, "dropout": 0.3},
    "tokens",
    1e-3,
    label_smoothing=0.1,
)
SIZED = tuple(_book(f"vocabulary {size}", size, 128, 256) for size in (500, 2000, 8000, 32000))
TRANSLATORS = {translator.name: translator for translator in (W1, W2, J, *SIZED)}


class Group(NamedTuple):
    """Batches of one padded shape, `[batches, rows, ids]` and `[batches, rows]`."""

    sources: np.ndarray
    source_lens: np.ndarray
    targets: np.ndarray
    """`<bos>` first, and counted in the lengths."""
    target_lens: np.ndarray

    @property
    def labels(self) -> int:
        """Target tokens that count."""
        return int(np.maximum(self.target_lens - 1, 0).sum())

    @property
    def first(self) -> "Group":
        """The first batch alone."""
        return Group(*(part[:1] for part in self))


def draw_training(name: str) -> list[Group]:
    """The batches of one call of a training workload, in order."""
    if name.startswith("vocabulary"):
        size = TRANSLATORS[name].encoder["vocab_size"]
        return [_group(random_for("speed", name), size, 20, 21, np.full((1, 64), 20), np.full((1, 64), 21))]
    return {"w1": _book_batches, "w2": _full_batches, "j": _sorted_batches}[name]()


BOOK_SOURCE_LENS = {2: 6, 3: 53, 4: 729, 5: 210, 6: 2}
"""How many of the book's first 1000 English sentences have so many ids, `<eos>` counted in."""
BOOK_TARGET_LENS = {4: 189, 5: 314, 6: 369, 7: 91, 8: 25, 9: 10, 10: 2}
"""The same of the French ones, `<bos>` counted in too."""


def _book_batches() -> list[Group]:
    """1000 pairs are 15 batches of 64 and one of 40, filled up with rows of length 0 as the program does."""
    rng = random_for("speed", "w1")
    lens = [
        np.concatenate([rng.permutation(np.repeat(list(of), list(of.values()))), np.zeros(24, int)])
        for of in (BOOK_SOURCE_LENS, BOOK_TARGET_LENS)
    ]
    return [_group(rng, 200, 10, 10, *(part.reshape(16, 64) for part in lens))]


def _full_batches() -> list[Group]:
    """Two batches."""
    return [_group(random_for("speed", "w2"), 8000, 30, 31, np.full((2, 64), 30), np.full((2, 64), 31))]


BUCKETS = (12, 16, 20, 26)
"""Lengths to which sorted sentences are padded, `<eos>` counted in: one compiled program each."""
J_BATCHES = (2, 2, 1, 1)
"""Batches of each in one call, about as many as Multi30k's lengths ask for."""


def _sorted_batches() -> list[Group]:
    rng = random_for("speed", "j")
    groups = []
    for shortest, longest, batches in zip((8, *BUCKETS), BUCKETS, J_BATCHES, strict=False):
        rows = 2048 // longest
        sources = np.sort(rng.integers(shortest + 1 - (shortest == 8), longest + 1, batches * rows))
        targets = np.clip(sources + rng.integers(-2, 3, sources.shape), 4, longest)
        lens = sources.reshape(batches, rows), targets.reshape(batches, rows) + 1
        groups.append(_group(rng, 8000, longest, longest + 1, *lens))
    return groups


def _group(
    rng: np.random.Generator, vocab_size: int, S: int, T: int, source_lens: np.ndarray, target_lens: np.ndarray
) -> Group:
    sources, targets = _ids(rng, vocab_size, S, source_lens), _ids(rng, vocab_size, T, target_lens)
    targets[..., 0] = np.where(target_lens > 0, BOS, PAD)
    lens = (x.astype(np.int32) for x in (source_lens, target_lens))
    source_lens, target_lens = lens
    return Group(sources, source_lens, targets, target_lens)


def _ids(rng: np.random.Generator, vocab_size: int, length: int, lens: np.ndarray) -> np.ndarray:
    """Random words, the last of each sentence `<eos>`, then `<pad>`."""
    ids = rng.integers(FIRST_WORD, vocab_size, (*lens.shape, length))
    position, last = np.arange(length), lens[..., None] - 1
    return np.where(position < last, ids, np.where(position == last, EOS, PAD)).astype(np.int32)


COMPARED = 4
"""Training steps, at most and of the first shape alone, whose losses are compared; rounding drives later ones apart."""

SENTENCES, STEPS, BEAM = 64, 30, 5


def draw_sources() -> tuple[np.ndarray, np.ndarray]:
    """What is searched for a translation of: 64 sentences of 15 to 30 ids, and their lengths."""
    rng = random_for("speed", "search")
    lens = rng.integers(15, 31, SENTENCES)
    return _ids(rng, 8000, 30, lens), lens.astype(np.int32)


def draw_weights(
    name: str, shapes: Mapping[str, tuple[int, ...]], scales: Mapping[str, float] | None = None
) -> dict[str, np.ndarray]:
    """Weights by PyTorch's names: uniform within ±1/√(last axis), embeddings within ±1."""
    weights = {}
    for of, shape in sorted(shapes.items()):
        width = 1.0 if "embedding" in of else shape[-1] ** -0.5
        factor = (scales or {}).get(of, 1.0)
        weights[of] = (factor * random_for("speed", name, of).uniform(-width, width, shape)).astype(np.float32)
    return weights


SHARP = {"decoder.dense.weight": 4.0}
"""For searches: logits far enough apart that rounding seldom chooses another token."""


def training_needs(name: str) -> dict[str, float]:
    """What a step of training needs of the machine at least, by ceiling; on average over the batches of a call.

    gemm, small gemm   the products of the forward pass, and twice as many for the gradients; those that stand in a
                       recurrence (a step's own forward and backward product) are small ones, and the weights' gradients
                       and all that can be computed for all steps at once are not
    tanh               one for each term of the attention, computed once
    copy               Adam's seven passes over parameters, gradients and moments

    Padding needs nothing.
    """
    of, groups = TRANSLATORS[name], draw_training(name)
    gates, H, layers = (4 if of.decoder["cell"] == "lstm" else 3), of.decoder["num_hiddens"], of.decoder["num_layers"]
    E, V, N = of.decoder["embed_size"], of.encoder_size, of.decoder["vocab_size"]
    directions = V // of.encoder["num_hiddens"]
    inner = of.encoder["num_hiddens"]
    joined = V if of.decoder["query"] == "previous" else H
    totals = dict.fromkeys(("gemm", "small gemm", "tanh", "copy"), 0.0)
    encoder_in = gates * inner * (E + (layers - 1) * V) * directions  # multiplications a token
    encoder_loop = gates * inner * inner * layers * directions
    decoder_in = gates * H * E
    decoder_loop = gates * H * (joined + H + (layers - 1) * 2 * H) + H * H
    if of.decoder["query"] == "new":
        decoder_loop += (V + H) * H
    steps = 0
    for group in groups:
        label_lens = np.maximum(group.target_lens - 1, 0)
        read, written, pairs = group.source_lens.sum(), label_lens.sum(), (group.source_lens * label_lens).sum()
        totals["small gemm"] += 2 * 2 * (read * encoder_loop + written * decoder_loop)
        totals["gemm"] += 2 * (read * encoder_loop + written * decoder_loop)
        totals["gemm"] += 3 * 2 * (read * (encoder_in + V * H) + written * (decoder_in + H * N))
        totals["gemm"] += 3 * 2 * 2 * pairs * V / 2  # context and its gradients
        totals["tanh"] += pairs * H
        steps += len(group.sources)
    embeddings = of.encoder["vocab_size"] * of.encoder["embed_size"] + N * E
    parameters = embeddings + encoder_in + encoder_loop + decoder_in + decoder_loop + V * H + H * N
    return {of_what: total / steps for of_what, total in totals.items()} | {"copy": 7 * 4.0 * parameters}


def search_needs(beam_size: int) -> dict[str, float]:
    """The same of a sentence that is translated by W2's model."""
    of, rows = W2.decoder, beam_size * STEPS
    H, E, N = of["num_hiddens"], of["embed_size"], of["vocab_size"]
    step = 4 * H * (E + H + H) + 4 * H * 2 * H + H * H + H * N
    return {"small gemm": 2.0 * rows * step, "tanh": 30.0 * rows * H}
