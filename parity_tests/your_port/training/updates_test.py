"""Two optimisers that differ in one known thing: the step, the parameter and that thing are named."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
import torch

from parity_tests import find_update_divergence

RATE = 1e-2


def with_moments_of_adam(step: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]) -> optax.GradientTransformation:
    """Make an optimiser that steps by `step` (m, v, number of the step)."""
    adam = optax.scale_by_adam()

    def update(gradients: Any, state: Any, params: Any = None) -> Any:
        _, state = adam.update(gradients, state)
        return jax.tree.map(lambda m, v: -RATE * step(m, v, state.count), state.mu, state.nu), state

    return optax.GradientTransformation(adam.init, update)


@pytest.mark.parametrize(
    ("optimizer", "transformation"),
    [
        (lambda p: torch.optim.SGD(p, RATE, momentum=0.9), optax.sgd(RATE, 0.9)),
        (lambda p: torch.optim.Adam(p, RATE), optax.adam(RATE)),
        (lambda p: torch.optim.AdamW(p, RATE), optax.adamw(RATE, weight_decay=1e-2)),
        (lambda p: torch.optim.SGD(p, RATE, momentum=0.9, nesterov=True), optax.sgd(RATE, 0.9, nesterov=True)),
        (
            lambda p: torch.optim.RMSprop(p, RATE, momentum=0.9, centered=True),
            optax.rmsprop(RATE, 0.99, momentum=0.9, centered=True, eps_in_sqrt=False),
        ),
        (lambda p: torch.optim.Adagrad(p, RATE, initial_accumulator_value=0.1, eps=0), optax.adagrad(RATE, eps=0)),
        (lambda p: torch.optim.Adamax(p, RATE), optax.adamax(RATE)),
        (lambda p: torch.optim.Adadelta(p, RATE), optax.adadelta(RATE, 0.9, 1e-6)),
    ],
)
def test_what_means_the_same_does_not_part(optimizer: Callable[..., Any], transformation: Any) -> None:
    assert find_update_divergence(optimizer, transformation) is None


@pytest.mark.parametrize(
    ("optimizer", "transformation", "cause"),
    [
        (
            lambda p: torch.optim.AdamW(p, RATE),
            optax.adamw(RATE),
            "weight_decay is 0.0001 in JAX, and 0.01 in PyTorch",
        ),
        (
            lambda p: torch.optim.Adam(p, RATE, weight_decay=1e-2),
            optax.adamw(RATE, weight_decay=1e-2),
            "decoupled_weight_decay is True in JAX, and False in PyTorch",
        ),
        (
            lambda p: torch.optim.Adam(p, RATE),
            optax.adamw(RATE),
            "weight_decay is 0.0001 in JAX, as that of AdamW, and 0 in PyTorch",
        ),
        (lambda p: torch.optim.Adam(p, RATE), optax.adam(RATE, eps=1e-6), "eps is 1e-06 in JAX, and 1e-08 in PyTorch"),
        (
            lambda p: torch.optim.SGD(p, RATE, momentum=0.9),
            optax.sgd(RATE, 0.9, nesterov=True),
            "nesterov is True in JAX, and False in PyTorch",
        ),
        (
            lambda p: torch.optim.SGD(p, RATE, momentum=0.9, dampening=0.1),
            optax.sgd(RATE, 0.9),
            "dampening is 0.0 in JAX, and 0.1 in PyTorch",
        ),
        (
            lambda p: torch.optim.NAdam(p, RATE),
            optax.nadam(RATE),
            "JAX's steps are those of optax.nadam, and PyTorch's those of NAdam",
        ),
        (
            lambda p: torch.optim.Adam(p, RATE, amsgrad=True),
            optax.amsgrad(RATE),
            "JAX's steps are those of optax.amsgrad, and PyTorch's those of Adam",
        ),
        (
            lambda p: torch.optim.Adam(p, RATE),
            with_moments_of_adam(lambda m, v, n: m / (jnp.sqrt(v) + 1e-8)),
            "JAX's steps are those of Adam without correcting the bias of its moments, as BertAdam, and PyTorch's "
            "those of Adam",
        ),
        (
            lambda p: torch.optim.AdamW(p, RATE, weight_decay=0.0),
            with_moments_of_adam(lambda m, v, n: m / (1 - 0.9**n) * jnp.sqrt(1 - 0.999**n) / (jnp.sqrt(v) + 1e-8)),
            "JAX's steps are those of Keras's Adam, which adds eps before it corrects the bias, and PyTorch's those "
            "of AdamW",
        ),
        (
            lambda p: torch.optim.Adam(p, RATE, maximize=True),
            optax.adam(RATE),
            "maximize is False in JAX, and True in PyTorch",
        ),
        (
            lambda p: torch.optim.SGD(p, RATE, momentum=0.9),
            optax.sgd(RATE, 0.8),
            "momentum is 0.8 in JAX, and 0.9 in PyTorch",
        ),
    ],
)
def test_another_setting_is_named(optimizer: Callable[..., Any], transformation: Any, cause: str) -> None:
    found = find_update_divergence(optimizer, transformation)
    assert found is not None
    assert found.causes == (cause,)
    assert cause in str(found)


def test_another_rate_looks_like_a_factor_and_is_named() -> None:
    found = find_update_divergence(lambda p: torch.optim.SGD(p, RATE), optax.sgd(3 * RATE), shapes={"a.b": (2, 3)})
    assert found is not None
    assert (found.step, found.tensor) == (1, "a/b")
    assert found.causes == ("the learning rate is 0.03 in JAX and 0.01 in PyTorch at step 1",)
    assert found.symptoms[0].startswith("JAX's is 3 times PyTorch's")


@pytest.mark.parametrize(
    "transformation",
    [
        optax.lion(RATE),
        pytest.param(optax.adafactor(RATE), marks=pytest.mark.slow),
        pytest.param(optax.lamb(RATE), marks=pytest.mark.slow),
    ],
)
def test_an_optimiser_of_another_kind_has_no_cause(transformation: Any) -> None:
    found = find_update_divergence(lambda p: torch.optim.Adam(p, RATE), transformation)
    assert found is not None
    assert found.causes == ()


def test_causes_that_no_step_tells_apart_are_all_named() -> None:
    clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(RATE))
    found = find_update_divergence(lambda p: torch.optim.Adam(p, RATE), clipped, shapes={"weight": (4, 3)})
    assert str(found).splitlines()[-3:] == [
        "  explained by any of these, which the steps do not tell apart:",
        "    the norm of the gradients is clipped to 1 in JAX; PyTorch does not clip them",
        "    the norm of each gradient on its own is clipped to 1 in JAX; PyTorch does not clip them",
    ]
