"""Sentence pairs from the embedded grammar or from a tab-separated file."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from train.config import CorpusConfig
from train.data.embedded import grammar
from train.data.tokens import clean, tokenize

DEFAULT_TRAIN = 20_000
"""Pairs of the embedded corpus for training, if the configuration gives no number."""


class CorpusError(ValueError):
    """A corpus that cannot be used; the message says what was found and what to do."""


@dataclass(frozen=True)
class Alignment:
    """Gold links (source position, target position) between the words of a pair."""

    sure: frozenset[tuple[int, int]]
    possible: frozenset[tuple[int, int]]
    """Further links that are not wrong; the sure ones need not be repeated."""


@dataclass(frozen=True)
class Pair:
    """A sentence and its translation as text. The alignment serves the evaluation only.

    A pair with an alignment holds its words joined by spaces.
    """

    source: str
    target: str
    alignment: Alignment | None = None


@dataclass(frozen=True)
class Corpus:
    """Pairs for training, validation and test, with no sentence in common on either side."""

    train: tuple[Pair, ...]
    valid: tuple[Pair, ...]
    test: tuple[Pair, ...]
    report: dict[str, int] = field(default_factory=dict)
    """Counts of the lines that were used and, by reason, of those that were not."""


def embedded(config: CorpusConfig) -> Corpus:
    """Generate the corpus of `train.data.embedded`."""
    sizes = (DEFAULT_TRAIN if config.train is None else config.train, config.valid, config.test)
    train, valid, test = (
        tuple(
            Pair(" ".join(p.source), " ".join(p.target), Alignment(frozenset(p.sure), frozenset(p.possible)))
            for p in split
        )
        for split in grammar.generate(config.seed, sizes)
    )
    return Corpus(train, valid, test)


def read(path: Path, config: CorpusConfig) -> Corpus:
    """Read a file with one `source<TAB>target` a line, as at https://www.manythings.org/anki/.

    If `config.train` is a number, the first pairs are for training. Validation and test are the next pairs that share
    no sentence with those before, on either side. Otherwise validation and test are drawn from the whole file, and all
    other pairs that share no sentence with them are for training. The report counts every line and pair that is not
    used, by the reason.

    Raises:
        CorpusError: there is no such file, it is no text, or it has too few pairs.
    """
    report: Counter[str] = Counter()
    pairs = []
    for source, target in _lines(path, report):
        pair = Pair(clean(source), clean(target))
        if max(len(tokenize(text, config.tokenizer)) for text in (pair.source, pair.target)) > config.max_words:
            report[f"pairs longer than {config.max_words} words"] += 1
        else:
            pairs.append(pair)
    if not pairs:
        found = ", ".join(f"{count} {reason}" for reason, count in report.items()) or "it is empty"
        raise CorpusError(f"no pair in {path} ({found}); each line must be: source, a tab, target")
    return _split(pairs, config, report)


def _lines(path: Path, report: Counter[str]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a file's lines, and count the other lines by what is wrong with them."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise CorpusError(f"there is no file {path}; --data takes a file with one source<TAB>target a line") from None
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror}") from error
    if b"\0" in data:
        raise CorpusError(f"{path} is no text: it holds NUL bytes (compressed, or UTF-16? it must be plain UTF-8)")
    if data.startswith(b"\xef\xbb\xbf"):
        report["byte order mark, ignored"] += 1
        data = data[3:]
    if b"\n" not in data and b"\r" in data:
        raise CorpusError(f"{path} ends its lines with CR alone, as old Macs did; convert it to LF")
    lines = data.split(b"\n")
    if lines.pop():
        report["last line without an end, perhaps cut short, not used"] += 1
    for raw in lines:
        if raw.endswith(b"\r"):
            report["Windows line ends, ignored"] += 1
            raw = raw[:-1]
        try:
            columns = raw.decode("utf-8").split("\t")
        except UnicodeDecodeError:
            report["lines of invalid UTF-8"] += 1
            continue
        if columns == [""]:
            report["empty lines"] += 1
        elif len(columns) < 2:
            report["lines without a tab"] += 1
        elif not columns[0].strip() or not columns[1].strip():
            report["lines with an empty side"] += 1
        else:
            if len(columns) > 2:
                report["lines with more than two columns, the first two used"] += 1
            report["pairs read"] += 1
            yield columns[0], columns[1]


def _split(pairs: list[Pair], config: CorpusConfig, report: Counter[str]) -> Corpus:
    """Divide pairs into training, validation and test; CorpusError if one of them has too few."""
    if config.train is None:
        train, valid, test = _draw(pairs, config, report)
    else:
        train, rest = pairs[: config.train], pairs[config.train :]
        valid, rest = _hold_out(rest, config.valid, train, report)
        test, rest = _hold_out(rest, config.test, train + valid, report)
    if not train or len(valid) < config.valid or len(test) < config.test:
        raise CorpusError(
            f"{len(pairs)} pairs are too few: they give {len(train)} for training, {len(valid)} of {config.valid} for "
            f"validation and {len(test)} of {config.test} for test; ask for fewer with --corpus.train, "
            "--corpus.valid or --corpus.test"
        )
    used = {"pairs for training": len(train), "for validation": len(valid), "for test": len(test)}
    return Corpus(tuple(train), tuple(valid), tuple(test), dict(report) | used)


def _draw(pairs: list[Pair], config: CorpusConfig, report: Counter[str]) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Draw validation and test from the whole file, which may be sorted; training keeps the file's order."""
    rng = Random(config.seed)
    order = sorted(range(len(pairs)), key=lambda _: rng.random())
    shuffled = [pairs[i] for i in order]
    valid, rest = _hold_out(shuffled, config.valid, [], report)
    test, _ = _hold_out(rest, config.test, valid, report)
    sources, targets = _sentences(valid + test)
    train = [pair for pair in pairs if pair.source not in sources and pair.target not in targets]
    left_out = len(pairs) - len(train) - len(valid) - len(test)
    if left_out > 0:
        report["pairs left out of training, a sentence of theirs being held out"] = left_out
    return train, valid, test


def _hold_out(
    candidates: list[Pair], size: int, known: list[Pair], report: Counter[str]
) -> tuple[list[Pair], list[Pair]]:
    """Take the first `size` candidates that share no sentence with the known pairs; also return the ones after them."""
    sources, targets = _sentences(known)
    chosen: list[Pair] = []
    for i, pair in enumerate(candidates):
        if len(chosen) == size:
            return chosen, candidates[i:]
        if pair.source in sources or pair.target in targets:
            report["held-out pairs passed over, a sentence of theirs being known"] += 1
        else:
            chosen.append(pair)
    return chosen, []


def _sentences(pairs: list[Pair]) -> tuple[set[str], set[str]]:
    return {pair.source for pair in pairs}, {pair.target for pair in pairs}
