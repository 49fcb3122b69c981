"""The best parameters, where the disk is full for a while."""

import json

import numpy as np
import pytest

from train.runs.run_folder import MANIFEST, RunFolder
from train.training.console import Progress
from train.training.recorder import RunRecorder
from train.training.report import UnsavedError

OLD, BEST = ({"w": np.full(2, value, np.float32)} for value in (1.0, 2.0))


@pytest.fixture
def recorder(tmp_path, monkeypatch) -> RunRecorder:
    """A recorder that has kept parameters; then the disk is full."""
    (tmp_path / MANIFEST).write_text(json.dumps({"files": {}}))
    recorder = RunRecorder(RunFolder(tmp_path), Progress(1, 1), lambda: False)
    recorder.restore(None)
    recorder.keep(OLD)
    recorder.checkpoints.wait()
    monkeypatch.setattr(recorder.folder, "save_weights", full)
    return recorder


def full(weights):
    raise OSError(28, "No space left on device")


def test_the_best_parameters_are_written_when_the_disk_has_space_again(recorder, monkeypatch):
    recorder.keep(BEST)
    with pytest.warns(UserWarning, match="No space left on device"):
        recorder.checkpoints.wait()
    monkeypatch.undo()
    recorder.save(1, {"w": np.zeros(2)}, {})
    assert recorder.kept()["w"].tolist() == BEST["w"].tolist()
    recorder.require_saved()
    recorder.close()
    assert (recorder.checkpoints.folder / "step-1.json").exists()


def test_parameters_that_could_not_be_written_are_named_at_the_end_and_no_checkpoint_counts_on_them(recorder):
    recorder.keep(BEST)
    with pytest.warns(UserWarning, match="No space left on device"):
        recorder.save(1, {"w": np.zeros(2)}, {})
    assert recorder.kept()["w"].tolist() == BEST["w"].tolist()  # without a second warning
    with pytest.raises(
        UnsavedError, match=r"No space left on device; .* holds older parameters than the best, and no c"
    ):
        recorder.require_saved()
    recorder.close()
    assert list(recorder.checkpoints.folder.iterdir()) == []
    assert RunRecorder(recorder.folder, recorder.bar, lambda: False).kept()["w"].tolist() == OLD["w"].tolist()
