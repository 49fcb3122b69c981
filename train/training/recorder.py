"""Write down what a training does: metrics, TensorBoard's scalars, the best parameters, checkpoints."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jax_attn.checkpoints import read_safetensors
from train.machine.processes import from_lead
from train.runs.checkpoint import Checkpoints
from train.runs.run_folder import WEIGHTS, RunFolder
from train.setting import ConfigError
from train.training.console import Progress
from train.training.interfaces import Report


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
        if self._scalars is not None:
            self._scalars.flush()
        if self._is_written():  # else a run that goes on would look for the best parameters in vain
            digest = self.folder.metrics_sha256(len(self.reports))
            self.checkpoints.save(step, state, position | {"metrics_sha256": digest})

    def restore(self, like: Any) -> tuple[Any, dict[str, Any]] | None:
        from tensorboardX import SummaryWriter

        found = self.checkpoints.restore(like) if self.resume else None
        if self.resume and found is None:
            raise ConfigError(f"{self.folder.path} holds no checkpoint that can be used; start a new run")
        digest = None if found is None else found[1].pop("metrics_sha256", None)
        lines = self.folder.cut_metrics(0 if found is None else found[1]["reports"], digest)
        self.reports = [Report(**line) for line in lines]
        last = self.reports[-1].step if self.reports else 0
        if self.folder.writes:
            self._scalars = SummaryWriter(str(self.folder.path / "tensorboard"), purge_step=last + 1)
        return found

    def close(self) -> None:
        """Wait for what is being written."""
        self._write_again()
        if self._unwritten is not None and self.folder.writes:
            text = f"{WEIGHTS} holds older parameters than the best, which could not be written; so do the results"
            warnings.warn(text, stacklevel=2)
        if self._scalars is not None:
            self._scalars.close()
