"""The pairs of a run: the embedded ones, or those of the files that the configuration names."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from jaxtyping import Int

from train.config import Config, CorpusConfig
from train.data.corpus import Corpus, CorpusError, Pair
from train.data.download import NamedCorpus, fetch, is_name
from train.data.embedded import embedded_pairs
from train.data.pair_files import PairFiles, find_files, read_pairs
from train.data.splits import Hashes, Parts, hash_pairs, split_by_hash, split_in_order
from train.progress import show_progress

BLOCK = 65_536
"""Pairs whose places in a file are looked at together."""

EMBEDDED_SIZES = (20_000, 500, 500)
"""Pairs of the embedded corpus for training, validation and test, if the configuration gives no number."""


def load_corpus(config: Config) -> Corpus:
    """Return the pairs for training, validation and test.

    Raises:
        CorpusError: a file cannot be used, or has too few pairs.
    """
    if not config.data:
        return _embedded_corpus(config.corpus)
    given = _given_files(config)
    report: Counter[str] = Counter()
    pairs = show_progress(read_pairs(given.train, report), f"reading {given.train.paths[0].name}")
    sources, targets = hash_pairs(pairs)
    held_out = {
        name: None if files is None else read_whole(files, report)
        for name, files in (("valid", given.valid), ("test", given.test))
    }
    parts = _split(sources, targets, config.corpus, held_out, report)
    drawn = _read_chosen(given.train, np.concatenate([parts.valid, parts.test]))
    valid, test = (
        tuple(drawn[i] for i in chosen.tolist()) if read is None else read
        for chosen, read in zip((parts.valid, parts.test), held_out.values(), strict=True)
    )
    if held_out["valid"] is not None or held_out["test"] is not None:
        _count_leaks({"training": (sources[parts.train], targets[parts.train])}, valid, test, report)
    used = {"pairs for training": len(parts.train), "for validation": len(valid), "for test": len(test)}
    return Corpus(TrainingPairs(given.train, parts.train), valid, test, {k: n for k, n in report.items() if n} | used)


def _embedded_corpus(config: CorpusConfig) -> Corpus:
    """Take the first pairs of the embedded corpus for training, the next ones for validation, then for test."""
    pairs = embedded_pairs()
    given = (config.train, config.valid, config.test)
    train, valid, test = (
        size if size is not None else usual for size, usual in zip(given, EMBEDDED_SIZES, strict=True)
    )
    if train + valid + test > len(pairs):
        raise CorpusError(
            f"the embedded corpus has {len(pairs)} pairs, too few for {train} for training, {valid} for validation and "
            f"{test} for test; ask for fewer with --corpus.train, --corpus.valid or --corpus.test"
        )
    return Corpus(pairs[:train], pairs[train : train + valid], pairs[train + valid : train + valid + test])


def find_corpus(names: tuple[str, ...], languages: tuple[str, ...], mirror: str | None, option: str) -> NamedCorpus:
    """Return the files that an option names: those of a public corpus, or files of the user as the part `train`.

    Raises:
        CorpusError: there are no such files, or a public corpus cannot be fetched.
    """
    if len(names) == 1 and is_name(names[0]):
        return fetch(names[0], mirror)
    return NamedCorpus(find_files(names, languages, option))


def _given_files(config: Config) -> NamedCorpus:
    """Return the files of --data, --valid and --test; a public corpus may have all three."""
    files = find_corpus(config.data, config.languages, config.mirror, "--data")
    for name in ("valid", "test"):
        if names := getattr(config, name):
            given = find_corpus(names, config.languages, config.mirror, f"--{name}")
            files = files._replace(**{name: getattr(given, name) or given.train})
        part = getattr(files, name)
        if part is not None and getattr(config.corpus, name) is not None:
            raise CorpusError(
                f"--corpus.{name} is a number of pairs held out of --data; leave it out where {part} is given"
            )
    return files


def read_whole(files: PairFiles, report: Counter[str]) -> tuple[Pair, ...]:
    """Read a file for validation or test; add what is wrong with it to the report."""
    found: Counter[str] = Counter()
    pairs = tuple(read_pairs(files, found))
    for reason, count in found.items():
        if reason != "pairs read":
            report[f"{reason} ({files})"] += count
    return pairs


def _split(
    sources: Hashes,
    targets: Hashes,
    config: CorpusConfig,
    held_out: dict[str, tuple[Pair, ...] | None],
    report: Counter[str],
) -> Parts:
    valid, test = (getattr(config, name) if pairs is None else 0 for name, pairs in held_out.items())
    if config.split == "hash":
        return split_by_hash(sources, targets, config.train, valid, test, report)
    if config.train is None:
        raise CorpusError("--corpus.split first needs --corpus.train, the number of pairs for training")
    return split_in_order(sources, targets, config.train, valid, test, report)


def _count_leaks(
    known: dict[str, tuple[Hashes, Hashes]], valid: tuple[Pair, ...], test: tuple[Pair, ...], report: Counter[str]
) -> None:
    """Count the sentences of validation and test that are in training, and those of test that are in validation."""
    for name, pairs in (("validation", valid), ("test", test)):
        hashes = hash_pairs(pairs)
        for other, parts in known.items():
            for side, own, others in zip(("source", "target"), hashes, parts, strict=True):
                leaks = int(np.isin(own, others).sum())
                report[f"{side} sentences of {name} found in {other} too"] += leaks
        known = known | {name: hashes}


@dataclass(frozen=True)
class TrainingPairs:
    """The pairs of a file that are for training, read from the file at each pass."""

    files: PairFiles
    indices: Int[np.ndarray, "pair"]
    """Ascending indices into the pairs of the file."""

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Pair]:
        return show_progress(_choose(self.files, self.indices), "reading the training pairs", len(self.indices))


def _choose(files: PairFiles, indices: Int[np.ndarray, "pair"]) -> Iterator[Pair]:
    """Yield the pairs of ascending indices; CorpusError if the file has become shorter."""
    pairs = read_pairs(files, Counter())
    previous = -1
    for start in range(0, len(indices), BLOCK):  # Python's integers are large
        for index in indices[start : start + BLOCK].tolist():
            step = index - previous - 1
            pair = next(pairs if not step else islice(pairs, step, None), None)
            if pair is None:
                raise CorpusError(f"{files} changed while it was read; start again")
            yield pair
            previous = index


def _read_chosen(files: PairFiles, indices: Int[np.ndarray, "pair"]) -> dict[int, Pair]:
    ordered = np.sort(indices)
    return dict(zip(ordered.tolist(), _choose(files, ordered), strict=True))
