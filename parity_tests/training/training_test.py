"""Training parity holds for whole trainings, and a fault in the optimiser or in the model is seen."""

import dataclasses
from collections.abc import Iterator

import jax
import jaxtyping
import numpy as np
import optax
import pytest
import torch

from jax_attn import optim as optimizers
from jax_attn.modules import recurrent
from parity_tests.faults.in_jax import bias_dropped
from parity_tests.faults.in_training import TRAINING_FAULTS, TrainingFault
from parity_tests.training import training
from parity_tests.training.drift_plot import draw_drift
from parity_tests.training.training import (
    BOOK,
    RUNS,
    TRAININGS,
    JaxSide,
    Step,
    TorchSide,
    draw_batch,
    drift,
    free_running,
    resynchronised,
)


@pytest.fixture(autouse=True, scope="module")
def _unchecked() -> Iterator[None]:
    """Shapes are checked by every other test; here they would be the greater part of the compilation."""
    checked = not jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", not checked)
    training.reference.cache_clear()
    training._program.cache_clear()
    training._optimizer.cache_clear()


@pytest.mark.parametrize("which", TRAININGS, ids=lambda which: which.name)
def test_both_frameworks_train_alike(which):
    """The beginning of each comparison, in one test, as they share PyTorch's run."""
    calls = []
    free = free_running(which, 80, progress=lambda *done: calls.append(done))
    assert not free.failed, str(free)
    assert calls == [(step, 80) for step in range(1, 81)]
    together = resynchronised(which, 100)
    assert not together.failed, str(together)
    apart = drift(which, 60)
    assert not apart.failed, str(apart)

    # It was a training worth comparing: it learnt, clipped, and nothing was compared with itself.
    assert free.losses[-8:].mean() < 0.9 * free.losses[:8].mean()
    assert together.clipped_steps > 0
    assert which is BOOK or together.clipped_steps < together.steps
    for comparison in (free, together):
        assert comparison.errors.keys() == set(Step._fields)
        assert comparison.worst.error == max(errors.max() for errors in comparison.errors.values()) > 0
    for quantity in ("parameters", "worst parameter"):
        assert all((errors > 0).mean() > 0.9 for errors in apart.curves[quantity].values())
    assert draw_drift([apart]).axes


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_both_frameworks_train_alike_to_the_end(run):
    result = run.run()
    assert result.steps == (500 if "re-synchronised" in run.name else 200)
    assert not result.failed, str(result)


@pytest.mark.parametrize("which", TRAININGS, ids=lambda which: which.name)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_is_exactly_0_in_pytorch_is_exactly_0_in_jax(which, dtype):
    """Rounding in its place would be as large as any step, once Adam has divided it by its own size."""
    ours, twin = JaxSide(which, dtype), TorchSide(which, dtype)
    for step in range(3):
        batch = draw_batch(which, step)
        found, expected = ours.step(batch), twin.step(batch)
        zeros = {name: gradient == 0 for name, gradient in expected.gradients.items()}
        assert any(zero.any() for zero in zeros.values())
        for name, zero in zeros.items():
            np.testing.assert_array_equal(found.gradients[name] == 0, zero, err_msg=name)


def test_the_runs_are_all_of_them_and_can_be_cut_short():
    assert len({run.name for run in RUNS}) == len(RUNS) == 3 * len(TRAININGS)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        for run in RUNS[-3:]:
            result = run.run(steps=2)
            assert result.model == TRAININGS[-1].name
            assert result.steps == 2
        assert torch.get_num_threads() == threads + 1  # as they were
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("fault", TRAINING_FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_caught(fault: TrainingFault) -> None:
    comparison = fault.run(BOOK, steps=40)
    assert comparison.failed
    assert comparison.errors["loss"].max() > comparison.bound  # not only where the fault itself is: what is learnt
    assert comparison.errors["gradients"][0] < 1e-11  # and a comparison of one forward and backward pass passes


@pytest.mark.slow
def test_optaxs_own_adam_drifts_further_than_pytorchs(monkeypatch):
    """The verdict on float32 can fail: Optax's bias correction, computed in float32, is enough."""
    monkeypatch.setattr(optimizers, "scale_by_adam", lambda betas, eps: optax.scale_by_adam(*betas, eps))
    assert drift(BOOK, 60).failed


def test_a_missing_tensor_another_shape_and_nan_are_infinitely_far():
    one, nan = np.ones(2), np.array([1.0, np.nan])
    for ours, twin in (({}, {"a": one}), ({"a": one, "b": one}, {"a": one}), ({"a": one[:1]}, {"a": one})):
        assert training._furthest(ours, twin)[1] == np.inf
    assert training._furthest({"a": nan}, {"a": one}) == ("a", np.inf)
    assert training._furthest({"a": one}, {"a": nan}) == ("a", np.inf)
    assert training._furthest({"a": one, "b": 1.5 * one}, {"a": one, "b": one}) == ("b", 0.5)
    assert training._furthest({"a": one}, {"a": 0 * one}) == ("a", 1.0)


def test_batches_are_ragged_with_a_row_of_padding_and_the_same_whenever_asked():
    for which in TRAININGS:
        first, again, next_epoch = (draw_batch(which, step) for step in (3, 3, 3 + training.EPOCH))
        jax.tree.map(np.testing.assert_array_equal, first, again)
        assert (first.sources == next_epoch.sources).all()
        assert (first.keep_attention != next_epoch.keep_attention).any()
        assert first.source_lens[-1] == first.target_lens[-1] == 0
        assert len(set(first.source_lens)) > 2
        other = draw_batch(dataclasses.replace(which, seed=1), 3)
        assert (first.sources != other.sources).any()


def test_a_fault_of_the_model_is_caught(monkeypatch):
    monkeypatch.setattr(recurrent, "lstm_step", bias_dropped(recurrent.lstm_step))
    training._program.cache_clear()
    try:
        assert resynchronised(BOOK, steps=2).failed
    finally:
        training._program.cache_clear()
