"""Sentences in, translations out: the way from text to ids, through search, and back."""

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jax_attn.checkpoints import read_safetensors
from jax_attn.functional import SearchResult, beam_search, greedy_search
from jax_attn.models import EncoderDecoder
from jax_attn.weights import from_torch
from train.batches import encode_sources
from train.config import ConfigError, ModelConfig, SearchConfig
from train.model import build_model
from train.tokens import Tokenizer, detokenize, tokenize
from train.vocabulary import BOS, EOS, Vocabulary

Search = Callable[[np.ndarray, np.ndarray], SearchResult]
"""search(sources [rows, S], source_lens [rows]) -> hypotheses; always called with the same number of rows."""


@dataclass(frozen=True)
class Translation:
    """The best hypothesis for a sentence."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    score: float
    """Σ log p in nats; of a beam, over length^length_penalty."""
    weights: Float[np.ndarray, "target source"] | None
    """What each target word attended to among the source words and `<eos>`, which stands last on both sides."""

    @property
    def text(self) -> str:
        return detokenize(list(self.target))


def make_search(model: EncoderDecoder, config: SearchConfig, max_len: int) -> Callable[..., SearchResult]:
    """A jitted function (params, sources, source_lens) -> hypotheses; a second model of the same shape reuses it."""

    @jax.jit
    def search(params: Any, sources: jax.Array, source_lens: jax.Array) -> SearchResult:
        memory = model.apply(params, sources, source_lens, method="encode")
        state = model.apply(params, memory, method="initial_state")
        step: Any = partial(model.apply, params, method="step")
        ends: dict[str, Any] = {"bos": BOS, "eos": EOS, "max_len": max_len, "batch_size": sources.shape[0]}
        if config.beam_size == 1:
            return greedy_search(step, state, memory, **ends)
        return beam_search(
            step, state, memory, **ends, beam_size=config.beam_size, length_penalty=config.length_penalty
        )

    return search


@dataclass(frozen=True)
class Translator:
    """Translates sentences with a search, in batches of one fixed shape, so that it is compiled once."""

    search: Search
    source: Vocabulary
    target: Vocabulary
    tokenizer: Tokenizer
    max_words: int
    batch_size: int

    @classmethod
    def load(cls, run: Path | str) -> "Translator":
        """The translator that a run left in its folder, whichever framework trained it.

            Translator.load("runs/demo-1")(["the cat sleeps ."])[0].text

        Raises:
            ConfigError: a folder that holds no run, or one that did not end.
        """
        folder = Path(run)
        try:
            settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            source, target = (Vocabulary.load(folder / f"{side}.json") for side in ("source", "target"))
            weights = read_safetensors(folder / "model.safetensors")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{folder} holds no run that can be loaded: {error}") from error
        config = SearchConfig(**settings["search"])
        model = build_model(ModelConfig(**settings["model"]), len(source), len(target))
        token = jnp.zeros((1, 1), jnp.int32)
        params = from_torch(weights, jax.eval_shape(model.init, jax.random.key(0), token, token))
        search = partial(make_search(model, config, settings["max_target_len"]), params)
        tokenizer = settings["corpus"]["tokenizer"]
        return cls(search, source, target, tokenizer, settings["max_source_words"], config.batch_size)

    def __call__(self, sentences: Sequence[str]) -> list[Translation]:
        """Translate texts, in their order; a warning tells of words beyond `max_words`, which are not read."""
        return self.translate_words([tokenize(sentence, self.tokenizer) for sentence in sentences])

    def translate_words(self, sentences: Sequence[Sequence[str]]) -> list[Translation]:
        """Translate sentences that are words already."""
        too_long = sum(len(words) > self.max_words for words in sentences)
        if too_long:
            warnings.warn(
                f"{too_long} sentences are longer than {self.max_words} words; the rest is not read", stacklevel=2
            )
        kept = [tuple(words[: self.max_words]) for words in sentences]
        translations = []
        for start in range(0, len(kept), self.batch_size):
            translations += self._translate_batch(kept[start : start + self.batch_size])
        return translations

    def _translate_batch(self, sentences: list[tuple[str, ...]]) -> list[Translation]:
        rows = sentences + [()] * (self.batch_size - len(sentences))
        found = self.search(*encode_sources(rows, self.source, self.max_words + 1))
        ids, scores = np.asarray(found.ids[:, 0]), np.asarray(found.scores[:, 0])
        weights = None if found.weights is None else np.asarray(found.weights[:, 0])
        translations = []
        for row, words in enumerate(sentences):
            if not words:  # nothing said is nothing translated, whatever the model makes of <eos> alone
                translations.append(Translation((), (), 0.0, None))
                continue
            target = tuple(self.target.decode(ids[row].tolist()))
            attended = None if weights is None else weights[row, : len(target) + 1, : len(words) + 1]
            translations.append(Translation(words, target, float(scores[row]), attended))
        return translations
