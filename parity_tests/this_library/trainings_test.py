"""Both frameworks train alike, and a fault in the optimiser or in the model is seen."""

import dataclasses
from collections.abc import Iterator

import jax
import numpy as np
import optax
import pytest

from jax_attn import optim
from parity_tests.this_library.faults import TRAINING_FAULTS, Fault
from parity_tests.this_library.report import summarize_training
from parity_tests.this_library.trainings import (
    BOOK,
    COMPARISONS,
    EPOCH,
    PRE_NORM,
    TRAININGS,
    draw_batch,
    drift,
    free_running,
    in_jax,
    in_torch,
    reference,
    resynchronised,
)
from parity_tests.your_port.training.errors import tensor_errors

QUANTITIES = {"loss", "gradients", "norm", "clipped", "exp_avg", "exp_avg_sq", "parameters"}


@pytest.fixture(autouse=True, scope="module")
def _forget() -> Iterator[None]:
    yield
    reference.cache_clear()


def each_training(*quick):
    """Give a test every training; only the quick ones are among the default tests."""
    params = [pytest.param(x, marks=[] if x in quick else [pytest.mark.slow], id=x.name) for x in TRAININGS]
    return pytest.mark.parametrize("which", params)


@each_training(BOOK)
def test_both_frameworks_train_alike(which):
    """The beginning of both comparisons, in one test, as they share PyTorch's run.

    Of the re-synchronised one fewer steps do, since each is its own proof.
    """
    count = 40 if which in (BOOK, PRE_NORM) else 100  # the others learn more slowly
    free = free_running(which, count)
    assert not free.failed, str(free)
    together = resynchronised(which, 16 if which is BOOK else count)
    assert not together.failed, str(together)

    # It was a training worth comparing: it learnt, clipped, and nothing was compared with itself.
    steps = [reference(which)[number] for number in range(count)]
    losses = [float(step["loss"][""]) for step in steps]
    assert np.mean(losses[-8:]) < 0.96 * np.mean(losses[:8])
    clipped = [bool(step["norm"][""] > which.clip_norm) for step in steps]
    assert any(clipped)
    assert which is BOOK or not all(clipped)
    for comparison in (free, together):
        assert comparison.errors.keys() == QUANTITIES
        assert comparison.worst.error == max(errors.max() for errors in comparison.errors.values()) > 0


@pytest.mark.slow
@each_training(BOOK)
def test_jaxs_drift_in_float32_is_of_pytorchs_size(which):
    apart = drift(which, 40)
    assert not apart.failed, str(apart)
    for quantity in ("parameters", "worst parameter"):
        assert all((errors > 0).mean() > 0.9 for errors in apart.curves[quantity].values())
    assert summarize_training(apart).error < summarize_training(apart).bound


@each_training()
def test_both_frameworks_train_alike_to_the_end(which):
    results = [compare(which) for compare in COMPARISONS]
    assert [result.steps for result in results] == [200, 500, 200]
    assert not any(result.failed for result in results), "\n".join(map(str, results))


@each_training()
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_exactly_0_in_pytorch_is_exactly_0_in_jax(which, dtype):
    """Rounding in its place would be as large as any step, once Adam has divided it by its own size."""
    expected = in_torch(which, dtype)
    found = in_jax(which, expected)
    for number in range(3):
        gradients = found.run(draw_batch(which, number))["gradients"]
        zeros = {name: gradient == 0 for name, gradient in expected[number]["gradients"].items()}
        assert any(zero.any() for zero in zeros.values())
        for name, zero in zeros.items():
            np.testing.assert_array_equal(gradients[name] == 0, zero, err_msg=name)


@pytest.mark.parametrize(
    "fault",
    [TRAINING_FAULTS[0], *(pytest.param(fault, marks=pytest.mark.slow) for fault in TRAINING_FAULTS[1:])],
    ids=lambda fault: fault.name,
)
def test_a_planted_fault_is_caught(fault: Fault) -> None:
    with fault.planted():
        comparison = free_running(BOOK, steps=40)
    assert comparison.failed
    assert comparison.errors["loss"].max() > comparison.bound  # it changes what is learnt, not its own place alone
    assert comparison.errors["gradients"][0] < 1e-11  # and a comparison of one forward and backward pass passes


@pytest.mark.slow
def test_optaxs_own_adam_drifts_further_than_pytorchs(monkeypatch):
    """The verdict on float32 can fail: Optax's bias correction, computed in float32, is enough."""
    monkeypatch.setattr(optim, "scale_by_adam", lambda betas, eps: optax.scale_by_adam(*betas, eps))
    assert drift(BOOK, 60).failed


def test_a_missing_tensor_another_shape_and_nan_are_infinitely_far():
    one, nan = np.ones(2), np.array([1.0, np.nan])
    for found, expected in (({}, {"a": one}), ({"a": one, "b": one}, {"a": one}), ({"a": one[:1]}, {"a": one})):
        assert max(tensor_errors(found, expected).values()) == np.inf
    assert tensor_errors({"a": nan}, {"a": one}) == tensor_errors({"a": one}, {"a": nan}) == {"a": np.inf}
    assert tensor_errors({"a": one, "b": 1.5 * one}, {"a": one, "b": one}) == {"a": 0, "b": 0.5}
    assert tensor_errors({"a": one}, {"a": 0 * one}) == {"a": 1.0}


def test_batches_are_ragged_with_a_row_of_padding_and_reproducible():
    for which in TRAININGS:
        first, again, next_epoch = (draw_batch(which, step) for step in (3, 3, 3 + EPOCH))
        jax.tree.map(np.testing.assert_array_equal, first, again)
        assert (first["sources"] == next_epoch["sources"]).all()
        for mask, other in zip(*(jax.tree.leaves(batch["keep_masks"]) for batch in (first, next_epoch)), strict=True):
            assert (mask != other).any()
        assert first["source_lens"][-1] == first["label_lens"][-1] == 0
        assert len(set(first["source_lens"])) > 2
        other = draw_batch(dataclasses.replace(which, seed=1), 3)
        assert (first["sources"] != other["sources"]).any()
