"""Translate text: text to ids, search, and ids back to text."""

import dataclasses
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, overload

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_attn.models import EncoderDecoder, build_model
from jax_attn.models.interface import AttentionMaps
from jax_attn.weights import from_torch
from train.config import SearchConfig
from train.data.batches import pad
from train.data.vocabulary import EOS, UNKNOWN, Vocabulary
from train.runs.run_folder import RunFolder, SavedRun
from train.setting import ConfigError
from train.translating.check_search import check_search, wrong_length
from train.translating.search import Attend, Follow, Followed, Search, make_attend, make_follow, make_search
from train.translating.translation import NOTHING, Hypothesis, Steps, Translation, by_words

MAPS_AT_A_TIME = 8
"""Sentences whose weights of every layer and head are computed together."""

ROWS = 8
"""The rows of a program are a multiple of this. A CPU computes 8 numbers at once, and XLA lets it compute what is left
over one by one, which rounds differently: with 12 rows the last bits of the last rows can depend on their place."""

LANGUAGES = re.compile(r"\s*([^\s<>]*)>>([^\s<>]+)<<")
"""How a sentence names its own languages: `>>fra_Latn<< text` or `deu_Latn>>fra_Latn<< text`."""

LEAST_ROWS = 2
"""Rows of a search, at least: on a CPU, a step with one row takes XLA almost four times as long as one with two."""

NUM_CANDIDATES = 8
"""The number of tokens that `explain` lists for each step."""


class Source(NamedTuple):
    """A sentence as the model reads it, shortened to the tokens that it can read."""

    text: str
    ids: list[int]
    names: tuple[str, ...]
    """The words, or the pieces, without `<eos>`."""
    spans: tuple[range, ...]
    """The tokens of each word, and those of `<eos>`."""
    unknown: tuple[str, ...]
    """The tokens that the vocabulary lacks."""
    before: list[int]
    """What the model reads before: the language's token, if it has one. It is no word, and is not shown."""
    language: list[int]
    """What the translation begins with, and is not shown either: the token of its language."""


@dataclass(frozen=True)
class Translator:
    """Translate sentences with a search.

    The search is one compiled program for each of a few widths: `rows` rows of that many tokens. A sentence is
    searched at the smallest width that it fits, and the rows of a program do not influence each other. So a translation
    depends on its sentence alone, to the last bit, and not on the number or the order of the other sentences. (A
    program of another shape would take the same sums in another order.) Each device of a mesh runs this program.
    """

    search: Search
    source: Vocabulary
    target: Vocabulary
    max_source_len: int
    """The most tokens of a sentence that are read, without `<eos>`."""
    rows: int
    """The rows of its program, on each device."""
    follow: Follow | None = None
    attend: Attend | None = None
    """None for an ensemble: its models can have different layers and heads."""
    pieces: bool = False
    """Show the pieces of subwords instead of words."""
    num_devices: int = 1
    """`search` takes `rows` rows for each of these devices."""
    longest: int | None = None
    """The most tokens of a target that `follow` can read; None for any number."""
    source_end: bool = True
    """Let the model read the `<eos>` of each sentence. Else its weight is 0."""
    one_by_one: bool = False
    """Search one sentence at a time: the other rows stay empty."""
    prefix: tuple[int, ...] = ()
    """The tokens that every translation begins with."""
    shortens: bool = True
    """Translate a sentence that is too long in part, with a warning. Else it is an error."""

    @classmethod
    def load(
        cls,
        run: Path | str,
        *more: Path | str,
        pieces: bool = False,
        mesh: Mesh | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
        prefix: str = "",
        **search: Any,
    ) -> "Translator":
        """Load the model of a run folder.

            Translator.load("runs/demo-1")("the cat sleeps .").text
            Translator.load("runs/demo-1", "runs/demo-2", beam_size=5)(["the cat sleeps ."])[0].score

        Args:
            run: the folder.
            more: further runs with the same vocabularies, which form an ensemble with the first.
            pieces: give the pieces of subwords and their weights instead of those of words.
            mesh: the devices that search, see `train.machine.devices.make_mesh`.
            source_language, target_language: of a model of several languages, codes such as eng_Latn.
            prefix: the text that every translation begins with.
            search: options of `SearchConfig`; the others are those of the run.

        Raises:
            ConfigError: a folder holds no run, the runs do not fit together, or options cannot be used.
        """
        languages = source_language, target_language
        runs = [RunFolder(folder).load().in_languages(*languages) for folder in (run, *more)]
        return cls.from_runs(runs, configure(runs[0], search), pieces, mesh, prefix)

    @classmethod
    def from_runs(
        cls,
        runs: Sequence[SavedRun],
        config: SearchConfig,
        pieces: bool = False,
        mesh: Mesh | None = None,
        prefix: str = "",
    ) -> "Translator":
        """Return the translator of runs that have been read; see `load`."""
        first = runs[0]
        forced = tuple(first.target.encode(prefix))
        _, of_target = first.source.prefix, first.target.prefix  # ConfigError where a language is to be chosen
        longest_target = min(run.max_target_len for run in runs)
        needed, most = len(of_target) + len(forced), config.max_len or longest_target
        if UNKNOWN in forced:
            raise ConfigError(f"the prefix {prefix!r} has tokens that {first.folder} does not know")
        if needed > most:
            raise ConfigError(f"a prefix of {needed} tokens is longer than a translation, {most}")
        for other in runs[1:]:
            if (other.source, other.target) != (first.source, first.target):
                raise ConfigError(
                    f"{first.folder} and {other.folder} have different vocabularies, and cannot translate together: "
                    "the runs of an ensemble are trained on the same corpus"
                )
            if other.model.source_end != first.model.source_end:
                raise ConfigError(f"{first.folder} and {other.folder} differ in model.source-end: one reads <eos>")
            if wrong := wrong_length(config, other.model, other.max_target_len):
                raise ConfigError(f"{other.folder} cannot translate with these options: {wrong[0]}")
        models, params = zip(*(load_model(run) for run in runs), strict=True)
        on_devices = params if mesh is None else jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
        search = make_search(models, config, longest_target, mesh)
        follow = make_follow(models, min(NUM_CANDIDATES, len(first.target)))
        max_source_len = min(run.max_source_len for run in runs)
        num_devices = 1 if mesh is None else mesh.size
        one_by_one = config.batch_size == num_devices == 1
        rows = rows_for(config.batch_size)
        if one_by_one:
            hypotheses = config.num_samples if config.sample else config.beam_size
            rows = -(-LEAST_ROWS // hypotheses)
        longest = min((run.model.longest for run in runs if run.model.longest is not None), default=None)
        return cls(
            search=partial(search, on_devices),
            source=first.source,
            target=first.target,
            max_source_len=max_source_len,
            rows=rows,
            follow=partial(follow, params),
            attend=partial(make_attend(models[0]), params[0]) if len(models) == 1 else None,
            pieces=pieces,
            num_devices=num_devices,
            longest=longest,
            source_end=first.model.source_end,
            one_by_one=one_by_one,
            prefix=forced,
            shortens=first.source.shortens,
        )

    @overload
    def __call__(self, sentences: str, first: int = 1) -> Translation: ...  # type: ignore[overload-overlap] # a str is a sequence

    @overload
    def __call__(self, sentences: Sequence[str], first: int | Sequence[int] = 1) -> list[Translation]: ...

    def __call__(
        self, sentences: str | Sequence[str], first: int | Sequence[int] = 1
    ) -> Translation | list[Translation]:
        """Translate a sentence or a list of sentences.

        A sentence that is too long is shortened, with a warning; with an imported model it is an error.

        Args:
            sentences: one text gives one translation, a list gives a list in its order.
            first: the number of the first sentence in its text, for warnings and for sampling, which draws by it; or
                the number of each.

        Raises:
            FloatingPointError: the model's scores are NaN.
            ConfigError: a sentence is longer than an imported model can read.
        """
        if isinstance(sentences, str):
            return self([sentences], first)[0]
        numbers = range(first, first + len(sentences)) if isinstance(first, int) else first
        sources = [self.read(text, number) for number, text in zip(numbers, sentences, strict=True)]
        translations = [Translation((), (NOTHING,), source.text) for source in sources]
        # Sentences of similar lengths are searched together, since a batch takes the steps of its longest translation.
        order = sorted(range(len(sources)), key=lambda i: len(sources[i].ids))
        for width, members in self._batches([sources[i] for i in order], self.batch_size * self.num_devices):
            batch = [order[i] for i in members]
            translated = self._translate_batch([sources[i] for i in batch], [numbers[i] for i in batch], width)
            for i, translation in zip(batch, translated, strict=True):
                translations[i] = translation
        return translations

    @property
    def batch_size(self) -> int:
        """The sentences that are searched together, on each device."""
        return 1 if self.one_by_one else self.rows

    def read(self, text: str, number: int | None = None) -> Source:
        """Encode a sentence, which may begin with its languages; warn if it is shortened and has a number."""
        languages, sentence = split_languages(self, text)
        vocabulary, target = self.source, self.target
        if own := LANGUAGES.match(languages):
            vocabulary = vocabulary.in_language(own[1]) if own[1] else vocabulary
            target = target.in_language(own[2])
        before = vocabulary.prefix
        ids, tokens, limit = vocabulary.encode(sentence), vocabulary.cut(sentence), self.max_source_len - len(before)
        if len(ids) > limit and number is not None:
            unit = "words" if self.source.lower_case else "pieces"
            if not self.shortens:
                raise ConfigError(
                    f"sentence {number} has {len(ids)} {unit}, and the model reads {limit}: "
                    "split it into sentences, or let --split do it"
                )
            warnings.warn(
                f"sentence {number} has {len(ids)} {unit} and is translated in part: "
                f"the model reads {limit}" + ", as many as its longest in training" * self.source.shortens,
                stacklevel=3,
            )
        ids = ids[:limit]
        spans = self._spans(self.source, [*ids, EOS])
        names = tuple(
            tokens[span.start] if self.pieces else self.source.word(tokens[span.start : span.stop])
            for span in spans[:-1]
        )
        unknown = tuple(token for token, i in zip(tokens, ids, strict=False) if i == UNKNOWN)
        return Source(text, ids, names, spans, unknown, before, target.prefix)

    def _spans(self, vocabulary: Vocabulary, ids: Sequence[int]) -> tuple[range, ...]:
        """Return the tokens of each word, or of each piece."""
        return tuple(range(i, i + 1) for i in range(len(ids))) if self.pieces else tuple(vocabulary.words(ids))

    def _batches(self, sources: Sequence[Source], rows: int) -> Iterator[tuple[int, list[int]]]:
        """Yield batches of up to `rows` sentences of one width, as indices; sentences without tokens are left out."""
        by_width: dict[int, list[int]] = {width: [] for width in widths(self.max_source_len + 1)}
        for i, source in enumerate(sources):
            if source.ids:
                length = len(source.before) + len(source.ids)
                by_width[next(width for width in by_width if length < width)].append(i)
        for width, members in by_width.items():
            for start in range(0, len(members), rows):
                yield width, members[start : start + rows]

    def _pad(self, sources: Sequence[Source], width: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Pad sentences to a width, with `<eos>`, and their number to `rows`; also return the lengths to read."""
        ids, lens = pad(_pad_rows([[*source.before, *source.ids, EOS] for source in sources], rows), width)
        return ids, lens if self.source_end else np.maximum(lens - 1, 0)

    def _translate_batch(self, sentences: list[Source], numbers: list[int], width: int) -> list[Translation]:
        rows = self.rows * self.num_devices
        prefix = np.array([[*source.language, *self.prefix] for source in sentences], np.int32)
        drawn_by, prefix = np.resize(np.array(numbers, np.int32), rows), np.resize(prefix, (rows, prefix.shape[1]))
        found = self.search(*self._pad(sentences, width, rows), drawn_by, prefix)
        result: Any = jax.device_get(found)
        for row, number in enumerate(numbers):
            if np.isnan(result.scores[row]).any():
                raise FloatingPointError(
                    f"the model's scores of sentence {number} are NaN: the weights are damaged or the training diverged"
                )
        return [
            Translation(source.names, self._hypotheses(result, row, source), source.text, source.unknown)
            for row, source in enumerate(sentences)
        ]

    def _hypotheses(self, result: Any, row: int, source: Source) -> tuple[Hypothesis, ...]:
        """Return the hypotheses of positive probability, or the first, which is empty, if there is none."""
        hypotheses = []
        for n, score in enumerate(result.scores[row].tolist()):
            if n > 0 and score == -math.inf:
                continue
            shown = slice(len(source.language), int(result.lengths[row, n]))
            ids = tuple(result.ids[row, n, shown].tolist())
            spans = self._spans(self.target, ids)
            weights = None if result.weights is None else result.weights[row, n, shown, len(source.before) :]
            hypotheses.append(
                Hypothesis(
                    ids=ids,
                    target=self._target_names(ids, spans),
                    score=score,
                    token_scores=result.token_scores[row, n, shown],
                    weights=None if weights is None else by_words(weights, spans, source.spans),
                    text=self.target.decode(ids),
                    spans=spans,
                    pieces=tuple(self.target.tokens[i] for i in ids),
                )
            )
        return tuple(hypotheses)

    def _target_names(self, ids: Sequence[int], spans: Sequence[range]) -> tuple[str, ...]:
        names = [[self.target.tokens[ids[i]] for i in span] for span in spans if ids[span.start] != EOS]
        return tuple(parts[0] if self.pieces else self.target.word(parts) for parts in names)

    def explain(self, translations: Sequence[Translation]) -> list[list[Steps]]:
        """List the most probable tokens at each step of each hypothesis of each translation."""
        pairs = [(t.source_text, hypothesis.ids) for t in translations for hypothesis in t.hypotheses]
        names = self.target.tokens
        explained: list[Steps] = [[] for _ in pairs]
        for batch, followed in self.read_targets(pairs):
            log_probs, tokens = followed.log_probs.tolist(), followed.tokens.tolist()
            for row, i in enumerate(batch):
                steps = zip(tokens[row], log_probs[row], strict=True)
                steps_of_pair = [[(names[token], log) for token, log in zip(*step, strict=True)] for step in steps]
                explained[i] = steps_of_pair[: len(pairs[i][1])]
        remaining = iter(explained)
        return [[next(remaining) for _ in t.hypotheses] for t in translations]

    def read_targets(self, pairs: Sequence[tuple[str, Sequence[int]]]) -> Iterator[tuple[list[int], Any]]:
        """Let the decoder read a given target for each source text. Yield batches: indices and `Followed` arrays.

        Pairs with an empty source are left out.
        """
        assert self.follow is not None, "a translator of a run has it"
        return self._read(self.follow, pairs, self.batch_size)

    def read_maps(self, pairs: Sequence[tuple[str, Sequence[int]]]) -> Iterator[tuple[list[int], Any]]:
        """Do the same as `read_targets`, and yield `AttentionMaps`; see `train.translating.search.Attend`."""
        assert self.attend is not None, "a translator of one run has it"
        return self._read(self.attend, pairs, min(self.batch_size, MAPS_AT_A_TIME))

    def _read(
        self, function: Callable[..., Any], pairs: Sequence[tuple[str, Sequence[int]]], batch_size: int
    ) -> Iterator[tuple[list[int], Any]]:
        """Call a function of sources and targets with batches. Yield the indices of each, and what it returns.

        Targets of similar lengths are read together, padded to a power of two, since each shape is compiled.
        """
        order = sorted(range(len(pairs)), key=lambda i: len(pairs[i][1]))
        sources = [self.read(pairs[i][0]) for i in order]
        for width, members in self._batches(sources, batch_size):
            batch = [order[i] for i in members]
            rows = _pad_rows([[*sources[i].language, *pairs[order[i]][1]] for i in members], batch_size)
            longest = max(map(len, rows))
            targets, _ = pad(rows, min(max(16, 1 << (longest - 1).bit_length()), self.longest or sys.maxsize))
            found = function(*self._pad([sources[i] for i in members], width, batch_size), targets)
            yield batch, _of_words(jax.device_get(found), len(self.source.prefix), len(self.target.prefix))


def _of_words(found: Any, source: int, target: int) -> Any:
    """Leave out what stands in `Followed` or `AttentionMaps` for so many tokens of languages."""
    if not source + target:
        return found
    if isinstance(found, Followed):
        weights = None if found.weights is None else found.weights[:, target:, source:]
        log_probs, tokens, target_log_probs = (x[:, target:] for x in found[:3])
        return Followed(log_probs, tokens, target_log_probs, weights)
    cross, own, past, layer = found
    return AttentionMaps(
        None if cross is None else cross[..., target:, source:],
        None if own is None else own[..., source:, source:],
        None if past is None else np.delete(past, range(1, 1 + target), axis=-1)[..., target:, :],  # 0 is <bos>
        layer,
    )


def split_languages(translator: Translator, text: str) -> tuple[str, str]:
    """Return how a text begins that names its languages, for a model of several, and the rest of it."""
    found = LANGUAGES.match(text) if translator.target.languages else None
    return (found[0], text[found.end() :]) if found else ("", text)


def _pad_rows(sentences: Sequence[Sequence[Any]], rows: int) -> list[Sequence[Any]]:
    """Add empty rows up to a program's number of rows."""
    return [*sentences, *[()] * (rows - len(sentences))]


def rows_for(batch_size: int) -> int:
    """Return the rows of a program that searches so many sentences together: a multiple of `ROWS`."""
    return -(-batch_size // ROWS) * ROWS


def widths(longest: int) -> tuple[int, ...]:
    """Return the widths that sources are padded to: the longest one and its halvings, of at least 16.

    widths(63) = (16, 32, 63)
    """
    found = [longest]
    while found[0] // 2 >= 15:
        found.insert(0, -(-found[0] // 2))
    return tuple(found)


def configure(run: SavedRun, changes: Mapping[str, Any], option_name: Callable[[str], str] = str) -> SearchConfig:
    """Return the run's own search with some options changed. Errors name an option as `option_name` does.

    Raises:
        ConfigError: options do not exist, or cannot be used with this run.
    """
    known = [field.name for field in dataclasses.fields(SearchConfig)]
    unknown = sorted(set(changes) - set(known))
    if unknown:
        raise ConfigError(f"a search has no option {', '.join(unknown)}; it has {', '.join(known)}")
    config = dataclasses.replace(run.config.search, **changes)
    check_search(config, run.model, len(run.target), run.max_source_len, run.max_target_len, option_name)
    return config


def load_model(run: SavedRun) -> tuple[EncoderDecoder, Any]:
    """Return a run's model and its parameters.

    Raises:
        ConfigError: the parameters do not fit the model.
    """
    token = np.zeros((1, 1), np.int32)
    try:
        model = build_model(run.model, len(run.source), len(run.target))
        like = jax.eval_shape(lambda token: model.init(jax.random.key(0), token, token), token)
        return model, from_torch(run.weights, like)
    except ConfigError:  # the weights are damaged
        raise
    except (KeyError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{run.folder} holds no run that can be loaded: model.safetensors does not fit config.json or the "
            f"vocabularies: {error.args[0]}"
        ) from error
