"""Translate text: words to ids, search, and ids back to words."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
"""The number of tokens that `explain` lists for each step."""

Steps = list[list[tuple[str, float]]]
"""For each step of a hypothesis, the most probable tokens and their log p, the most probable first."""


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a sentence."""

    ids: tuple[int, ...]
    """Its tokens, with `<eos>` at the end if it was reached."""
    target: tuple[str, ...]
    """Its words, without `<eos>`."""
    score: float
    """Σ log p in nats; for a beam, with its penalties. −inf if the search found nothing of positive probability."""
    token_scores: Float[np.ndarray, "token"]
    """log p of each token."""
    weights: Float[np.ndarray, "token source"] | None
    """The attention of each token to the source words and `<eos>`, which is last on both sides."""

    @property
    def text(self) -> str:
        return detokenize(list(self.target))

    @property
    def tokens(self) -> tuple[str, ...]:
        """The words, and `<eos>` if it was reached: a name for each row of the weights."""
        return (*self.target, "<eos>")[: len(self.ids)]


NOTHING = Hypothesis((), (), 0.0, np.zeros(0, np.float32), None)
"""The translation of an empty sentence. The model is not asked."""


@dataclass(frozen=True)
class Translation:
    """A sentence's hypotheses, at least one: the best first, or samples in the order in which they were drawn."""

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
    """Translate sentences with a search.

    The search is one compiled program of one shape: `batch_size` rows of `max_words` words and `<eos>`. Its rows do not
    influence each other. So a translation depends on its sentence alone, to the last bit, and not on the number or the
    order of the other sentences. (Programs of other shapes would take the same sums in another order.)
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
        """Load the model of a run folder, whichever framework trained it.

            Translator.load("runs/demo-1")("the cat sleeps .").text
            Translator.load("runs/demo-1", "runs/demo-2", beam_size=5)(["the cat sleeps ."])[0].score

        Args:
            run: the folder.
            more: further runs with the same vocabularies, which form an ensemble with the first.
            framework: what computes. torch needs PyTorch, searches one sentence at a time, and is for comparison.
            search: options of `SearchConfig`; the others are those of the run.

        Raises:
            ConfigError: a folder holds no run, the runs do not fit together, or options cannot be used.
        """
        runs = [SavedRun.load(folder) for folder in (run, *more)]
        return cls.from_runs(runs, configure(runs[0], search), framework)

    @classmethod
    def from_runs(cls, runs: Sequence[SavedRun], config: SearchConfig, framework: Framework = "jax") -> "Translator":
        """Return the translator of runs that have been read; see `load`."""
        first = runs[0]
        for other in runs[1:]:
            if (other.source, other.target, other.tokenizer) != (first.source, first.target, first.tokenizer):
                raise ConfigError(
                    f"{first.folder} and {other.folder} have different vocabularies, and cannot translate together: "
                    "the runs of an ensemble are trained on the same corpus"
                )
        make = _torch_functions if framework == "torch" else _jax_functions
        search, candidates = make(runs, config, min(run.max_target_len for run in runs))
        max_words = min(run.max_source_words for run in runs)
        rows = 1 if framework == "torch" else config.batch_size
        return cls(search, first.source, first.target, first.tokenizer, max_words, rows, candidates)

    @overload
    def __call__(self, sentences: str, first: int = 1) -> Translation: ...  # type: ignore[overload-overlap] # a str is a sequence

    @overload
    def __call__(self, sentences: Sequence[str], first: int = 1) -> list[Translation]: ...

    def __call__(self, sentences: str | Sequence[str], first: int = 1) -> Translation | list[Translation]:
        """Translate a sentence or a list of sentences. A sentence of more than `max_words` words is cut with a warning.

        Args:
            sentences: one text gives one translation, a list gives a list in its order.
            first: the number of the first sentence in its text, for warnings and for sampling, which draws by it.

        Raises:
            FloatingPointError: the model's scores are NaN.
        """
        if isinstance(sentences, str):
            return self([sentences], first)[0]
        return self.translate_words([tokenize(sentence, self.tokenizer) for sentence in sentences], first)

    def translate_words(self, sentences: Sequence[Sequence[str]], first: int = 1) -> list[Translation]:
        """Translate sentences that are lists of words already."""
        for number, words in enumerate(sentences, first):
            if len(words) > self.max_words:
                warnings.warn(
                    f"sentence {number} has {len(words)} words and is translated in part: "
                    f"the model reads {self.max_words}, as many as its longest in training",
                    stacklevel=2,
                )
        sources = [tuple(words[: self.max_words]) for words in sentences]
        translations = [Translation((), (NOTHING,)) for _ in sources]
        indices = [i for i, words in enumerate(sources) if words]
        for start in range(0, len(indices), self.batch_size):
            batch = indices[start : start + self.batch_size]
            translated = self._translate_batch([sources[i] for i in batch], [first + i for i in batch])
            for i, translation in zip(batch, translated, strict=True):
                translations[i] = translation
        return translations

    def _translate_batch(self, sentences: list[tuple[str, ...]], numbers: list[int]) -> list[Translation]:
        sources, source_lens = encode_sources(self._pad_rows(sentences), self.source, self.max_words + 1)
        found = self.search(sources, source_lens, np.resize(np.array(numbers, np.int32), self.batch_size))
        result: Any = SearchResult(*jax.device_get(tuple(found)))
        for row, number in enumerate(numbers):
            if np.isnan(result.scores[row]).any():
                raise FloatingPointError(
                    f"the model's scores of sentence {number} are NaN: the weights are damaged or the training diverged"
                )
        return [Translation(words, self._hypotheses(result, row, words)) for row, words in enumerate(sentences)]

    def _hypotheses(self, result: Any, row: int, words: tuple[str, ...]) -> tuple[Hypothesis, ...]:
        """Return the hypotheses of positive probability, or the first, which is empty, if there is none."""
        hypotheses = []
        for n, score in enumerate(result.scores[row].tolist()):
            if n > 0 and score == -math.inf:
                continue
            length = int(result.lengths[row, n])
            ids = tuple(result.ids[row, n, :length].tolist())
            weights = None if result.weights is None else result.weights[row, n, :length, : len(words) + 1]
            target = tuple(self.target.decode(ids))
            hypotheses.append(Hypothesis(ids, target, score, result.token_scores[row, n, :length], weights))
        return tuple(hypotheses)

    def explain(self, translations: Sequence[Translation]) -> list[list[Steps]]:
        """List the most probable tokens at each step of each hypothesis of each translation.

        Raises:
            ValueError: this translator was made without `candidates`.
        """
        if self.candidates is None:
            raise ValueError("explain needs a translator with candidates; got None")
        pairs = [(t.source, hypothesis.ids) for t in translations for hypothesis in t.hypotheses]
        longest = max((len(ids) for _, ids in pairs), default=0)
        length = 16 * (longest // 16 + 1)  # few different shapes, since each is compiled
        explained: list[Steps] = []
        for start in range(0, len(pairs), self.batch_size):
            batch = pairs[start : start + self.batch_size]
            sources = encode_sources(self._pad_rows([words for words, _ in batch]), self.source, self.max_words + 1)
            targets, lens = pad(self._pad_rows([ids for _, ids in batch]), length)
            log_probs, tokens = (np.asarray(x).tolist() for x in self.candidates(*sources, targets))
            for row in range(len(batch)):
                steps = zip(tokens[row][: lens[row]], log_probs[row], strict=False)
                explained.append(
                    [[(self.target.words[i], log) for i, log in zip(*step, strict=True)] for step in steps]
                )
        remaining = iter(explained)
        return [[next(remaining) for _ in t.hypotheses] for t in translations]

    def _pad_rows(self, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Add empty rows up to the program's number of rows."""
        return [*rows, *[()] * (self.batch_size - len(rows))]


def configure(run: SavedRun, changes: Mapping[str, Any], option_name: Callable[[str], str] = str) -> SearchConfig:
    """Return the run's own search with some options changed. Errors name an option as `option_name` does.

    Raises:
        ConfigError: options do not exist, or cannot be used with this run.
    """
    known = [field.name for field in dataclasses.fields(SearchConfig)]
    unknown = sorted(set(changes) - set(known))
    if unknown:
        raise ConfigError(f"a search has no option {', '.join(unknown)}; it has {', '.join(known)}")
    config = dataclasses.replace(run.search, **changes)
    wrong = wrong_search(config, option_name)
    if config.beam_size > len(run.target):
        wrong.append(
            f"{option_name('beam_size')} must be at most {len(run.target)}, the number of target words; "
            f"got {config.beam_size}"
        )
    if config.coverage_penalty and run.model.attention == "none":
        wrong.append(f"{option_name('coverage_penalty')} needs attention, and the model of {run.folder} has none")
    if config.max_len is None and config.min_len > run.max_target_len:
        wrong.append(
            f"{option_name('min_len')} must be at most {run.max_target_len}, the longest target in the training of "
            f"{run.folder}, unless {option_name('max_len')} is given; got {config.min_len}"
        )
    if wrong:
        raise ConfigError("; ".join(wrong))
    return config


def load_model(run: SavedRun) -> tuple[EncoderDecoder, Any]:
    """Return a run's model and its parameters.

    Raises:
        ConfigError: the parameters do not fit the model.
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


def _jax_functions(runs: Sequence[SavedRun], config: SearchConfig, max_len: int) -> tuple[Search, Candidates]:
    models, params = zip(*(load_model(run) for run in runs), strict=True)
    candidates = make_candidates(models, min(NUM_CANDIDATES, len(runs[0].target)))
    return partial(make_search(models, config, max_len), params), partial(candidates, params)


def _torch_functions(runs: Sequence[SavedRun], config: SearchConfig, max_len: int) -> tuple[Search, Candidates]:
    try:
        from train.translation.torch_search import TorchSearch
    except ImportError as error:
        raise ConfigError(f"--framework torch needs PyTorch: install the extra `torch` ({error})") from error
    torch_search = TorchSearch(runs, config, max_len, min(NUM_CANDIDATES, len(runs[0].target)))
    return torch_search.search, torch_search.candidates
