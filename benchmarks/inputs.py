"""The inputs: every implementation of a workload gets the same arrays, weights and sentences.

The translators:

    W1  the book's: LSTMs of 2 layers, embed 32, hidden 32, vocabulary 200, batch 64, the sum of the sentences' mean
        losses; 1000 pairs padded to 10 ids, with the lengths of the book's first 1000 pairs
    W2  the same with embed 256, hidden 512, vocabulary 8000; 30 source and 30 target steps, all full
    J   JoeyNMT's: GRUs of one layer, 2 × 256 → 256, embed 256, vocabulary 8000, query "new", input feeding, bridge,
        dropout 0.3 on the attention weights, label smoothing 0.1, the mean over the tokens; sentences of 8 to 25
        tokens, sorted by length, in batches of at most 2048 padded target tokens

The words are random, since only the time matters. The weights are drawn by PyTorch's names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from parity_tests.your_port.measure.case import random_for

Arrays = dict[str, Any]

PAD, BOS, EOS, FIRST_WORD = 0, 1, 2, 4
SENTENCES, STEPS, BEAM = 64, 30, 5
"""The search: how many sentences, of how many steps, and the beam size."""
COMPARED = 4
"""How many training steps are compared, at most. Rounding errors drive later losses apart."""
RECURRENT_SIZES = 64, 30, 256, 512, 2
"""W2's encoder after its embedding: batch, time, features, hidden units, layers."""


def attention_arguments(name: str) -> tuple[Arrays, Arrays]:
    """Draw the arguments of a function: those that are differentiated, and the others."""
    rng = random_for("speed", name)

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    if name == "additive":
        w_v = normal(128) / np.float32(128**0.5)
        return {"queries": normal(8, 512, 128), "keys": normal(8, 512, 128), "w_v": w_v}, {}
    if name == "dot product":
        arrays = {part: normal(8, 8, 1024, 64) for part in ("queries", "keys", "values")}
        return arrays, {"valid_lens": None, "mask": None}
    assert name == "softmax"
    return {"scores": 2 * normal(8, 512, 512)}, {"valid_lens": rng.integers(128, 513, 8).astype(np.int32)}


def cotangent(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draw the direction along which the output is differentiated."""
    return random_for("speed", name, "cotangent").normal(size=shape).astype(np.float32)


def recurrent_inputs() -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Draw the inputs `[B, T, D]`, the cotangent of the outputs `[B, T, H]`, and the weights by PyTorch's names."""
    B, T, D, H, layers = RECURRENT_SIZES
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        shapes[f"weight_ih_l{layer}"] = (4 * H, H if layer else D)
        shapes[f"weight_hh_l{layer}"] = (4 * H, H)
        shapes |= {f"bias_ih_l{layer}": (4 * H,), f"bias_hh_l{layer}": (4 * H,)}
    rng = random_for("speed", "recurrent")
    inputs, along = (rng.normal(size=(B, T, size)).astype(np.float32) for size in (D, H))
    return inputs, along, draw_weights("recurrent", shapes)


@dataclass(frozen=True)
class Translator:
    """A model and how it is trained."""

    name: str
    encoder: Mapping[str, Any]
    decoder: Mapping[str, Any]
    training: Mapping[str, Any]
    """`loss`, `learning_rate` and `label_smoothing`."""

    @property
    def encoder_size(self) -> int:
        """The features of the encoder's outputs."""
        size: int = self.encoder["num_hiddens"] * (2 if self.encoder.get("bidirectional") else 1)
        return size

    @property
    def dropout(self) -> float:
        rate: float = self.decoder.get("dropout", 0.0)
        return rate

    def without_dropout(self) -> "Translator":
        return replace(self, decoder={**self.decoder, "dropout": 0.0})


def _book(name: str, vocab_size: int, embed_size: int, num_hiddens: int) -> Translator:
    sizes: dict[str, Any] = {"vocab_size": vocab_size, "embed_size": embed_size, "num_hiddens": num_hiddens}
    sizes |= {"num_layers": 2, "cell": "lstm"}
    training = {"loss": "sentences", "learning_rate": 0.005, "label_smoothing": 0.0}
    return Translator(name, sizes, {**sizes, "query": "previous"}, training)


_JOEY = {"vocab_size": 8000, "embed_size": 256, "num_hiddens": 256, "num_layers": 1, "cell": "gru"}
W1, W2 = _book("w1", 200, 32, 32), _book("w2", 8000, 256, 512)
J = Translator(
    "j",
    {**_JOEY, "bidirectional": True},
    {**_JOEY, "query": "new", "input_feeding": True, "bridge": True, "dropout": 0.3},
    {"loss": "tokens", "learning_rate": 1e-3, "label_smoothing": 0.1},
)


class Group(NamedTuple):
    """Batches of one padded shape: ids `[steps, batch, length]` and lengths `[steps, batch]`."""

    sources: np.ndarray
    source_lens: np.ndarray
    targets: np.ndarray
    """They start with `<bos>`, which the lengths count."""
    target_lens: np.ndarray

    @property
    def num_labels(self) -> int:
        """The number of target tokens that are predicted."""
        return int(np.maximum(self.target_lens - 1, 0).sum())


BOOK_SOURCE_LENS = {2: 6, 3: 53, 4: 729, 5: 210, 6: 2}
"""Length -> how many of the book's first 1000 English sentences have it, `<eos>` included."""
BOOK_TARGET_LENS = {4: 189, 5: 314, 6: 369, 7: 91, 8: 25, 9: 10, 10: 2}
"""The same for the French sentences, `<bos>` and `<eos>` included."""
BUCKETS = (12, 16, 20, 26)
"""The lengths to which J's sorted sentences are padded, `<eos>` included."""
BUCKET_STEPS = (2, 2, 1, 1)
"""Steps with each of these lengths in one pass, in about the proportions of Multi30k."""


def draw_training(name: str) -> list[Group]:
    """Draw the batches of one pass of a training workload, in order."""
    rng = random_for("speed", name)
    if name == "w1":  # 1000 pairs are 15 batches of 64 and one of 40, padded with rows of length 0
        lens = [
            np.concatenate([rng.permutation(np.repeat(list(counts), list(counts.values()))), np.zeros(24, int)])
            for counts in (BOOK_SOURCE_LENS, BOOK_TARGET_LENS)
        ]
        return [_draw_group(rng, 200, 10, 10, *(part.reshape(16, 64) for part in lens))]
    if name == "w2":
        return [_draw_group(rng, 8000, 30, 31, np.full((2, 64), 30), np.full((2, 64), 31))]
    groups, shorter = [], 7
    for longest, steps in zip(BUCKETS, BUCKET_STEPS, strict=True):
        shape = steps, 2048 // longest
        sources = np.sort(rng.integers(shorter + 1, longest + 1, shape), axis=None).reshape(shape)
        targets = np.clip(sources + rng.integers(-2, 3, shape), 4, longest)
        groups.append(_draw_group(rng, 8000, longest, longest + 1, sources, targets + 1))
        shorter = longest
    return groups


def _draw_group(
    rng: np.random.Generator, vocab_size: int, S: int, T: int, source_lens: np.ndarray, target_lens: np.ndarray
) -> Group:
    sources, targets = _draw_ids(rng, vocab_size, S, source_lens), _draw_ids(rng, vocab_size, T, target_lens)
    targets[..., 0] = np.where(target_lens > 0, BOS, PAD)
    return Group(sources, source_lens.astype(np.int32), targets, target_lens.astype(np.int32))


def _draw_ids(rng: np.random.Generator, vocab_size: int, length: int, lens: np.ndarray) -> np.ndarray:
    """Draw random words; the last id of each sentence is `<eos>`, then comes `<pad>`."""
    ids = rng.integers(FIRST_WORD, vocab_size, (*lens.shape, length))
    position, last = np.arange(length), lens[..., None] - 1
    return np.where(position < last, ids, np.where(position == last, EOS, PAD)).astype(np.int32)


def draw_sources() -> tuple[np.ndarray, np.ndarray]:
    """Draw the sentences to translate: 64 of 15 to 30 ids, and their lengths."""
    rng = random_for("speed", "search")
    lens = rng.integers(15, 31, SENTENCES)
    return _draw_ids(rng, 8000, 30, lens), lens.astype(np.int32)


def draw_weights(
    seed: str, shapes: Mapping[str, tuple[int, ...]], scales: Mapping[str, float] | None = None
) -> dict[str, np.ndarray]:
    """Draw weights by PyTorch's names: uniform within ±1/√(last axis), embeddings within ±1."""
    weights = {}
    for name, shape in sorted(shapes.items()):
        width = 1.0 if "embedding" in name else shape[-1] ** -0.5
        factor = (scales or {}).get(name, 1.0)
        weights[name] = (factor * random_for("speed", seed, name).uniform(-width, width, shape)).astype(np.float32)
    return weights


SHARP = {"decoder.dense.weight": 4.0}
"""Scales for searches: the logits are so far apart that rounding seldom changes the best token."""
