"""The translators, and the sentences and weights that every implementation of a workload gets.

The words are random, since only the time matters, and so are the weights, by PyTorch's names. It imports no PyTorch.
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import numpy as np

from jax_attn.models import build_model
from jax_attn.settings import RecurrentConfig, TransformerConfig
from jax_attn.weights import from_torch, to_torch
from train.config import TrainingConfig
from train.data.batches import Examples
from train.presets import BOOK

BOS, EOS, FIRST_WORD = 1, 2, 4
EXAMPLE = Examples(*(np.ones(shape, np.int32) for shape in ((1, 2), 1, (1, 2), 1)))
"""One sentence pair, whose shapes suffice to initialise a model."""


@dataclass(frozen=True)
class Translator:
    """A model and how it is trained: settings of `python -m train.nmt`."""

    name: str
    vocab_size: int
    model: Any
    training: TrainingConfig

    def build(self) -> Any:
        """Build our model."""
        return build_model(self.model, self.vocab_size, self.vocab_size)

    def without_dropout(self) -> "Translator":
        """Return the same translator, whose losses can be compared between frameworks."""
        rates = {field.name: 0.0 for field in fields(self.model) if field.name.startswith("dropout")}
        return replace(self, model=replace(self.model, **rates))


W1 = Translator("w1", 200, BOOK.model, BOOK.training)
"""The book's translator."""
W2 = Translator("w2", 8000, replace(W1.model, embed_size=256, num_hiddens=512), BOOK.training)
"""The same with widths that are in use."""

_GRU = RecurrentConfig(embed_size=256, num_hiddens=256, encoder_hiddens=256, dropout=0.3)
J = Translator("j", 8000, _GRU, TrainingConfig(schedule="constant", learning_rate=0.001, label_smoothing=0.1))
"""JoeyNMT's: a GRU with input feeding."""


def _transformer(embed_size: int, num_hiddens: int, num_layers: int, num_heads: int, rate: float) -> TransformerConfig:
    """Describe a Transformer that is normalised before each sublayer, as nn.Transformer with `norm_first` is."""
    rates = TransformerConfig(norm="pre", dropout=rate, dropout_attention=rate, dropout_hidden=rate)
    sizes = {"embed_size": embed_size, "num_hiddens": num_hiddens, "num_layers": num_layers, "num_heads": num_heads}
    return replace(rates, **sizes)  # type: ignore[arg-type]


BASE = Translator("base", 8000, _transformer(512, 2048, 6, 8, 0.1), replace(J.training, learning_rate=1e-4))
"""The Transformer's base size, on 64 sentences of 30 tokens."""
SMALL = Translator("small", 8000, _transformer(128, 256, 4, 4, 0.3), BASE.training)
"""The size of Wu et al. (2021) for Multi30k, on 64 sentences of 8 to 16 tokens."""


# Weights and sentences


def random_for(*names: str) -> np.random.Generator:
    """Make a generator seeded by names."""
    return np.random.default_rng(zlib.crc32("/".join(names).encode()))


def draw_normal(name: str, *shape: int) -> np.ndarray:
    """Draw an array of float32."""
    return random_for(name).normal(size=shape).astype(np.float32)


def draw_weights(seed: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Draw weights by PyTorch's names: uniform within ±1/√(last axis), embeddings and those of norms within ±1.

    Those of the output layer are four times as large: the logits should be so far apart that rounding seldom changes
    the best token of a search.
    """
    weights = {}
    for name, shape in shapes.items():
        width = 1.0 if re.search("embedding|norm", name) else shape[-1] ** -0.5
        width *= 4.0 if name == "decoder.dense.weight" else 1.0
        weights[name] = random_for(seed, name).uniform(-width, width, shape).astype(np.float32)
    return weights


def draw_params(seed: str, module: Any, *example: Any) -> Any:
    """Draw the parameters of a Flax module, by default of a translator's model; its `init` takes the example."""
    example = example or (EXAMPLE.sources, EXAMPLE.targets, EXAMPLE.source_lens)
    params = jax.jit(module.init)(jax.random.key(0), *example)
    shapes = {name: x.shape for name, x in to_torch(params).items()}
    return from_torch(draw_weights(seed, shapes), params)


BOOK_SOURCE_LENS = {2: 6, 3: 53, 4: 729, 5: 210, 6: 2}
"""Length -> how many of the book's first 1000 English sentences have it, `<eos>` included."""
BOOK_TARGET_LENS = {4: 189, 5: 314, 6: 369, 7: 91, 8: 25, 9: 10, 10: 2}
"""The same for the French sentences, `<bos>` and `<eos>` included."""
BUCKETS = {12: 2, 16: 2, 20: 1, 26: 1}
"""The lengths to which J's sorted sentences are padded, `<eos>` included -> steps of one pass with this length, in
about the proportions of Multi30k."""


def draw_training(name: str) -> list[Examples]:
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
) -> Examples:
    sources, targets = (rng.integers(FIRST_WORD, vocab_size, (*source_lens.shape, size)) for size in (S, T))
    targets[..., 0] = BOS
    return Examples(*(x.astype(np.int32) for x in (sources, source_lens, targets, target_lens)))
