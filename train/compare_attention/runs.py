"""The runs of a comparison: plan them, find the complete ones, and train the missing ones."""

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.command_line.train_options import parse
from train.config import Config, ConfigError
from train.runs.files import DamageError
from train.runs.run_folder import FORMAT, MANIFEST, SUMMARY, TEST, check_files


class RunError(RuntimeError):
    """A training failed. The message says which one, why, and where its output is."""


@dataclass(frozen=True)
class Run:
    """One training: `python -m train.nmt` with these arguments."""

    attention: str
    seed: int
    folder: Path
    config: Config
    arguments: tuple[str, ...]

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")


def plan(out: Path, attentions: Sequence[str], seeds: Sequence[int], arguments: Sequence[str]) -> list[Run]:
    """List every attention with the first seed, then with the next one.

    Args:
        out: the folder that the run folders lie in.
        arguments: arguments of `train.nmt` that all runs have in common.

    Raises:
        ConfigError: arguments that no run could use.
    """
    runs = []
    for seed in seeds:
        for attention in attentions:
            folder = out / f"{attention}-{seed}"
            own = (*arguments, "--model.attention", attention, "--seed", str(seed), "--out", str(folder))
            runs.append(Run(attention, seed, folder, parse(list(own)).config, own))
    return runs


def is_complete(run: Run) -> bool:
    """Whether the folder holds the whole run; False for a run that was stopped, or whose results are damaged.

    Raises:
        ConfigError: the folder is not a run's, or its run has other settings.
    """
    folder = run.folder
    if not folder.exists():
        return False
    if not folder.is_dir() or (any(folder.iterdir()) and not (folder / "config.json").exists()):
        raise ConfigError(f"{folder} is not a run; name another folder with --out")
    found, summary = _read(folder / "config.json"), _read(folder / SUMMARY)
    if found is None or summary is None or not (folder / TEST).exists():
        return False
    if (folder / MANIFEST).exists():  # a folder without one is of an older version
        try:
            check_files(folder, ())
        except DamageError:
            return False
    planned = json.loads(json.dumps({"format": FORMAT} | dataclasses.asdict(run.config), default=str))
    differing = [name for name, value in planned.items() if name not in ("out", "devices") and found.get(name) != value]
    if differing:
        raise ConfigError(f"{folder} was trained with other settings ({differing[0]}); name another folder with --out")
    return True


def _read(path: Path) -> Any:
    """Read a JSON file; None if it is missing or incomplete."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def train_missing(runs: Sequence[Run]) -> None:
    """Train the runs that are not complete, one after another, each from the start and in its own process.

    Raises:
        ConfigError: see `is_complete`; no training was started.
        RunError: a training failed.
    """
    missing = [run for run in runs if not is_complete(run)]
    done = len(runs) - len(missing)
    if done:
        print(f"{done} of {len(runs)} runs are already complete", file=sys.stderr)
    for number, run in enumerate(missing, done + 1):
        if run.folder.exists():
            shutil.rmtree(run.folder)  # what a stopped training left behind
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        with run.log.open("wb") as log:
            ended = subprocess.run(command(run), stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
        print(f"[{number}/{len(runs)}] {_describe(run, ended.returncode)}", file=sys.stderr, flush=True)


def command(run: Run) -> list[str]:
    """Return the command that trains a run."""
    return [sys.executable, "-m", "train.nmt", *run.arguments]


def _describe(run: Run, status: int) -> str:
    """Describe a finished training in one line; RunError if it failed."""
    if status != 0 or not is_complete(run):
        lines = run.log.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "there is no output")
        raise RunError(f"{run.folder.name} ended with status {status}: {last} (see {run.log})")
    summary = _read(run.folder / SUMMARY)
    parts = [f"{run.attention}, seed {run.seed}", f"BLEU {summary['bleu']:.1f}"]
    if summary["alignment_error_rate"] is not None:
        parts.append(f"alignment error {summary['alignment_error_rate']:.3f}")
    return "   ".join([*parts, f"{summary['seconds']:.0f} s"])
