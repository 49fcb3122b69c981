"""Checkpoints of a training: from one of them it goes on as if it had never stopped.

Several processes save and restore together, each its part of the state. Process 0 writes the rest, and chooses what all
restore.
"""

import math
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from train.machine.processes import from_lead, is_lead
from train.machine.whole_files import check, read_json, require_space, sha256_of_tree, write_json

KEPT = 2
"""Checkpoints that are kept: the last one, and the one before it, which is used if the last is damaged."""


class Checkpoints:
    """The checkpoints of a run, written in the background one after another.

    A checkpoint is the folder `step-N`, with the state by Orbax and the position of the training, and the file
    `step-N.json`, written when the folder is complete, with the SHA-256 of the folder's files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self.problem: str | None = None
        """Why something could not be written, the last time."""

    def save(self, step: int, state: Any, position: dict[str, Any]) -> None:
        """Write a checkpoint in the background.

        Args:
            step: the number of steps taken.
            state: arrays of JAX, which nobody changes any more on a CPU; or NumPy's.
            position: what the training needs beside its state, as JSON.
        """
        import orbax.checkpoint as ocp

        self.wait()
        folder = self.folder / f"step-{step}"
        # All processes save, or none does: they would wait for one another.
        if problem := from_lead(self._make_room(folder, state) if is_lead() else None):
            self._warn(problem)
            return
        checkpointer = ocp.StandardCheckpointer()
        checkpointer.save(folder.absolute() / "state", state)  # returns when the arrays are in memory of its own
        self.run(self._finish, checkpointer, folder, position)

    def _make_room(self, folder: Path, state: Any) -> str | None:
        """Make a checkpoint's folder. If its disk is too full, return the reason: Orbax would say it in 200 lines."""
        try:
            folder.with_suffix(".json").unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            require_space(self.folder, sum(x.nbytes for x in jax.tree.leaves(state)))
            folder.mkdir()
        except OSError as error:
            return error.strerror or str(error)
        return None

    def run(self, write: Callable[..., None], *arguments: Any) -> None:
        """Call a function that writes, in the background and after what is being written."""
        self.wait()
        self._writing = self._writer.submit(write, *arguments)

    def wait(self) -> None:
        """Wait for what is being written. If it failed, warn: the older files are whole, and the training goes on."""
        writing, self._writing = self._writing, None
        if writing is not None and (error := writing.exception()) is not None:
            self._warn(getattr(error, "strerror", None) or str(error))

    def _warn(self, problem: str) -> None:
        """Warn that something could not be written, once for each reason."""
        if problem != self.problem:
            text = f"the run could not be saved in {self.folder.parent}, and the training goes on: {problem}"
            warnings.warn(text, stacklevel=3)
        self.problem = problem

    def last(self) -> int | None:
        """Return the step of the last checkpoint that was written; None if there is none."""
        return max(map(_step, self.folder.glob("step-*.json")), default=None)

    def restore(self, like: Any) -> tuple[Any, dict[str, Any]] | None:
        """Return state and position of the last checkpoint that is whole; None if there is none.

        Args:
            like: a state of the same structure, shapes and dtypes.

        Warns:
            UserWarning: a newer checkpoint is damaged.
        """
        import orbax.checkpoint as ocp

        before = math.inf
        while (step := self._last_whole(before)) is not None:
            folder, before = self.folder / f"step-{step}", step
            try:
                with ocp.StandardCheckpointer() as checkpointer:
                    state = checkpointer.restore(folder.absolute() / "state", like)
                return state, read_json(folder / "position.json")
            except (ValueError, KeyError, TypeError) as error:  # another version of the program wrote it
                _warn_of(step, error)
        return None

    def _last_whole(self, before: float) -> int | None:
        """Find the last checkpoint, before a step, whose files have the bytes that were written; process 0 looks."""
        found = None
        files = self.folder.glob("step-*.json") if is_lead() else ()
        for file in sorted((file for file in files if _step(file) < before), key=_step, reverse=True):
            try:
                check(file.with_suffix(""), read_json(file))
            except (ValueError, KeyError, TypeError) as error:
                _warn_of(_step(file), error)
            else:
                found = _step(file)
                break
        return from_lead(found)

    def _finish(self, checkpointer: Any, folder: Path, position: dict[str, Any]) -> None:
        """Wait until all processes have written the state; process 0 writes the rest."""
        with checkpointer:
            checkpointer.wait_until_finished()
        if is_lead():
            write_json(folder / "position.json", position)
            write_json(folder.with_suffix(".json"), sha256_of_tree(folder))
            self._remove_old(_step(folder))

    def _remove_old(self, newest: int) -> None:
        """Remove all but the newest checkpoints, and what an interrupted run left behind.

        What stands past the step just written is damaged: otherwise the run would have gone on from there.
        """
        kept = sorted((file for file in self.folder.glob("step-*.json") if _step(file) <= newest), key=_step)[-KEPT:]
        for path in self.folder.iterdir():
            if path not in kept and path.with_suffix(".json") not in kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _warn_of(step: int, error: Exception) -> None:
    warnings.warn(f"checkpoint step-{step} cannot be used, and is left out: {error}", stacklevel=3)


def _step(file: Path) -> int:
    """Return the number of a file `step-N.json`; −1 for another name."""
    number = file.stem.removeprefix("step-")
    return int(number) if number.isdigit() else -1
