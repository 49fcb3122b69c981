"""The folder of a run: made once, never overwritten, and checked when it is read."""

import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from jax_attn.ranges import wrong_numbers
from jax_attn.settings import ModelConfig
from train.config import Config
from train.config_file import NO_SETTINGS, read_settings
from train.data.dataset import Data, Vocabularies
from train.data.vocabularies import FILES, in_languages, load_vocabularies, save_vocabularies
from train.data.vocabulary import Vocabulary
from train.machine.whole_files import DamageError, check, read_json, sha256, write_json, write_whole
from train.setting import ConfigError

FORMAT = 1
"""The version of the folder's layout: a change that a reader has to know of raises it."""

WEIGHTS, METRICS, MANIFEST = "model.safetensors", "metrics.jsonl", "manifest.json"
TEST, SUMMARY = "test.jsonl", "summary.json"
FILES_OF_RUN = ("config.json", WEIGHTS, METRICS, MANIFEST, TEST, SUMMARY)


@dataclass(frozen=True)
class SavedRun:
    """What a run folder holds to translate with, trained on this machine or another."""

    folder: Path
    config: Config
    source: Vocabulary
    target: Vocabulary
    max_source_len: int
    """The tokens of the longest source in training. The model reads no more of a sentence."""
    max_target_len: int
    """The tokens of the longest target in training, `<eos>` included."""
    weights: Mapping[str, np.ndarray]
    """The parameters under PyTorch's names, each read from the file when it is asked for."""

    @property
    def model(self) -> ModelConfig:
        return self.config.model

    def in_languages(self, source: str | None, target: str | None) -> "SavedRun":
        """Choose the languages of a model of several, where the run has not; ConfigError if it knows no such one."""
        source_side, target_side = in_languages((self.source, self.target), source, target)
        return dataclasses.replace(self, source=source_side, target=target_side)


class RunFolder:
    """The files of a run.

    config.json           the configuration, every setting of it
    source.json           the vocabularies, a word a line; source.model and target.model for subwords
    target.json
    manifest.json         the SHA-256 of config.json, the vocabularies, model.safetensors, test.jsonl and summary.json
    origin.json           of an imported run, where its model comes from: source, revision and licence
    metrics.jsonl         one line for each report
    tensorboard/          the same numbers for TensorBoard
    checkpoint/           the last states of the training, to go on from (Orbax)
    model.safetensors     the best parameters until now, under PyTorch's names
    learning_curve.png    the losses
    attention.png         the attention weights of a few translations
    test.jsonl            one line for each test sentence: its translation, and the links that attention found
    summary.json          the results

    Of several processes one writes. For the others `writes` is False, and nothing is changed.
    """

    def __init__(self, path: Path | str, writes: bool = True) -> None:
        self.path, self.writes = Path(path), writes

    @staticmethod
    def require_free(path: Path) -> None:
        """Raise ConfigError if the folder cannot be made. Nothing is made yet."""
        if set(str(path.absolute())) & set("*?[]"):  # Orbax takes them for a pattern
            raise ConfigError(f"the run folder's path must not hold any of * ? [ ]; got {path.absolute()}")
        try:
            taken = path.exists() or path.is_symlink()
            parent = next(folder for folder in path.absolute().parents if folder.exists() or folder.is_symlink())
            writable = parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)
        except OSError as error:
            raise ConfigError(f"the run folder {path} cannot be made: {error.strerror}") from error
        if taken:
            raise ConfigError(f"{path} exists already; name another folder with --out, or remove it")
        if not writable:
            raise ConfigError(f"the run folder {path} cannot be made: {parent} is no folder that can be written to")

    @classmethod
    def create(cls, path: Path | None, name: str) -> "RunFolder":
        """Make the folder, without a path the first of `runs/name-1`, `runs/name-2`, … that is free.

        Raises:
            ConfigError: it exists, or cannot be made.
        """
        cls.require_free(path or Path("runs") / f".{name}")
        try:
            return cls(_make_next_free(Path("runs"), name) if path is None else _make(path))
        except OSError as error:
            raise ConfigError(f"the run folder {path or 'runs'} cannot be made: {error.strerror}") from error

    def save_inputs(self, preset: str, config: Config, vocabularies: Vocabularies, facts: Mapping[str, Any]) -> None:
        """Write what is known before training: the vocabularies, the settings and the facts of the data.

        If that fails, the folder is removed.
        """
        try:
            save_vocabularies(self.path, config.corpus.tokenizer, *vocabularies)
            files = {path.name: [sha256(path)] for path in sorted(self.path.iterdir())}
            write_json(self.path / MANIFEST, {"files": files})
            self.save_config(preset, config, facts)
        except OSError:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def save_config(self, preset: str, config: Config, facts: Mapping[str, Any]) -> None:
        """Write config.json, of a run that begins or goes on; for the facts see `Data.facts`."""
        content = {"format": FORMAT, "preset": preset} | dataclasses.asdict(config) | dict(facts)
        del content["devices"]  # a run may go on with others
        self._replace("config.json", lambda beside: write_json(beside, content))

    def save_origin(self, origin: Mapping[str, Any]) -> None:
        """Write origin.json of an imported run: where its model comes from."""
        self._replace("origin.json", lambda beside: write_json(beside, origin))

    def require_data(self, data: Data) -> None:
        """Raise ConfigError unless the data are those that the run began with."""
        if read_json(self.path / "config.json")["data_sha256"] != data.digest():
            raise ConfigError(f"the sentence pairs have changed since {self.path} began; start a new run")

    def load(self) -> SavedRun:
        """Read and check everything that a translator needs.

        Raises:
            ConfigError: the folder does not exist, holds no run, a damaged run or one of another version; later, when
                weights are read, such that are NaN or infinite.
        """
        if not self.path.is_dir():
            raise ConfigError(f"there is no folder {self.path}; name the run folder that `python -m train.nmt` wrote")
        missing = [name for name in ("config.json", WEIGHTS) if not (self.path / name).is_file()]
        if missing:
            reason = f"it has no {missing[0]}; name the run folder that `python -m train.nmt` wrote"
        else:
            try:
                return self._load()
            except (OSError, ValueError) as error:
                reason = " ".join(str(error).split())
        raise ConfigError(f"{self.path} holds no run that can be loaded: {reason}")

    def _load(self) -> SavedRun:
        content = read_json(self.path / "config.json")
        version = content.get("format")
        if type(version) is not int or version != FORMAT:
            raise ValueError(f"config.json has format {version!r}, and this version of the program reads {FORMAT}")
        config = _read_config(content)
        needed = "config.json", WEIGHTS, *FILES[config.corpus.tokenizer]
        try:
            check_files(self.path, needed)
        except DamageError:  # the weights may have been replaced by a run that is still training
            check_files(self.path, needed)
        source, target = load_vocabularies(self.path, config.corpus.tokenizer, languages=config.corpus.languages)
        lengths = {name: _read_length(content, name) for name in ("max_source_len", "max_target_len")}
        weights = _open_weights(self.path / WEIGHTS)
        return SavedRun(self.path, config, source, target, weights=weights, **lengths)

    def load_vocabularies(self, config: Config) -> tuple[Vocabulary, Vocabulary]:
        """Return the vocabularies of a run that goes on.

        Raises:
            DamageError: a file that the manifest lists is not what was written.
        """
        tokenizer, sampling, languages = config.corpus.tokenizer, config.corpus.sampling, config.corpus.languages
        check_files(self.path, ("config.json", *FILES[tokenizer]))
        return load_vocabularies(self.path, tokenizer, sampling, languages)

    def has_begun(self) -> bool:
        """Return whether the training has written a checkpoint, even if that is lost now. If not, it begins anew."""
        lost = (self.path / SUMMARY).exists() or (bool(self._metrics(1)) and not (self.path / "checkpoint").is_dir())
        return lost or any(self.path.glob("checkpoint/step-*.json"))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other trainings out of the folder; ConfigError if there is one already."""
        if not self.writes:
            yield
            return
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in (*FILES_OF_RUN, *chain(*FILES.values())):  # what a killed process was writing
                for unfinished in self.path.glob(f".{name}.[0-9]*"):
                    unfinished.unlink()
            yield
        except BlockingIOError:
            raise ConfigError(f"{self.path} is in use: another process trains in it") from None
        finally:
            os.close(descriptor)

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl."""
        if not self.writes:
            return
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())  # a checkpoint, which is on the disk when it counts, cannot be used without them

    def metrics_sha256(self, count: int) -> str:
        """Return the SHA-256 of the first `count` lines of metrics.jsonl, by which a checkpoint knows its run."""
        return hashlib.sha256(b"".join(self._metrics(count))).hexdigest()

    def _metrics(self, count: int) -> list[bytes]:
        path = self.path / METRICS
        return path.read_bytes().splitlines(keepends=True)[:count] if path.exists() else []

    def cut_metrics(self, count: int, digest: str | None = None) -> list[dict[str, Any]]:
        """Return the first `count` lines of metrics.jsonl, and remove those after them.

        Raises:
            DamageError: a line is missing or is no record, or the lines are not those of this digest.
        """
        lines = self._metrics(count)
        if digest not in (None, self.metrics_sha256(count)):
            raise DamageError(
                f"the first {count} lines of {METRICS} are not those that were written before the checkpoint: one of "
                "the two was changed or is of another run; copy the folder again"
            )
        try:
            records = [json.loads(line) for line in lines]
            if len(records) < count or not all(isinstance(record, dict) for record in records):
                raise ValueError(f"it must have {count} records")
        except ValueError as error:
            raise DamageError(f"{METRICS} is damaged: {error}; copy the folder again") from error
        if self.writes:
            write_whole(self.path / METRICS, lambda beside: beside.write_bytes(b"".join(lines)))
        return records

    def save_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Write the parameters as safetensors, with PyTorch's names and layouts."""
        from jax_attn.checkpoints import write_safetensors

        if self.writes:
            self._replace(WEIGHTS, lambda beside: write_safetensors(beside, weights))

    def _replace(self, name: str, write: Callable[[Path], object]) -> None:
        """Replace a file of the manifest. Until that is done the manifest lists the old bytes and the new ones."""
        files = read_manifest(self.path)

        def write_and_announce(beside: Path) -> None:
            write(beside)
            digest = sha256(beside)
            write_json(self.path / MANIFEST, {"files": files | {name: [*files.get(name, ()), digest]}})
            files[name] = [digest]

        write_whole(self.path / name, write_and_announce)
        write_json(self.path / MANIFEST, {"files": files})

    def save_test(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write the test set, one sentence a line: see `train.translating.scoring`."""
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
        if self.writes:
            self._replace(TEST, lambda beside: beside.write_text("".join(lines), encoding="utf-8"))

    def save_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the results, last of all: a folder without a summary is a run that did not end."""
        self._replace(SUMMARY, lambda beside: write_json(beside, summary))


def read_manifest(folder: Path, needed: Iterable[str] = ()) -> dict[str, list[str]]:
    """Return the SHA-256 of the files by their names; DamageError unless all that are needed are listed."""
    files = read_json(folder / MANIFEST).get("files")
    if not isinstance(files, dict):
        raise DamageError(f"{MANIFEST} is damaged: it lists no files; copy the folder again")
    missing = [name for name in needed if name not in files]
    if missing:
        raise DamageError(f"{MANIFEST} is damaged: it does not list {missing[0]}; copy the folder again")
    return files


def check_files(folder: Path, needed: Iterable[str]) -> None:
    """Check the files that the manifest lists. The results may be missing, as in a copy to translate with.

    Raises:
        DamageError: a file that is needed is not listed, or a file is not what was written.
    """
    files = read_manifest(folder, needed)
    check(folder, {name: files[name] for name in files if name not in (TEST, SUMMARY) or (folder / name).exists()})


def _read_config(content: Mapping[str, Any]) -> Config:
    try:
        config = read_settings(Config, {name: value for name, value in content.items() if name not in NO_SETTINGS})
    except ValueError as error:
        raise ValueError(f"config.json is damaged or of another version of this program: {error}") from error
    if wrong := config.model.wrong("model.{}".format) + wrong_numbers(config.search, "search.{}".format):
        raise ValueError(f"config.json is damaged: {'; '.join(wrong)}")
    return config


def _read_length(content: Mapping[str, Any], name: str) -> int:
    length = content.get(name)
    if type(length) is not int or not 1 <= length <= 65_536:
        raise ValueError(f"config.json is damaged: {name} must be a length; got {length!r}")
    return length


def _open_weights(path: Path) -> Mapping[str, np.ndarray]:
    from jax_attn.checkpoints import SafetensorsFile

    class FiniteWeights(SafetensorsFile):
        """Numbers are checked when they are read, since large weights take seconds to read."""

        def __getitem__(self, name: str) -> np.ndarray:
            array = super().__getitem__(name)
            if not np.isfinite(array).all():
                raise ConfigError(f"{path} is damaged: {name} holds NaN or infinite numbers; train the run again")
            return array

    return FiniteWeights(path)


def _make(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def _make_next_free(folder: Path, name: str) -> Path:
    number = 1
    while True:
        with suppress(FileExistsError):  # another run may have made it a moment ago
            return _make(folder / f"{name}-{number}")
        number += 1
