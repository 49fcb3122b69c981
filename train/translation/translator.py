"""Sentences in, translations out: the way from text to ids, through search, and back."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

import jax
import numpy as np
from jaxtyping import Float

from jax_attn.models import EncoderDecoder
from jax_attn.search import SearchResult
from jax_attn.weights import from_torch
from train.config import ConfigError, SearchConfig, wrong_search
from train.data.batches import encode_sources, pad
from train.data.tokens import Tokenizer, detokenize, tokenize
from train.data.vocabulary import Vocabulary
from train.model import build_model
from train.translation.saved_run import SavedRun
from train.translation.search import Candidates, Search, make_candidates, make_search

Framework = Literal["jax", "torch"]

NUM_CANDIDATES = 8
"""How many tokens are told of each step."""


Steps = list[list[tuple[str, float]]]
"""The likeliest tokens and their log p at each step of a hypothesis, likeliest first."""


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a sentence."""

    ids: tuple[int, ...]
    """Its tokens, `<eos>` at the end if it was reached."""
    target: tuple[str, ...]
    """Its words, without `<eos>`."""
    score: float
    """Σ log p in nats; of a beam, with its penalties. −inf if the search left no translation of any probability."""
    token_scores: Float[np.ndarray, "token"]
    """log p of each token."""
    weights: Float[np.ndarray, "token source"] | None
    """What each token attended to among the source words and `<eos>`, which stands last on both sides."""

    @property
    def text(self) -> str:
        return detokenize(list(self.target))

    @property
    def tokens(self) -> tuple[str, ...]:
        """The words, and `<eos>` where it was reached: a name for each row of the weights."""
        return (*self.target, "<eos>")[: len(self.ids)]


NOTHING = Hypothesis((), (), 0.0, np.zeros(0, np.float32), None)
"""Nothing said is nothing translated, whatever the model makes of `<eos>` alone."""


@dataclass(frozen=True)
class Translation:
    """A sentence's hypotheses, best first or as they were drawn; there is at least one."""

    source: tuple[str, ...]
    """The words that were read."""
    hypotheses: tuple[Hypothesis, ...]

    @property
    def best(self) -> Hypothesis:
        return self.hypotheses[0]

    @property
    def text(self) -> str:
        return self.best.text

    @property
    def target(self) -> tuple[str, ...]:
        return self.best.target

    @property
    def score(self) -> float:
        return self.best.score

    @property
    def weights(self) -> Float[np.ndarray, "token source"] | None:
        return self.best.weights


@dataclass(frozen=True)
class Translator:
    """Translates sentences with a search.

    The search is one compiled program of one shape, `batch_size` rows of `max_words` words and `<eos>`. In it a row's
    bits do not depend on the other rows, so a translation depends on its sentence alone: not on how many sentences
    came with it, nor in which order. (In programs of other shapes the same sums are taken in another order.)
    """

    search: Search
    source: Vocabulary
    target: Vocabulary
    tokenizer: Tokenizer
    max_words: int
    batch_size: int
    candidates: Candidates | None = None

    @classmethod
    def load(cls, run: Path | str, *more: Path | str, framework: Framework = "jax", **search: Any) -> "Translator":
        """The translator that a run left in its folder, whichever framework trained it.

            Translator.load("runs/demo-1")("the cat sleeps .").text
            Translator.load("runs/demo-1", "runs/demo-2", beam_size=5)(["the cat sleeps ."])[0].score

        Args:
            run: the folder.
            more: further runs with the same vocabularies: their models decide together.
            framework: what translates; torch needs PyTorch, searches one sentence at a time, and is for comparison.
            search: options of `SearchConfig`, where they shall differ from the run's own.

        Raises:
            ConfigError: a folder that holds no run, runs that do not fit together, options that cannot be used.
        """
        runs = [SavedRun.load(folder) for folder in (run, *more)]
        return cls.of(runs, configure(runs[0], search), framework)

    @classmethod
    def of(cls, runs: Sequence[SavedRun], config: SearchConfig, framework: Framework = "jax") -> "Translator":
        """The translator of runs that have been read."""
        _require_one_language(runs)
        max_len = min(run.max_target_len for run in runs)
        max_words = min(run.max_source_words for run in runs)
        functions = _torch_search if framework == "torch" else _jax_search
        rows = 1 if framework == "torch" else config.batch_size
        search, candidates = functions(runs, config, max_len)
        first = runs[0]
        return cls(search, first.source, first.target, first.tokenizer, max_words, rows, candidates)

    @overload
    def __call__(self, sentences: str, first: int = 1) -> Translation: ...  # type: ignore[overload-overlap] # a str is a sequence

    @overload
    def __call__(self, sentences: Sequence[str], first: int = 1) -> list[Translation]: ...

    def __call__(self, sentences: str | Sequence[str], first: int = 1) -> Translation | list[Translation]:
        """Translate a sentence, or several in their order; a warning tells of one that has more than `max_words`.

        Args:
            sentences: a text, or a list of them.
            first: the number of the first in its text, from which warnings count, and by which sampling draws.

        Raises:
            FloatingPointError: the model gave NaN.
        """
        if isinstance(sentences, str):
            return self([sentences], first)[0]
        return self.translate_words([tokenize(sentence, self.tokenizer) for sentence in sentences], first)

    def translate_words(self, sentences: Sequence[Sequence[str]], first: int = 1) -> list[Translation]:
        """Translate sentences that are words already."""
        for number, words in enumerate(sentences, first):
            if len(words) > self.max_words:
                warnings.warn(
                    f"sentence {number} has {len(words)} words and is translated in part: "
                    f"the model reads {self.max_words}, as many as its longest in training",
                    stacklevel=2,
                )
        kept = [tuple(words[: self.max_words]) for words in sentences]
        numbers = [first + i for i, words in enumerate(kept) if words]
        translations = [Translation((), (NOTHING,)) for _ in kept]
        for start in range(0, len(numbers), self.batch_size):
            of_batch = numbers[start : start + self.batch_size]
            translated = self._translate_batch([kept[number - first] for number in of_batch], of_batch)
            for number, translation in zip(of_batch, translated, strict=True):
                translations[number - first] = translation
        return translations

    def _translate_batch(self, sentences: list[tuple[str, ...]], numbers: list[int]) -> list[Translation]:
        sources, source_lens = encode_sources(self._fill(sentences), self.source, self.max_words + 1)
        found = self.search(sources, source_lens, np.resize(np.array(numbers, np.int32), self.batch_size))
        result: Any = SearchResult(*jax.device_get(tuple(found)))
        for row, number in enumerate(numbers):
            if np.isnan(result.scores[row]).any():
                raise FloatingPointError(
                    f"the model's scores of sentence {number} are NaN: damaged weights, or a training that diverged"
                )
        return [Translation(words, self._hypotheses(result, row, words)) for row, words in enumerate(sentences)]

    def _hypotheses(self, result: Any, row: int, words: tuple[str, ...]) -> tuple[Hypothesis, ...]:
        """Those that exist, or else the first, which is empty."""
        exist = [n for n, score in enumerate(result.scores[row].tolist()) if n == 0 or score > -math.inf]
        hypotheses = []
        for n in exist:
            length = int(result.lengths[row, n])
            ids = tuple(result.ids[row, n, :length].tolist())
            weights = None if result.weights is None else result.weights[row, n, :length, : len(words) + 1]
            token_scores = result.token_scores[row, n, :length]
            target = tuple(self.target.decode(ids))
            hypotheses.append(Hypothesis(ids, target, float(result.scores[row, n]), token_scores, weights))
        return tuple(hypotheses)

    def explain(self, translations: Sequence[Translation]) -> list[list[Steps]]:
        """What each hypothesis of each translation might have said instead, step by step.

        Raises:
            ValueError: this translator was made without `candidates`.
        """
        if self.candidates is None:
            raise ValueError("a translator explains itself if it has candidates; got None")
        pairs = [(t.source, hypothesis.ids) for t in translations for hypothesis in t.hypotheses]
        longest = -(-max((len(ids) for _, ids in pairs), default=0) // 16) * 16  # a few shapes to compile for
        steps: list[Steps] = []
        for start in range(0, len(pairs), self.batch_size):
            of_batch = pairs[start : start + self.batch_size]
            sources = encode_sources(self._fill([words for words, _ in of_batch]), self.source, self.max_words + 1)
            targets, lens = pad(self._fill([ids for _, ids in of_batch]), longest)
            log_probs, tokens = (np.asarray(x) for x in self.candidates(*sources, targets))
            for row in range(len(of_batch)):
                named = [[self.target.words[i] for i in at_step] for at_step in tokens[row, : lens[row]].tolist()]
                at_steps = zip(named, log_probs[row].tolist(), strict=False)
                steps.append([list(zip(words, logs, strict=True)) for words, logs in at_steps])
        explained = iter(steps)
        return [[next(explained) for _ in t.hypotheses] for t in translations]

    def _fill(self, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """As many rows as the program has."""
        return [*rows, *[()] * (self.batch_size - len(rows))]


def configure(run: SavedRun, changes: Mapping[str, Any], called: Callable[[str], str] = str) -> SearchConfig:
    """The run's own search with some options changed, which errors call as `called` does.

    Raises:
        ConfigError: options that there are not, or that cannot be used with this run.
    """
    known = [field.name for field in dataclasses.fields(SearchConfig)]
    unknown = sorted(set(changes) - set(known))
    if unknown:
        raise ConfigError(f"a search has no option {', '.join(unknown)}; it has {', '.join(known)}")
    config = dataclasses.replace(run.search, **changes)
    wrong = wrong_search(config, called)
    if config.beam_size > len(run.target):
        wrong.append(
            f"{called('beam_size')} must be at most {len(run.target)}, as many as there are target words; "
            f"got {config.beam_size}"
        )
    if config.coverage_penalty and run.model.attention == "none":
        wrong.append(f"{called('coverage_penalty')} needs attention, and the model of {run.folder} has none")
    if config.max_len is None and config.min_len > run.max_target_len:
        wrong.append(
            f"{called('min_len')} must be at most {run.max_target_len}, the most tokens that {run.folder} saw, "
            f"unless {called('max_len')} says more; got {config.min_len}"
        )
    if wrong:
        raise ConfigError("; ".join(wrong))
    return config


def _require_one_language(runs: Sequence[SavedRun]) -> None:
    first = runs[0]
    for other in runs[1:]:
        if (other.source, other.target, other.tokenizer) != (first.source, first.target, first.tokenizer):
            raise ConfigError(
                f"{first.folder} and {other.folder} have other words, and cannot translate together: "
                "an ensemble's runs are trained on the same corpus"
            )


def load_model(run: SavedRun) -> tuple[EncoderDecoder, Any]:
    """A run's model and its parameters.

    Raises:
        ConfigError: parameters that are not those of the model.
    """
    model = build_model(run.model, len(run.source), len(run.target))
    token = np.zeros((1, 1), np.int32)
    like = jax.eval_shape(lambda token: model.init(jax.random.key(0), token, token), token)
    try:
        return model, from_torch(run.weights, like)
    except (KeyError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{run.folder} holds no run that can be loaded: model.safetensors does not fit config.json: {error.args[0]}"
        ) from error


def _jax_search(runs: Sequence[SavedRun], config: SearchConfig, max_len: int) -> tuple[Search, Candidates]:
    models, params = zip(*(load_model(run) for run in runs), strict=True)
    candidates = make_candidates(models, min(NUM_CANDIDATES, len(runs[0].target)))
    search = make_search(models, config, max_len)
    return lambda *given: search(params, *given), lambda *given: jax.device_get(candidates(params, *given))


def _torch_search(runs: Sequence[SavedRun], config: SearchConfig, max_len: int) -> tuple[Search, Candidates]:
    try:
        from train.translation.torch_search import TorchSearch
    except ImportError as error:
        raise ConfigError(f"--framework torch needs PyTorch: install the extra `torch` ({error})") from error
    searches = TorchSearch(runs, config, max_len, min(NUM_CANDIDATES, len(runs[0].target)))
    return searches.search, searches.candidates
