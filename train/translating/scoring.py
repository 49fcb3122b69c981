"""Evaluate a translator: scores of a test set, the attention's links, and a few translations to look at."""

import heapq
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from jax_attn.models import EncoderDecoder
from jax_attn.plots import save, show_alignments
from train.config import SearchConfig
from train.data.corpus import Pair
from train.data.dataset import Data
from train.data.tokens import detokenize
from train.data.vocabulary import EOS, Vocabulary
from train.machine.processes import gather_list, own_part
from train.runs.run_folder import RunFolder, SavedRun
from train.setting import ConfigError
from train.translating.metrics import Link, TextScores, alignment_error_rate, diagonal, peaks, score_texts
from train.translating.search import make_search
from train.translating.translation import Translation, by_words
from train.translating.translator import Translator, rows_for

Results = dict[str, Any]

MAX_PAIRS = 10_000
"""Pairs that are scored, at most: the scores of as many take one to two gigabytes. Of more, every n-th is taken."""

CHUNK = 1000
"""Pairs whose attention weights are in memory at a time."""

NUM_SHOWN, NUM_PICTURED = 8, 4

EASY_TO_READ = 15
"""Source words of a sentence that is pictured, if there are enough such sentences."""


@dataclass(frozen=True)
class Evaluation:
    """The translations of a test set, and what the model says of the references."""

    pairs: Sequence[Pair]
    texts: list[str]
    words: list[tuple[str, ...]]
    """The words of each translation."""
    references: list[str]
    lower_case: bool
    """Whether the translations have lost their case."""
    nats: float
    """Cross entropy of the references, summed over their tokens."""
    tokens: int
    links: list[set[Link]] | None
    """The links (source word, target word) that attention finds while the reference is read; None without attention."""
    shown: list[Translation]
    """The first translations."""
    pictured: list[Translation]
    """The short translations whose attention moves back most often."""

    @property
    def nats_per_token(self) -> float:
        return self.nats / max(self.tokens, 1)

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nats_per_token, 700.0))

    def scores(self) -> TextScores:
        """Return BLEU and chrF against the references as they are; without case if the translations have none."""
        return score_texts(self.texts, self.references, self.lower_case)


class Reading(NamedTuple):
    """What the model says of a reference; a pair with an empty source keeps the defaults."""

    nats: float = 0.0
    tokens: int = 0
    links: Sequence[Link] | None = ()
    """The links of its words, sorted; None without attention."""


def evaluate(translator: Translator, pairs: Sequence[Pair]) -> Evaluation:
    """Translate the sources, and read the references. Memory is bounded: see `MAX_PAIRS` and `CHUNK`.

    A source that is too long is shortened with a warning, also for an imported model: it shall not end a training.
    Several processes share the pairs. What is shown and pictured is of the process's own.

    Raises:
        ConfigError: a reference is longer than the model can read.
    """
    if translator.longest is not None:
        needed = max((len(translator.target.encode(pair.target)) + 1 for pair in pairs), default=0)
        if needed > translator.longest:
            raise ConfigError(
                f"a reference has {needed} tokens, <eos> included, and the model has learnt {translator.longest} "
                "positions (model.max-len); leave it out, or train with more"
            )
    if (step := scored_step(pairs)) > 1:
        warnings.warn(f"only one in {step} of the {len(pairs)} pairs is scored, for want of memory", stacklevel=2)
    pairs = pairs[::step]
    shown: list[Translation] = []
    pictured: list[tuple[tuple[bool, int], int, Translation]] = []
    texts, words, readings = list[str](), list[tuple[str, ...]](), list[Reading]()
    own = own_part(len(pairs))
    translator = replace(translator, shortens=True)
    for start in range(own.start, own.stop, CHUNK):
        chunk = pairs[start : min(start + CHUNK, own.stop)]
        translated = translator([pair.source for pair in chunk], start + 1)
        texts += [t.text for t in translated]
        words += [t.target for t in translated]
        readings += _read_references(translator, chunk)
        shown += translated[: NUM_SHOWN - len(shown)]
        moving = [
            ((len(t.source) <= EASY_TO_READ, _steps_back(t.weights)), -start - i, t)
            for i, t in enumerate(translated)
            if t.weights is not None
        ]
        pictured = heapq.nlargest(NUM_PICTURED, [*pictured, *moving])
    readings = [Reading(**found) for found in gather_list([reading._asdict() for reading in readings])]
    links = [{(i, j) for i, j in reading.links} for reading in readings if reading.links is not None]
    return Evaluation(
        pairs=pairs,
        texts=gather_list(texts),
        words=[tuple(found) for found in gather_list(words)],
        references=[as_reference(pair, translator.target) for pair in pairs],
        lower_case=translator.target.lower_case,
        nats=sum(reading.nats for reading in readings),
        tokens=sum(reading.tokens for reading in readings),
        links=links if links and len(links) == len(pairs) else None,
        shown=shown,
        pictured=[t for _, _, t in pictured],
    )


def scored_step(pairs: Sequence[Pair]) -> int:
    """Return n where one in n pairs is scored, so that there are at most `MAX_PAIRS`."""
    return max(1, -(-len(pairs) // MAX_PAIRS))


def as_reference(pair: Pair, vocabulary: Vocabulary) -> str:
    """Return the text that a translation is scored against: the target as it is.

    A pair with a gold alignment holds words joined by spaces. The words tokenizer joins them to text.
    """
    if pair.alignment is not None and vocabulary.lower_case:
        return detokenize(pair.target.split())
    return pair.target


def _read_references(translator: Translator, pairs: Sequence[Pair]) -> list[Reading]:
    """Let the model read the reference of each pair."""
    targets = [[*translator.target.encode(pair.target), EOS] for pair in pairs]
    found = [Reading()] * len(pairs)
    sources = [pair.source for pair in pairs]
    for batch, followed in translator.read_targets(list(zip(sources, targets, strict=True))):
        for row, i in enumerate(batch):
            length = len(targets[i])
            log_probs = followed.target_log_probs[row, :length]
            counted = log_probs[~np.isneginf(log_probs)]  # without tokens that the model may not produce
            nats = -float(np.sum(counted, dtype=np.float64))
            linked = None
            if followed.weights is not None:
                source, spans = translator.read(sources[i]), translator.target.words(targets[i])
                matrix = by_words(followed.weights[row, :length], spans, source.spans)
                linked = sorted(peaks(matrix, len(source.names), len(spans) - 1))
            found[i] = Reading(nats, len(counted), linked)
    return found


def alignment_results(evaluation: Evaluation) -> Results:
    """Compare links and diagonal with the gold alignments, if every pair has one."""
    gold = [pair.alignment for pair in evaluation.pairs if pair.alignment is not None]
    if not gold or len(gold) < len(evaluation.pairs):
        return {"alignment_error_rate": None}
    sizes = [(len(pair.source.split()), len(pair.target.split())) for pair in evaluation.pairs]
    return {
        "alignment_error_rate": None if evaluation.links is None else alignment_error_rate(evaluation.links, gold),
        "alignment_error_rate_of_diagonal": alignment_error_rate([diagonal(*size) for size in sizes], gold),
    }


def test_run(run: SavedRun, test: Sequence[Pair], train: Iterable[Pair], folder: RunFolder) -> Results:
    """Translate the test pairs with a trained model. Return scores and translations for `summary.json`.

    It also writes `test.jsonl` and `attention.png`. A picture that cannot be written is a warning. A line of
    `test.jsonl` holds a test sentence, its translation, the links (source position, target position) that attention
    finds while the decoder reads the reference, and the gold links.

    Args:
        train: the training pairs, where the references of the examples in its search are looked up.
    """
    examples = run.config.search.examples
    translator = Translator.from_runs([run], run.config.search)
    evaluation = evaluate(translator, test)
    folder.save_test(_test_lines(translator, evaluation))
    results: Results = {"bleu": None, "chrf": None, "test_pairs": len(evaluation.pairs)}
    if evaluation.pairs:
        same = [text == reference for text, reference in zip(evaluation.texts, evaluation.references, strict=True)]
        results |= evaluation.scores()._asdict() | {"exact": sum(same) / len(same)}
        results |= {"test_nats_per_token": evaluation.nats_per_token}
    results |= alignment_results(evaluation)
    if examples:
        shown = translator(examples)
        references = known_translations(shown, train, translator)
    else:
        shown, references = evaluation.shown, [[reference] for reference in evaluation.references]
    results["translations"] = [
        {"source": translator.source.join(t.source), "translation": t.text, "references": known}
        for t, known in zip(shown, references, strict=False)
    ]
    write_heatmaps(shown[:NUM_PICTURED] if examples else evaluation.pictured, folder)
    return results


def _test_lines(translator: Translator, evaluation: Evaluation) -> Iterator[Results]:
    """Yield the lines of `test.jsonl`, without the links that are not known."""
    for i, pair in enumerate(evaluation.pairs):
        record: Results = {
            "source": words_of(translator.source, pair.source),
            "reference": words_of(translator.target, pair.target),
            "translation": evaluation.words[i],
        }
        if evaluation.links is not None:
            record["links"] = sorted(evaluation.links[i])
        if pair.alignment is not None:
            record |= {"sure": sorted(pair.alignment.sure), "possible": sorted(pair.alignment.possible)}
        yield record


def words_of(vocabulary: Vocabulary, text: str) -> list[str]:
    """Cut text into the words that a vocabulary speaks of."""
    tokens, spans = vocabulary.cut(text), vocabulary.words(vocabulary.encode(text))
    return [vocabulary.word(tokens[span.start : span.stop]) for span in spans]


def known_translations(shown: Sequence[Translation], train: Iterable[Pair], translator: Translator) -> list[list[str]]:
    """Look up each source in the training pairs, which have one, several or no translations of it."""
    known: dict[tuple[str, ...], list[str]] = {tuple(t.source): [] for t in shown}
    for pair in train:
        found = known.get(tuple(words_of(translator.source, pair.source)))
        if found is not None:
            text = translator.target.join(words_of(translator.target, pair.target))
            if text not in found:
                found.append(text)
    return [known[tuple(t.source)] for t in shown]


def write_heatmaps(translations: Sequence[Translation], folder: RunFolder) -> None:
    """Write the attention of translations into `attention.png`; nothing without attention."""
    examples = [((*t.source, "<eos>"), t.best.tokens, t.weights) for t in translations if t.weights is not None]
    if not examples or not folder.writes:
        return
    try:
        save(show_alignments(examples), folder.path / "attention.png")
    except (OSError, ValueError, RuntimeError) as error:
        warnings.warn(f"attention.png is not written: {error}", stacklevel=2)


def _steps_back(weights: Float[np.ndarray, "word source"]) -> int:
    """Count how often the attention's peak moves back to an earlier source word."""
    return int((np.diff(weights[:-1].argmax(axis=-1)) < 0).sum())


def make_validation(
    model: EncoderDecoder, data: Data, batch_size: int = 100, *, source_end: bool = True
) -> Callable[[Any], TextScores]:
    """Make a function from parameters to BLEU and chrF of the validation pairs by greedy search.

    It is compiled at the first call, once for each width, and other parameters do not compile it again. Several
    processes share the pairs if each has all parameters; all call it.
    """
    pairs, source, target = data.corpus.valid, data.source, data.target
    search = make_search((model,), SearchConfig(batch_size=batch_size), data.max_target_len)
    texts, references = [pair.source for pair in pairs], [as_reference(pair, target) for pair in pairs]

    def validate(params: Any) -> TextScores:
        shared = all(x.is_fully_replicated for x in jax.tree.leaves(params))
        if shared:
            params = jax.tree.map(lambda x: x.addressable_data(0), params)
        own = own_part(len(texts)) if shared else slice(None)
        run, rows = partial(search, [params]), rows_for(batch_size)
        translator = Translator(run, source, target, data.max_source_len, rows, source_end=source_end)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # sentences that are shortened
            found = [t.text for t in translator(texts[own])]
        translations = gather_list(found) if shared else found
        return score_texts(translations, references, target.lower_case)

    return validate
