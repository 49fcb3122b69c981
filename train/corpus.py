"""Where sentence pairs come from: the embedded grammar, or a tab-separated file."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from train.embedded import grammar
from train.tokens import Tokenizer, tokenize


class CorpusError(ValueError):
    """A corpus that cannot be used; the message says what was found and what to do."""


@dataclass(frozen=True)
class Alignment:
    """Gold links (source position, target position) between the words of a pair."""

    sure: frozenset[tuple[int, int]]
    possible: frozenset[tuple[int, int]]
    """Further links that are not wrong; sure ones need not be repeated."""


@dataclass(frozen=True)
class Pair:
    """A sentence and its translation as words. Training never sees the alignment."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    alignment: Alignment | None = None


@dataclass(frozen=True)
class Corpus:
    """Pairs for training, validation and test, which share no sentence on either side."""

    train: tuple[Pair, ...]
    valid: tuple[Pair, ...]
    test: tuple[Pair, ...]
    report: dict[str, int] = field(default_factory=dict)
    """What was counted while reading: how many lines of which kind, and how many were used."""


def embedded(seed: int, num_train: int, num_valid: int, num_test: int) -> Corpus:
    """The corpus that comes with the program, see `train.embedded`."""
    train, valid, test = (
        tuple(Pair(p.source, p.target, Alignment(frozenset(p.sure), frozenset(p.possible))) for p in split)
        for split in grammar.generate(seed, (num_train, num_valid, num_test))
    )
    return Corpus(train, valid, test)


def read(
    path: Path, tokenizer: Tokenizer, max_words: int, num_train: int | None, num_valid: int, num_test: int
) -> Corpus:
    """Pairs of a file with one `source<TAB>target` a line, as at https://www.manythings.org/anki/.

    The first `num_train` pairs are for training (None: all but the rest). Validation and test are the next ones that
    share no sentence with training nor with each other, on either side; with None they come from the end of the file.
    Every line that is passed over is counted in the report, by the reason.

    Raises:
        CorpusError: no such file, a file that is no text, or too few pairs in it.
    """
    report: Counter[str] = Counter()
    pairs = []
    for source, target in _lines(path, report):
        pair = Pair(tuple(tokenize(source, tokenizer)), tuple(tokenize(target, tokenizer)))
        if max(len(pair.source), len(pair.target)) > max_words:
            report[f"longer than {max_words} words"] += 1
        else:
            pairs.append(pair)
    if not pairs:
        found = ", ".join(f"{count} {reason}" for reason, count in report.items()) or "it is empty"
        raise CorpusError(f"no pair in {path} ({found}); each line must be: source, a tab, target")
    return _split(pairs, num_train, num_valid, num_test, report)


def _lines(path: Path, report: Counter[str]) -> Iterator[tuple[str, str]]:
    """The pairs of a file's lines; what is wrong with the others is counted."""
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
    lines = data.split(b"\n")
    cut_short = lines.pop() if lines[-1] else lines.pop() or None
    if cut_short:
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


def _split(pairs: list[Pair], num_train: int | None, num_valid: int, num_test: int, report: Counter[str]) -> Corpus:
    """Training first, then held-out pairs that share no sentence with what was taken before."""
    held_out = num_valid + num_test
    if num_train is None:
        num_train = len(pairs) - held_out
    if num_train < 1:
        raise CorpusError(f"{len(pairs)} pairs are too few to keep {held_out} of them for validation and test")
    train, rest = pairs[:num_train], pairs[num_train:]
    valid, rest = _hold_out(rest, num_valid, train, report)
    test, rest = _hold_out(rest, num_test, train + valid, report)
    used = {"pairs for training": len(train), "for validation": len(valid), "for test": len(test)}
    return Corpus(tuple(train), tuple(valid), tuple(test), dict(report) | used)


def _hold_out(
    candidates: list[Pair], size: int, known: list[Pair], report: Counter[str]
) -> tuple[list[Pair], list[Pair]]:
    """The first `size` candidates with no sentence in common with the known pairs, and the candidates after them."""
    sources, targets = {pair.source for pair in known}, {pair.target for pair in known}
    chosen: list[Pair] = []
    for i, pair in enumerate(candidates):
        if len(chosen) == size:
            return chosen, candidates[i:]
        if pair.source in sources or pair.target in targets:
            report["held-out pairs passed over, a sentence of theirs being known"] += 1
        else:
            chosen.append(pair)
    return chosen, []
