"""Step an optimiser of either framework over parameters given by name, so that both can be compared after each step."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import torch

Arrays = Mapping[str, np.ndarray]
MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
Clip = Callable[[list[torch.nn.Parameter]], torch.Tensor]
"""Clips the gradients in place, and returns their norm."""


class Update(NamedTuple):
    """The results of one step, by parameter name."""

    norm: Arrays
    """Of all gradients together, before clipping; empty without clipping."""
    clipped: Arrays
    exp_avg: Arrays
    """Adam's first moment; empty for other optimisers."""
    exp_avg_sq: Arrays
    parameters: Arrays


class TorchOptimizer:
    """An optimiser of PyTorch and its parameters."""

    def __init__(self, make_optimizer: MakeOptimizer, start: Arrays, clip: Clip | None = None) -> None:
        self.parameters = {name: torch.nn.Parameter(torch.tensor(x)) for name, x in start.items()}
        self.optimizer = make_optimizer(self.parameters.values())
        self.clip = clip

    def step(self, gradients: Arrays) -> Update:
        """Clip, and take one step."""
        for name, parameter in self.parameters.items():
            parameter.grad = torch.tensor(gradients[name])
        norm = {} if self.clip is None else {"norm": self.clip(list(self.parameters.values())).numpy()}
        clipped = self._named(lambda parameter: parameter.grad)
        self.optimizer.step()
        exp_avg, exp_avg_sq = (
            self._named(lambda parameter, key=key: self.optimizer.state[parameter].get(key))
            for key in ("exp_avg", "exp_avg_sq")
        )
        return Update(norm, clipped, exp_avg, exp_avg_sq, self._named(lambda parameter: parameter))

    def _named(self, read: Callable[..., Any]) -> dict[str, np.ndarray]:
        """Copies, since PyTorch goes on to write into its own tensors."""
        tensors = {name: read(parameter) for name, parameter in self.parameters.items()}
        return {name: tensor.detach().numpy().copy() for name, tensor in tensors.items() if tensor is not None}


class JaxOptimizer:
    """An Optax transformation and its parameters."""

    def __init__(
        self,
        transformation: optax.GradientTransformation,
        start: Arrays,
        clip: optax.GradientTransformation | None = None,
    ) -> None:
        self.wide = any(x.dtype == np.float64 for x in start.values())
        self.update = _program(transformation, clip)
        with jax.enable_x64(self.wide):
            self.parameters: Any = jax.device_put(dict(start))
            self.state = transformation.init(self.parameters)

    def step(self, gradients: Arrays) -> Update:
        """Clip, and take one step."""
        with jax.enable_x64(self.wide):
            norm, clipped, self.state, self.parameters = self.update(dict(gradients), self.state, self.parameters)
            mu, nu = (optax.tree.get(self.state, key, default={}) for key in ("mu", "nu"))
            norms = {} if norm is None else {"norm": norm}
            return Update(*jax.device_get((norms, clipped, mu, nu, self.parameters)))

    def take_over(self, update: Update) -> None:
        """Go on from the parameters and moments of another optimiser after as many steps."""
        with jax.enable_x64(self.wide):
            self.parameters = jax.device_put(dict(update.parameters))
            self.state = optax.tree.set(self.state, mu=dict(update.exp_avg), nu=dict(update.exp_avg_sq))


@cache
def _program(transformation: optax.GradientTransformation, clip: optax.GradientTransformation | None) -> Any:
    """A compiled function (gradients, state, parameters) -> (norm, clipped, state, parameters)."""

    @jax.jit
    def update(gradients: Any, state: Any, parameters: Any) -> tuple[Any, ...]:
        norm = None if clip is None else optax.tree.norm(gradients)
        if clip is not None:
            gradients, _ = clip.update(gradients, clip.init(parameters))
        updates, state = transformation.update(gradients, state, parameters)
        return norm, gradients, state, optax.apply_updates(parameters, updates)

    return update
