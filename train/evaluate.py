"""Test a trained model: scores on the test set, and a few translations."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jax_attn.plots import save, show_alignments
from train.config import Config
from train.data.corpus import Pair
from train.data.dataset import Data
from train.data.tokens import detokenize
from train.learner import Learner
from train.run_folder import RunFolder
from train.translation.metrics import Link, alignment_error_rate, diagonal, peaks, score_texts
from train.translation.translator import Translation, Translator

Results = dict[str, Any]


def evaluate(learner: Learner, config: Config, data: Data, folder: RunFolder) -> Results:
    """Return the scores and a few translations for `summary.json`, draw `attention.png`, and write `test.jsonl`.

    A line of `test.jsonl` holds a test sentence, its translation, the links (source position, target position) that
    attention finds while the decoder reads the reference, and the gold links.
    """
    translator = Translator(
        learner.search,
        data.source,
        data.target,
        config.corpus.tokenizer,
        data.max_source_words,
        config.search.batch_size,
    )
    pairs = data.corpus.test
    translated = translator.translate_words([pair.source for pair in pairs])
    links = _links(learner, data)
    folder.save_test(_test_lines(translated, pairs, links))
    results = _text_results(translated, pairs) | _alignment_results(links, pairs)
    if config.search.examples:
        shown = translator(config.search.examples)
        references = _known_translations(shown, data)
    else:
        shown = translated[:8]
        references = [[detokenize(list(pair.target))] for pair in pairs[:8]]
    results["translations"] = [
        {"source": detokenize(list(t.source)), "translation": t.text, "references": known}
        for t, known in zip(shown, references, strict=True)
    ]
    _draw(shown if config.search.examples else translated, folder)
    return results


def _text_results(translated: Sequence[Translation], pairs: Sequence[Pair]) -> Results:
    if not pairs:
        return {"bleu": None, "chrf": None, "test_pairs": 0}
    scores = score_texts([t.text for t in translated], [detokenize(list(pair.target)) for pair in pairs])
    exact = sum(t.target == pair.target for t, pair in zip(translated, pairs, strict=True))
    return {**scores._asdict(), "exact": exact / len(pairs), "test_pairs": len(pairs)}


def _links(learner: Learner, data: Data) -> Sequence[set[Link]] | None:
    """Find the attention's links in each test pair while the decoder reads the reference; None without attention."""
    pairs = data.corpus.test
    weights = learner.force_decode(data.test) if pairs else None
    if weights is None:
        return None
    return [peaks(matrix, len(pair.source), len(pair.target)) for matrix, pair in zip(weights, pairs, strict=True)]


def _alignment_results(links: Sequence[set[Link]] | None, pairs: Sequence[Pair]) -> Results:
    """Compare links and diagonal with the gold alignment, if the test set has one."""
    gold = [pair.alignment for pair in pairs if pair.alignment is not None]
    if not gold or len(gold) < len(pairs):
        return {"alignment_error_rate": None}
    on_diagonal = [diagonal(len(pair.source), len(pair.target)) for pair in pairs]
    return {
        "alignment_error_rate": None if links is None else alignment_error_rate(links, gold),
        "alignment_error_rate_of_diagonal": alignment_error_rate(on_diagonal, gold),
    }


def _test_lines(
    translated: Sequence[Translation], pairs: Sequence[Pair], links: Sequence[set[Link]] | None
) -> Iterator[Results]:
    """Yield the lines of `test.jsonl`, without the links that are not known."""
    for i, (translation, pair) in enumerate(zip(translated, pairs, strict=True)):
        record: Results = {"source": pair.source, "reference": pair.target, "translation": translation.target}
        if links is not None:
            record["links"] = sorted(links[i])
        if pair.alignment is not None:
            record |= {"sure": sorted(pair.alignment.sure), "possible": sorted(pair.alignment.possible)}
        yield record


def _known_translations(shown: Sequence[Translation], data: Data) -> list[list[str]]:
    """Look up each source in the training pairs, which have one, several or no translations of it."""
    return [
        list(dict.fromkeys(detokenize(list(p.target)) for p in data.corpus.train if p.source == t.source))
        for t in shown
    ]


def _draw(translations: Sequence[Translation], folder: RunFolder) -> None:
    """Draw the attention of the four translations that reorder their source most; nothing without attention."""
    examples = [
        ((*t.source, "<eos>"), t.best.tokens, t.weights)
        for t in sorted(translations, key=_steps_back, reverse=True)[:4]
        if t.weights is not None
    ]
    if examples:
        save(show_alignments(examples), folder.path / "attention.png")


def _steps_back(translation: Translation) -> int:
    """Count how often the attention's peak moves back to an earlier source word."""
    if translation.weights is None:
        return 0
    return int((np.diff(translation.weights[:-1].argmax(axis=-1)) < 0).sum())
