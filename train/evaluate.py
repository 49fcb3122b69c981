"""A trained model put to the test: on sentences it never saw, and on the ones it was asked for."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_attn.plots import save, show_alignments
from train.checkpoint import RunFolder
from train.config import Config
from train.corpus import Pair
from train.data import Data
from train.learner import Learner
from train.metrics import alignment_error_rate, diagonal, peaks, score_texts
from train.tokens import detokenize
from train.translator import Translation, Translator

Results = dict[str, Any]


def evaluate(learner: Learner, config: Config, data: Data, folder: RunFolder) -> Results:
    """Scores of the test set and a few translations, as `summary.json` gives them; draws `attention.png`."""
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
    results = _text_results(translated, pairs) | _alignment_results(learner, data)
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


def _alignment_results(learner: Learner, data: Data) -> Results:
    """Alignment error on the test set where its gold alignment is known, beside that of the diagonal."""
    pairs = data.corpus.test
    gold = [pair.alignment for pair in pairs if pair.alignment is not None]
    if not gold or len(gold) < len(pairs):
        return {"alignment_error_rate": None}
    sizes = [(len(pair.source), len(pair.target)) for pair in pairs]
    results: Results = {"alignment_error_rate": None}
    weights = learner.force_decode(data.test)
    if weights is not None:
        predicted = [peaks(matrix, *size) for matrix, size in zip(weights, sizes, strict=True)]
        results["alignment_error_rate"] = alignment_error_rate(predicted, gold)
    results["alignment_error_rate_of_diagonal"] = alignment_error_rate([diagonal(*size) for size in sizes], gold)
    return results


def _known_translations(shown: Sequence[Translation], data: Data) -> list[list[str]]:
    """What the training pairs give for each source: one, several, or none."""
    return [
        list(dict.fromkeys(detokenize(list(p.target)) for p in data.corpus.train if p.source == t.source))
        for t in shown
    ]


def _draw(translations: Sequence[Translation], folder: RunFolder) -> None:
    """What the four translations that reorder their source most attended to; nothing without attention."""
    examples = [
        ((*t.source, "<eos>"), t.best.tokens, t.weights)
        for t in sorted(translations, key=_steps_back, reverse=True)[:4]
        if t.weights is not None
    ]
    if examples:
        save(show_alignments(examples), folder.path / "attention.png")


def _steps_back(translation: Translation) -> int:
    """How often attention's peak moves to an earlier word from one target word to the next."""
    if translation.weights is None:
        return 0
    return int((np.diff(translation.weights[:-1].argmax(axis=-1)) < 0).sum())
