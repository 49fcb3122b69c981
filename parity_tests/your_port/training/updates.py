"""Find the third place where two programs can differ, after the forward and the backward pass: the optimiser.

PyTorch's optimiser and Optax's transformation get the same weights and the same gradients, step after step. That is a
training whose loss is linear in its parameters.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np
import optax
import torch

from parity_tests.your_port.training.comparison import compare_training
from parity_tests.your_port.training.report import TrainingDivergence

STEPS = 20
BOUND = 1e-11
"""In float64, of max|a − b| / max|b|: each step adds a few units of roundoff to the error of the steps before."""


def find_update_divergence(
    make_optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer],
    transformation: optax.GradientTransformation,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> TrainingDivergence | None:
    """Find the first parameter in which an optimiser of PyTorch and one of Optax differ; None if they agree.

    They take 20 steps in float64, with gradients of very different sizes and some zeros.

        find_update_divergence(lambda parameters: torch.optim.AdamW(parameters, 1e-3), optax.adamw(1e-3))

    Args:
        make_optimizer: parameters -> PyTorch's optimiser.
        transformation: Optax's, including clipping if there is any.
        shapes: of the parameters, by name (a dot becomes a slash); by default a matrix and a vector.
    """
    shapes = {"weight": (4, 3), "bias": (4,)} if shapes is None else shapes
    rng = np.random.default_rng(0)
    start = {name.replace(".", "/"): rng.normal(size=shape) for name, shape in shapes.items()}
    gradients = [{name: _draw_gradient(rng, x.shape) for name, x in start.items()} for _ in range(STEPS)]

    def in_torch(weights: Any) -> Any:
        model = torch.nn.ParameterDict(weights)
        optimizer = make_optimizer(model.parameters())

        def step(batch: Any) -> dict[str, Any]:
            optimizer.zero_grad()
            sum((model[name] * gradient).sum() for name, gradient in batch.items()).backward()
            optimizer.step()
            return {}

        return model, optimizer, step

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        updates, state = transformation.update(batch, state, params)
        return optax.apply_updates(params, updates), state, {"gradients": batch}

    def in_jax(weights: Any) -> Any:
        params = jax.device_put(weights)
        return params, transformation.init(params), step

    return compare_training(in_torch, in_jax, start, gradients, STEPS, resync=False, bound=BOUND).divergence


def _draw_gradient(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """From 1e-6 to 10, so that an epsilon shows; one entry in eight is 0, like that of a word that does not occur."""
    return np.asarray(rng.normal(size=shape) * 10.0 ** rng.uniform(-6, 1, shape) * (rng.random(shape) > 1 / 8))
