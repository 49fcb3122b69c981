"""Checkpoints of a training: from one of them it goes on as if it had never stopped."""

import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from train.manifest import check, read_json, sha256_of_tree, write_json

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

    def save(self, step: int, state: Any, position: dict[str, Any]) -> None:
        """Write a checkpoint in the background.

        Args:
            step: the number of steps taken.
            state: NumPy arrays that nobody changes any more.
            position: what the training needs beside its state, as JSON.
        """
        self.run(self._save, step, state, position)

    def run(self, write: Callable[..., None], *arguments: Any) -> None:
        """Call a function that writes, in the background and after what is being written."""
        self.wait()
        self._writing = self._writer.submit(write, *arguments)

    def wait(self) -> None:
        """Wait for what is being written. If it failed, warn: the older files are whole, and the training goes on."""
        writing, self._writing = self._writing, None
        if writing is not None and (error := writing.exception()) is not None:
            reason = getattr(error, "strerror", None) or error
            warnings.warn(f"the run could not be saved in {self.folder.parent}: {reason}", stacklevel=2)

    def restore(self, like: Any) -> tuple[Any, dict[str, Any]] | None:
        """Return state and position of the last checkpoint that is whole; None if there is none.

        Args:
            like: a state of the same structure, shapes and dtypes.

        Warns:
            UserWarning: a newer checkpoint is damaged.
        """
        import orbax.checkpoint as ocp

        for file in sorted(self.folder.glob("step-*.json"), key=_step, reverse=True):
            try:
                folder = file.with_suffix("").absolute()
                check(folder, read_json(file))
                with ocp.StandardCheckpointer() as checkpointer:
                    return checkpointer.restore(folder / "state", like), read_json(folder / "position.json")
            except (ValueError, KeyError, TypeError) as error:  # damaged, or of another version of the program
                warnings.warn(f"checkpoint {file.stem} cannot be used, and the one before it is: {error}", stacklevel=2)
        return None

    def _save(self, step: int, state: Any, position: dict[str, Any]) -> None:
        import orbax.checkpoint as ocp

        folder = self.folder / f"step-{step}"
        folder.with_suffix(".json").unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(folder.absolute() / "state", state)
        write_json(folder / "position.json", position)
        write_json(folder.with_suffix(".json"), sha256_of_tree(folder))
        self._remove_old()

    def _remove_old(self) -> None:
        """Remove all but the newest checkpoints, and what an interrupted run left behind."""
        kept = sorted(self.folder.glob("step-*.json"), key=_step)[-KEPT:]
        for path in self.folder.iterdir():
            if path not in kept and path.with_suffix(".json") not in kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _step(file: Path) -> int:
    """Return the number of a file `step-N.json`; −1 for another name."""
    number = file.stem.removeprefix("step-")
    return int(number) if number.isdigit() else -1
