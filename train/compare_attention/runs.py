"""The runs of a comparison: which there must be, which there are, and those that are missing, made."""

import contextlib
import dataclasses
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train import nmt
from train.checkpoint import FORMAT
from train.config import Config, ConfigError

FILES = {
    "config.json", "source.json", "target.json", "metrics.jsonl", "model.safetensors", "attention.png", "test.jsonl",
    "summary.json",
}  # fmt: skip
"""What a run leaves beside its checkpoint, see `train.checkpoint`; a folder with more in it is not thrown away."""


class RunError(RuntimeError):
    """A run that did not end well; the message says which, why, and where its output is."""


@dataclass(frozen=True)
class Run:
    """One training: `python -m train.nmt` with these arguments."""

    attention: str
    seed: int
    folder: Path
    config: Config
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.name}.log")


def plan(out: Path, attentions: Sequence[str], seeds: Sequence[int], arguments: Sequence[str]) -> list[Run]:
    """Every attention with the first seed, then with the next: what is stopped early has compared something already.

    Args:
        out: the folder of the comparison; the runs' folders lie in it.
        arguments: of `train.nmt`, what all runs have in common.

    Raises:
        ConfigError: arguments that no run could use.
    """
    runs = []
    for seed in seeds:
        for attention in attentions:
            folder = out / f"{attention}-{seed}"
            of_run = (*arguments, "--model.attention", attention, "--seed", str(seed), "--out", str(folder))
            _, config = nmt.parse(list(of_run))
            runs.append(Run(attention, seed, folder, config, of_run))
    return runs


def is_done(run: Run) -> bool:
    """Whether the run is there, whole; what is there of one that did not end is not.

    Raises:
        ConfigError: the folder holds something else, or a run with other settings.
    """
    if not run.folder.exists():
        return False
    names = sorted(path.name for path in run.folder.iterdir()) if run.folder.is_dir() else [""]
    strange = [name for name in names if name not in FILES and not name.startswith("checkpoint")]
    if strange:
        raise ConfigError(f"{run.folder / strange[0]} is of no run; name another folder with --out")
    summary, config = (_read(run.folder / name) for name in ("summary.json", "config.json"))
    if summary is None or config is None or not (run.folder / "test.jsonl").exists():
        return False
    differing = sorted(_differences("", _settings(run.config), config))
    if differing:
        raise ConfigError(f"{run.folder} is of a run with another {differing[0]}; name another folder with --out")
    return True


def _read(path: Path) -> Any:
    """What a JSON file says; None if it is not there, or was cut short."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def _settings(config: Config) -> dict[str, Any]:
    """A configuration as its run folder has it, see `RunFolder.save_inputs`."""
    return {"format": FORMAT} | json.loads(json.dumps(dataclasses.asdict(config), default=str))


def _differences(prefix: str, expected: dict[str, Any], found: Any) -> Iterator[str]:
    """The names of settings that differ, but for where the run lies; what only `found` has comes from the corpus."""
    for name, value in expected.items():
        other = found.get(name) if isinstance(found, dict) else None
        if isinstance(value, dict):
            yield from _differences(f"{prefix}{name}.", value, other)
        elif value != other and (prefix, name) != ("", "out"):
            yield f"{prefix}{name}"


def command(run: Run) -> list[str]:
    """What makes a run."""
    return [sys.executable, "-m", "train.nmt", *run.arguments]


def make_missing(runs: Sequence[Run], jobs: int, say: Callable[[str], None]) -> None:
    """Make the runs that are not there yet, `jobs` at a time, each in a process of its own.

    `say` is told of each when it is done.

    Raises:
        ConfigError: see `is_done`; nothing has been made then.
        RunError: a run failed; those that went on beside it are stopped.
    """
    missing = [run for run in runs if not is_done(run)]
    if len(missing) < len(runs):
        say(f"{len(runs) - len(missing)} of {len(runs)} runs are there already")
    programs = Programs()
    started = time.perf_counter()
    with ThreadPoolExecutor(jobs) as pool, programs.stopped_on_error():
        futures = {pool.submit(programs.make, run): run for run in missing}
        for count, future in enumerate(as_completed(futures), 1):
            future.result()
            left = (time.perf_counter() - started) / count * (len(missing) - count)
            say(f"[{count + len(runs) - len(missing)}/{len(runs)}] {_told(futures[future])}{_in_words(left)}")


class Programs:
    """The processes that are under way; once stopped, no other begins."""

    def __init__(self) -> None:
        self.running: set[subprocess.Popen[bytes]] = set()
        self.stopped = False
        self.lock = threading.Lock()

    def make(self, run: Run) -> None:
        """Make the run, from the start; RunError if it fails."""
        program = self._start(run)
        if program is None:
            return
        status = program.wait()
        with self.lock:
            self.running.discard(program)
            if self.stopped or (status == 0 and is_done(run)):
                return
            self.stopped = True
        lines = run.log.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
        raise RunError(f"{run.name} ended with status {status}: {last.strip()} (see {run.log})")

    def _start(self, run: Run) -> subprocess.Popen[bytes] | None:
        """What is left of an attempt that did not end is thrown away; None once all is stopped."""
        with self.lock:
            if self.stopped:
                return None
            if run.folder.exists():
                shutil.rmtree(run.folder)
            run.folder.parent.mkdir(parents=True, exist_ok=True)
            with run.log.open("wb") as log:
                program = subprocess.Popen(command(run), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
            self.running.add(program)
            return program

    @contextlib.contextmanager
    def stopped_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with self.lock:
                self.stopped = True
            for program in list(self.running):
                program.terminate()
            raise


def _told(run: Run) -> str:
    """A run in a line."""
    summary = _read(run.folder / "summary.json")
    parts = [f"{run.attention}, seed {run.seed}"]
    if summary["bleu"] is not None:
        parts.append(f"BLEU {summary['bleu']:.1f}")
    if summary["alignment_error_rate"] is not None:
        parts.append(f"alignment error {summary['alignment_error_rate']:.3f}")
    return "   ".join([*parts, f"{summary['seconds']:.0f} s"])


def _in_words(seconds: float) -> str:
    if seconds <= 0:
        return ""
    return f"   about {seconds / 60:.0f} min left" if seconds >= 90 else f"   about {seconds:.0f} s left"
