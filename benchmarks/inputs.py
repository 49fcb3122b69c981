"""The models, and the sentences and weights that every implementation of a workload gets.

The words are random, since only the time matters, and so are the weights, by PyTorch's names.
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

BOS, EOS, FIRST_WORD = 1, 2, 4
SENTENCES, STEPS, BEAM = 64, 30, 5
"""The search: how many sentences, of how many steps, and the beam size."""
SHARP = {"decoder.dense.weight": 4.0}
"""Scales for searches: the logits are so far apart that rounding seldom changes the best token."""


def random_for(*names: str) -> np.random.Generator:
    """Make a generator seeded by names."""
    return np.random.default_rng(zlib.crc32("/".join(names).encode()))


def draw_normal(name: str, *shape: int) -> np.ndarray:
    """Draw an array of float32."""
    return random_for(name).normal(size=shape).astype(np.float32)


def draw_weights(
    seed: str, shapes: Mapping[str, tuple[int, ...]], scales: Mapping[str, float] | None = None
) -> dict[str, np.ndarray]:
    """Draw weights by PyTorch's names: uniform within ±1/√(last axis), embeddings and those of norms within ±1."""
    weights = {}
    for name, shape in shapes.items():
        width = (scales or {}).get(name, 1.0) * (1.0 if re.search("embedding|norm", name) else shape[-1] ** -0.5)
        weights[name] = random_for(seed, name).uniform(-width, width, shape).astype(np.float32)
    return weights


@dataclass(frozen=True)
class Translator:
    """A model and how it is trained."""

    name: str
    encoder: Mapping[str, Any]
    decoder: Mapping[str, Any]
    training: Mapping[str, Any]
    """`loss`, `learning_rate` and `label_smoothing`."""
    family: str = "recurrent"

    @property
    def width(self) -> int:
        """The features of a step's products, by which JAX is started."""
        size: int = self.decoder["num_hiddens" if self.family == "recurrent" else "embed_size"]
        return size

    @property
    def encoder_size(self) -> int:
        """The features of the encoder's outputs."""
        size: int = self.encoder["num_hiddens"] * (2 if self.encoder.get("bidirectional") else 1)
        return size

    def without_dropout(self) -> "Translator":
        """Return the same translator, whose losses can be compared between frameworks."""
        encoder, decoder = (
            {name: x for name, x in half.items() if not name.startswith("dropout")}
            for half in (self.encoder, self.decoder)
        )
        return replace(self, encoder=encoder, decoder=decoder)


def _book(name: str, vocab_size: int, embed_size: int, num_hiddens: int) -> Translator:
    sizes: dict[str, Any] = {"vocab_size": vocab_size, "embed_size": embed_size, "num_hiddens": num_hiddens}
    sizes |= {"num_layers": 2, "cell": "lstm"}
    training = {"loss": "sentences", "learning_rate": 0.005, "label_smoothing": 0.0}
    return Translator(name, sizes, {**sizes, "query": "previous"}, training)


W1, W2 = _book("w1", 200, 32, 32), _book("w2", 8000, 256, 512)
"""The book's translator, and the same with widths that are in use; trained by the sum of the sentences' mean losses."""

_JOEY = {"vocab_size": 8000, "embed_size": 256, "num_hiddens": 256, "num_layers": 1, "cell": "gru"}
J = Translator(
    "j",
    {**_JOEY, "bidirectional": True},
    {**_JOEY, "query": "new", "input_feeding": True, "bridge": True, "dropout": 0.3},
    {"loss": "tokens", "learning_rate": 1e-3, "label_smoothing": 0.1},
)
"""JoeyNMT's; trained by the mean over the tokens."""


def _transformer(name: str, embed_size: int, num_hiddens: int, num_layers: int, heads: int, rate: float) -> Translator:
    """Describe a Transformer that is normalised before each sublayer, as nn.Transformer with `norm_first` is."""
    half: dict[str, Any] = {
        "vocab_size": 8000,
        "embed_size": embed_size,
        "num_hiddens": num_hiddens,
        "num_layers": num_layers,
    }
    half |= {"num_heads": heads, "norm": "pre", "dropout": rate, "dropout_attention": rate, "dropout_hidden": rate}
    training = {"loss": "tokens", "learning_rate": 1e-4, "label_smoothing": 0.1}
    return Translator(name, half, half, training, "transformer")


BASE = _transformer("base", 512, 2048, 6, 8, 0.1)
"""The Transformer's base size, on 64 sentences of 30 tokens."""
SMALL = _transformer("small", 128, 256, 4, 4, 0.3)
"""The size of Wu et al. (2021) for Multi30k, on 64 sentences of 8 to 16 tokens."""


class Group(NamedTuple):
    """Batches of one padded shape: ids `[steps, batch, length]` and lengths `[steps, batch]`; 0 is a row of padding."""

    sources: np.ndarray
    source_lens: np.ndarray
    targets: np.ndarray
    """They start with `<bos>`, which the lengths count."""
    target_lens: np.ndarray

    @property
    def label_lens(self) -> np.ndarray:
        """The number of target tokens that are predicted."""
        return np.maximum(self.target_lens - 1, 0)


BOOK_SOURCE_LENS = {2: 6, 3: 53, 4: 729, 5: 210, 6: 2}
"""Length -> how many of the book's first 1000 English sentences have it, `<eos>` included."""
BOOK_TARGET_LENS = {4: 189, 5: 314, 6: 369, 7: 91, 8: 25, 9: 10, 10: 2}
"""The same for the French sentences, `<bos>` and `<eos>` included."""
BUCKETS = {12: 2, 16: 2, 20: 1, 26: 1}
"""The lengths to which J's sorted sentences are padded, `<eos>` included -> steps of one pass with this length, in
about the proportions of Multi30k."""


def draw_training(name: str) -> list[Group]:
    """Draw the batches of one pass of a training workload, in order.

    W1 is the book's 1000 pairs: 15 batches of 64 and one of 40 in random order. W2 and the Transformer's base size are
    two batches, all full; its small size is four with sentences of 8 to 16 tokens. J is sorted by length, in batches of
    at most 2048 padded target tokens.
    """
    rng = random_for("speed", name)
    if name == "w1":
        counts = BOOK_SOURCE_LENS, BOOK_TARGET_LENS
        lens = (rng.permutation(np.repeat(list(each), list(each.values()))) for each in counts)
        return [_draw_group(rng, 200, 10, 10, *(np.append(part, np.zeros(24)).reshape(16, 64) for part in lens))]
    if name == "small":
        source_lens, target_lens = rng.integers(8, 17, (2, 4, 64))
        source_lens[:, 0] = target_lens[:, 0] = 16
        return [_draw_group(rng, 8000, 16, 17, source_lens, target_lens + 1)]
    if name in ("w2", "base"):
        return [_draw_group(rng, 8000, 30, 31, np.full((2, 64), 30), np.full((2, 64), 31))]
    groups, shorter = [], 7
    for longest, steps in BUCKETS.items():
        shape = steps, 2048 // longest
        sources = np.sort(rng.integers(shorter + 1, longest + 1, shape), axis=None).reshape(shape)
        targets = np.clip(sources + rng.integers(-2, 3, shape), 4, longest)
        groups.append(_draw_group(rng, 8000, longest, longest + 1, sources, targets + 1))
        shorter = longest
    return groups


def _draw_group(
    rng: np.random.Generator, vocab_size: int, S: int, T: int, source_lens: np.ndarray, target_lens: np.ndarray
) -> Group:
    sources, targets = (rng.integers(FIRST_WORD, vocab_size, (*source_lens.shape, size)) for size in (S, T))
    targets[..., 0] = BOS
    return Group(*(x.astype(np.int32) for x in (sources, source_lens, targets, target_lens)))


def draw_sources() -> tuple[np.ndarray, np.ndarray]:
    """Draw the sentences to translate: 64 of 15 to 30 ids, and their lengths."""
    rng = random_for("speed", "search")
    lens = rng.integers(15, 31, SENTENCES)
    return rng.integers(FIRST_WORD, 8000, (SENTENCES, 30)).astype(np.int32), lens.astype(np.int32)
