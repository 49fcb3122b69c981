"""The parent's side of a contestant's process."""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np


class ContestantError(RuntimeError):
    """A contestant that could not do what it was told; the message has its name and the end of what it wrote."""


class Worker:
    """One contestant in a process of its own, asked line by line; see `parity_tests.speed.worker`."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str] | None = None) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (closed below)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **(environment or {})},
            text=True,
        )

    def ask(self, *words: str) -> dict[str, Any]:
        """An order, and the answer to it.

        Raises:
            ContestantError: the process died, or answered something else.
        """
        to, answers = self._pipes()
        try:
            print(*words, file=to, flush=True)
            line = answers.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise ContestantError(f"{self.name} died while asked to {words[0]}:\n{self._last_words()}")
        try:
            answer: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError as error:
            raise ContestantError(f"{self.name} answered {line!r} when asked to {words[0]}") from error
        return answer

    def prepare(self, folder: Path) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        """How long building and the first run took, and the outputs."""
        file = folder / f"{self.name.replace(' ', '_').replace('/', '_')}.npz"
        seconds = self.ask("prepare", str(file))
        with np.load(file) as outputs:
            return seconds, dict(outputs)

    def run(self, times: int) -> list[float]:
        seconds: list[float] = self.ask("run", str(times))["seconds"]
        return seconds

    def close(self) -> None:
        """End it: it ends when its stdin does, and is killed if it does not."""
        to, answers = self._pipes()
        with suppress(BrokenPipeError):
            to.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        answers.close()
        self._errors.close()

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def _last_words(self) -> str:
        self._process.wait(timeout=20)
        self._errors.seek(0)
        words = "".join(self._errors.readlines()[-15:]).strip()
        return f"{words}\n(exit status {self._process.returncode})"

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def start_worker(workload: str, contestant: str, device: str, environment: dict[str, str]) -> Worker:
    """A contestant of the registry."""
    command = [sys.executable, "-m", "parity_tests.speed.worker", workload, contestant, device]
    return Worker(f"{workload}: {contestant}", command, environment)
