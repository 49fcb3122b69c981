import shutil

import jax
import numpy as np
import pytest

from train.machine.whole_files import write_json
from train.runs.checkpoint import KEPT, Checkpoints

STATE = {"a": np.arange(6.0).reshape(2, 3), "step": np.int32(3)}
LIKE = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype), STATE)


@pytest.fixture
def checkpoints(tmp_path) -> Checkpoints:
    """Three checkpoints, of which the last two are kept."""
    made = Checkpoints(tmp_path / "checkpoint")
    made.folder.mkdir()
    for step in (8, 16, 128):
        made.save(step, STATE | {"a": STATE["a"] + step}, {"step": step})
    made.wait()
    return made


def test_the_last_checkpoints_are_kept_and_the_last_is_restored(checkpoints):
    assert len(list(checkpoints.folder.iterdir())) == 2 * KEPT
    state, position = checkpoints.restore(LIKE)
    assert position == {"step": 128}
    np.testing.assert_array_equal(state["a"], STATE["a"] + 128)


def test_any_flipped_byte_is_found_and_the_checkpoint_before_is_used(checkpoints):
    files = [path for path in (checkpoints.folder / "step-128").rglob("*") if path.is_file() and path.stat().st_size]
    assert len(files) > 5
    for file in [*files, checkpoints.folder / "step-128.json"]:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        good = file.read_bytes()
        file.write_bytes(content)
        with pytest.warns(
            UserWarning, match=r"checkpoint step-128 cannot be used, and is left out: .* is (damaged|missing)"
        ):
            assert checkpoints.restore(LIKE)[1] == {"step": 16}
        file.write_bytes(good)
    assert checkpoints.restore(LIKE)[1] == {"step": 128}


def test_a_checkpoint_that_was_not_finished_is_not_seen_and_removed_by_the_next(checkpoints):
    shutil.copytree(checkpoints.folder / "step-128", checkpoints.folder / "step-200")
    (checkpoints.folder / "step-300.orbax-checkpoint-tmp").mkdir()
    assert checkpoints.restore(LIKE)[1] == {"step": 128}
    checkpoints.save(200, STATE, {"step": 200})
    checkpoints.wait()
    assert {path.name for path in checkpoints.folder.iterdir()} == {
        "step-128", "step-128.json", "step-200", "step-200.json",
    }  # fmt: skip


def test_a_write_that_fails_is_a_warning_and_leaves_the_checkpoints_before(checkpoints, monkeypatch):
    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("train.runs.checkpoint.write_json", full)
    checkpoints.save(200, STATE, {})
    with pytest.warns(UserWarning, match="could not be saved in .*: No space left on device"):
        checkpoints.wait()
    assert checkpoints.restore(LIKE)[1] == {"step": 128}


def test_where_a_checkpoint_has_no_room_it_is_not_begun(checkpoints, monkeypatch):
    def full(folder, size):
        assert size == 6 * 8 + 4
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("train.runs.checkpoint.require_space", full)
    with pytest.warns(UserWarning, match="could not be saved in .*, and the training goes on: No space left on device"):
        checkpoints.save(200, STATE, {})
    checkpoints.save(201, STATE, {})  # is not warned of again
    checkpoints.wait()
    assert (checkpoints.last(), checkpoints.problem) == (128, "No space left on device")
    assert len(list(checkpoints.folder.iterdir())) == 2 * KEPT


def test_without_a_checkpoint_that_is_whole_there_is_none(tmp_path):
    write_json(tmp_path / "step-1.json", {"gone": "0"})
    with pytest.warns(UserWarning, match="gone is missing"):
        assert Checkpoints(tmp_path).restore(LIKE) is None


def test_a_run_that_goes_on_from_before_a_damaged_checkpoint_leaves_it_behind(checkpoints):
    (checkpoints.folder / "step-128" / "position.json").write_text("{")
    with pytest.warns(UserWarning, match="checkpoint step-128 cannot be used"):
        assert checkpoints.restore(LIKE)[1] == {"step": 16}
    for step in (24, 32):
        checkpoints.save(step, STATE, {"step": step})
        checkpoints.wait()
        assert checkpoints.last() == step
    assert sorted(path.name for path in checkpoints.folder.glob("*.json")) == ["step-24.json", "step-32.json"]
