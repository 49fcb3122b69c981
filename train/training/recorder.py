"""Write down what a training does: metrics, TensorBoard's scalars, the best parameters, checkpoints."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from jax_attn.checkpoints import read_safetensors
from train.machine.processes import from_lead
from train.runs.checkpoint import Checkpoints
from train.runs.run_folder import WEIGHTS, RunFolder
from train.setting import ConfigError
from train.training.console import Progress
from train.training.report import Report, UnsavedError


class RunRecorder:
    """The recorder that writes into a run folder and shows a bar. Of several processes one does."""

    def __init__(
        self, folder: RunFolder, progress: Progress, should_stop: Callable[[], bool], *, resume: bool = False
    ) -> None:
        self.folder, self.bar, self.should_stop, self.resume = folder, progress, should_stop, resume
        self.reports: list[Report] = []
        self.checkpoints = Checkpoints(folder.path / "checkpoint")
        if folder.writes:
            self.checkpoints.folder.mkdir(exist_ok=True)
        self._scalars: Any = None
        self._unwritten: Mapping[str, np.ndarray] | None = None
        self._step = 0  # the one that was to be saved last

    def compiling(self, number: int, count: int) -> None:
        self.bar.show_compiling(number, count)

    def progress(self, step: int, loss: float, tokens: int) -> None:
        self.bar.update(step, loss, tokens)

    def report(self, report: Report) -> None:
        self.reports.append(report)
        self.folder.append_metrics(report._asdict())
        self.bar.show_report(report)
        for name in ("loss", "valid_loss", "bleu", "chrf"):
            if self._scalars is not None and getattr(report, name) is not None:
                self._scalars.add_scalar(name, getattr(report, name), report.step)

    def keep(self, weights: Mapping[str, np.ndarray]) -> None:
        self.checkpoints.wait()
        self._unwritten = weights
        if self.folder.writes:
            self.checkpoints.run(self._write, weights)

    def _write(self, weights: Mapping[str, np.ndarray]) -> None:
        self.folder.save_weights(weights)
        self._unwritten = None

    def _write_again(self) -> None:
        """Wait for what is being written; if writing the kept parameters failed, try once more."""
        self.checkpoints.wait()
        if self._unwritten is not None and self.folder.writes:
            self.checkpoints.run(self._write, self._unwritten)
            self.checkpoints.wait()

    def _is_written(self) -> bool:
        """Return whether the kept parameters are in the folder. All processes ask together, and process 0 knows."""
        self._write_again()
        if from_lead(self._unwritten is None):
            self._unwritten = None
        return self._unwritten is None

    def kept(self) -> dict[str, np.ndarray]:
        if not self._is_written():
            return dict(self._unwritten or {})
        return read_safetensors(self.folder.path / WEIGHTS)

    def save(self, step: int, state: Any, position: dict[str, Any]) -> None:
        self._step = step
        self._call_scalars("flush")
        if self._is_written():  # else a run that goes on would look for the best parameters in vain
            digest = self.folder.metrics_sha256(len(self.reports))
            self.checkpoints.save(step, state, position | {"metrics_sha256": digest})

    def restore(self, like: Any) -> tuple[Any, dict[str, Any]] | None:
        found = self.checkpoints.restore(like) if self.resume else None
        if self.resume and found is None:
            raise ConfigError(f"{self.folder.path} holds no checkpoint that can be used; start a new run")
        digest = None if found is None else found[1].pop("metrics_sha256", None)
        lines = self.folder.cut_metrics(0 if found is None else found[1]["reports"], digest)
        self.reports = [Report(**line) for line in lines]
        last = self.reports[-1].step if self.reports else 0
        self._step = last if found is None else found[1]["step"]
        if self.folder.writes:
            from tensorboardX import SummaryWriter

            # It is flushed with each checkpoint. Its own thread would print a traceback where the disk is full.
            self._scalars = SummaryWriter(
                str(self.folder.path / "tensorboard"), purge_step=last + 1, flush_secs=1_000_000
            )
        return found

    def require_saved(self, error: OSError | None = None) -> None:
        """Raise UnsavedError in all processes if the folder does not hold all that was trained.

        With an error of this process it is raised here alone.
        """
        self._write_again()
        step, path, weights = self.checkpoints.last(), self.folder.path, "the best parameters until now"
        problem = None
        if error is not None or self._unwritten is not None or step != self._step:
            if self._unwritten is not None:
                weights = "older parameters than the best" if (path / WEIGHTS).exists() else "no parameters"
            reason = self.checkpoints.problem if error is None else error.strerror or error
            checkpoint = "no checkpoint" if step is None else f"the checkpoint of step {step}"
            problem = (
                f"the run could not be saved: {reason}; {path} holds {weights}, and {checkpoint}; when there is space, "
                f"go on with: python -m train.nmt --resume {path}"
            )
        if problem := problem if error is not None else from_lead(problem):
            raise UnsavedError(problem) from error

    def close(self) -> None:
        """Wait for what is being written."""
        self._write_again()
        self._call_scalars("close")

    def _call_scalars(self, method: str) -> None:
        """Call the writer of TensorBoard. A full disk is no error here, since metrics.jsonl has the same numbers."""
        if self._scalars is not None:
            with suppress(OSError):
                getattr(self._scalars, method)()
