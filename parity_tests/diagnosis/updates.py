"""Find the third place where two programs can differ, after the forward and the backward pass: the optimiser.

PyTorch's optimiser and Optax's transformation get the same weights and the same gradients, step after step. The first
parameter that differs is named, with the settings that explain it: defaults of the same name differ between the two
(AdamW's decay is 1e-2 in PyTorch and 1e-4 in Optax), and so do the places of epsilons.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import optax
import torch

from parity_tests.comparison import relative_error
from parity_tests.diagnosis.symptoms import describe, report
from parity_tests.optimizers import Arrays, JaxOptimizer, MakeOptimizer, TorchOptimizer

BOUND = 1e-11
"""In float64, of max|a − b| / max|b|: each step adds a few units of roundoff to the error of the steps before."""


NO_EPSILON = "the norm is clipped without PyTorch's epsilon of 1e-6 in JAX"


@dataclass(frozen=True)
class UpdateDivergence:
    """Where two optimisers differ first."""

    step: int
    """Counted from 1."""
    parameter: str
    error: float
    symptoms: tuple[str, ...]
    """What the difference between the two updates looks like."""
    traps: tuple[str, ...]
    """Settings of PyTorch's optimiser with which the two agree."""

    def __str__(self) -> str:
        where = (
            f"the optimisers differ in step {self.step} at {self.parameter}: error {self.error:.3g}, bound {BOUND:g}"
        )
        return report(where, self.symptoms, self.traps)


def find_update_divergence(
    make_optimizer: MakeOptimizer,
    transformation: optax.GradientTransformation,
    *,
    clip_norm: float | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    steps: int = 20,
    seed: int = 0,
) -> UpdateDivergence | None:
    """Find the first parameter in which an optimiser of PyTorch and one of Optax differ; None if they agree.

        find_update_divergence(lambda parameters: torch.optim.AdamW(parameters, 1e-3), optax.adamw(1e-3))

    Args:
        make_optimizer: parameters -> PyTorch's optimiser.
        transformation: Optax's, including clipping if there is any.
        clip_norm: PyTorch's gradients are clipped by `torch.nn.utils.clip_grad_norm_` to this norm.
        shapes: of the parameters, by name; by default a matrix and a vector.
        steps: how many to take, in float64, with gradients of very different sizes and some zeros.
        seed: of parameters and gradients.
    """
    shapes = {"weight": (4, 3), "bias": (4,)} if shapes is None else shapes
    rng = np.random.default_rng(seed)
    start = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    gradients = [_draw_gradients(rng, shapes) for _ in range(steps)]
    jax_side = JaxOptimizer(transformation, start)
    in_jax = [jax_side.step(gradient).parameters for gradient in gradients]

    def run(change: Change = lambda optimizer: None, clip_epsilon: float = 1e-6) -> list[Arrays]:
        clip = None if clip_norm is None else partial(clip_to_norm, limit=clip_norm, epsilon=clip_epsilon)
        side = TorchOptimizer(make_optimizer, start, clip)
        change(side.optimizer)
        return [side.step(gradient).parameters for gradient in gradients]

    in_torch = run()
    found = _first_difference(in_jax, in_torch)
    if found is None:
        return None
    step, name = found
    optimizer = make_optimizer([torch.nn.Parameter(torch.zeros(1))])
    traps = [words for words, change in changes(optimizer) if _first_difference(in_jax, run(change)) is None]
    if clip_norm is not None and _first_difference(in_jax, run(clip_epsilon=0.0)) is None:
        traps.append(NO_EPSILON)
    before = in_jax[step - 1][name] if step else start[name]
    symptoms = describe(in_jax[step][name] - before, in_torch[step][name] - before)
    error = relative_error(in_jax[step][name], in_torch[step][name])
    return UpdateDivergence(step + 1, name, error, symptoms, tuple(traps))


def _first_difference(in_jax: list[Arrays], in_torch: list[Arrays]) -> tuple[int, str] | None:
    for step, (a, b) in enumerate(zip(in_jax, in_torch, strict=True)):
        for name in b:
            if not relative_error(a[name], b[name]) <= BOUND:
                return step, name
    return None


def _draw_gradients(rng: np.random.Generator, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """From 1e-6 to 10, so that an epsilon shows; one entry in eight is 0, like that of a word that does not occur."""
    return {
        name: np.asarray(rng.normal(size=shape) * 10.0 ** rng.uniform(-6, 1, shape) * (rng.random(shape) > 1 / 8))
        for name, shape in shapes.items()
    }


def clip_to_norm(parameters: list[torch.nn.Parameter], limit: float, epsilon: float = 1e-6) -> torch.Tensor:
    """`torch.nn.utils.clip_grad_norm_` with a given epsilon."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    for gradient in gradients:
        gradient.mul_((limit / (norm + epsilon)).clamp(max=1.0))
    return norm


ALTERNATIVES: dict[str, tuple[Any, ...]] = {
    "eps": (0.0, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3),
    "weight_decay": (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1),
    "betas": ((0.9, 0.999), (0.9, 0.99), (0.9, 0.98), (0.9, 0.95), (0.95, 0.999)),
    "momentum": (0.0, 0.9, 0.99),
    "dampening": (0.0, 0.1, 0.5, 0.9),
    "alpha": (0.9, 0.95, 0.99, 0.999),
    "lr_decay": (0.0,),
    **dict.fromkeys(("nesterov", "centered", "amsgrad", "decoupled_weight_decay", "maximize"), (False, True)),
}
"""Defaults of the two frameworks, of papers and of older versions."""


Change = Callable[[torch.optim.Optimizer], None]
"""Changes PyTorch's optimiser in place."""


def changes(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Change]]:
    """Yield what may be otherwise in JAX, in words, and the change that does the same to PyTorch's optimiser."""
    groups = optimizer.param_groups
    settings = max(groups, key=lambda group: group.get("weight_decay", 0.0))
    for name, values in ALTERNATIVES.items():
        for value in values:
            if name in settings and settings[name] != value:
                words = f"{name} is {value} in JAX, and {settings[name]} in PyTorch"
                yield words, partial(_set, **{name: value})
    if "decoupled_weight_decay" in settings:
        decoupled = settings["decoupled_weight_decay"]
        how = "added to the gradient" if decoupled else "decoupled"
        for value in ALTERNATIVES["weight_decay"]:
            if value not in (0.0, settings["weight_decay"]):
                change = partial(_set, weight_decay=value, decoupled_weight_decay=not decoupled)
                yield f"weight_decay is {value} and {how} in JAX", change
    if "initial_accumulator_value" in settings:
        yield "epsilon is inside the root in JAX", _move_epsilon_inside
    if "betas" in settings:
        yield "the moments are not corrected for their bias in JAX", _leave_bias
    if settings.get("weight_decay"):
        if len({group["weight_decay"] for group in groups}) > 1:
            yield "weight decay acts on all parameters in JAX, and on some in PyTorch", _decay_all
        yield "weight decay leaves vectors (biases, norms) alone in JAX, and not in PyTorch", _decay_matrices


def _set(optimizer: torch.optim.Optimizer, **settings: Any) -> None:
    """Change settings; the decay only where there is one, unless there is none at all."""
    decays = any(group.get("weight_decay") for group in optimizer.param_groups)
    for group in optimizer.param_groups:
        spared = {"weight_decay"} if decays and not group.get("weight_decay") else set[str]()
        group.update({name: value for name, value in settings.items() if name not in spared})


def _decay_all(optimizer: torch.optim.Optimizer) -> None:
    decay = max(group["weight_decay"] for group in optimizer.param_groups)
    for group in optimizer.param_groups:
        group["weight_decay"] = decay


def _decay_matrices(optimizer: torch.optim.Optimizer) -> None:
    for group in list(optimizer.param_groups):
        vectors = [parameter for parameter in group["params"] if parameter.dim() < 2]
        group["params"] = [parameter for parameter in group["params"] if parameter.dim() >= 2]
        optimizer.add_param_group({**group, "params": vectors, "weight_decay": 0.0})


def _leave_bias(optimizer: torch.optim.Optimizer) -> None:
    """Start from a late step, at which Adam's correction is 1."""
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        names = ("exp_avg", "exp_avg_sq")
        optimizer.state[parameter].update({name: torch.zeros_like(parameter) for name in names}, step=torch.tensor(1e9))


def _move_epsilon_inside(optimizer: torch.optim.Optimizer) -> None:
    """√(s + ε) in place of √s + ε, of Adagrad's sum of squares."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter]["sum"] += group["eps"]
        group["eps"] = 0.0
