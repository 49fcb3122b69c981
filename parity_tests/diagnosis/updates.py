"""The third place where two programs can part, after the forward and the backward pass: the optimiser.

PyTorch's optimiser and Optax's transformation are given the same weights and the same gradients, step after step. The
first parameter that differs is named, with the settings that explain it: defaults of the same name differ between the
two (AdamW's decay is 1e-2 in PyTorch and 1e-4 in Optax), and so do places of epsilons.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
import torch

from parity_tests.compare import relative_error
from parity_tests.diagnosis.symptoms import describe

MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
BOUND = 1e-11
"""In float64, of max|a − b| / max|b|: each step adds a few units of roundoff to what the steps before left."""


@dataclass(frozen=True)
class UpdateDivergence:
    """Where two optimisers part."""

    step: int
    """Counted from 1."""
    parameter: str
    error: float
    symptoms: tuple[str, ...]
    """What the difference between the two parameters looks like."""
    traps: tuple[str, ...]
    """Settings of PyTorch's optimiser with which the two agree."""

    def __str__(self) -> str:
        return "\n".join(
            [
                f"the optimisers part in step {self.step} at {self.parameter}: error {self.error:.3g}, bound {BOUND:g}",
                *(f"  looks like: {symptom}" for symptom in self.symptoms),
                *(f"  explained by: {trap}" for trap in self.traps),
            ]
        )


@dataclass(frozen=True)
class _Variation:
    """PyTorch's side with one thing changed, or none."""

    name: str
    settings: Mapping[str, Any]
    """Of every parameter group."""
    clip_epsilon: float = 1e-6
    """That of `torch.nn.utils.clip_grad_norm_`."""
    epsilon_inside: bool = False
    """√(v + ε) in place of √v + ε, of a sum of squares."""


def find_update_divergence(
    make_optimizer: MakeOptimizer,
    transformation: optax.GradientTransformation,
    *,
    clip_norm: float | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    steps: int = 20,
    seed: int = 0,
) -> UpdateDivergence | None:
    """The first parameter in which an optimiser of PyTorch's and one of Optax's differ; None if they agree.

        find_update_divergence(lambda parameters: torch.optim.AdamW(parameters, 1e-3), optax.adamw(1e-3))

    Args:
        make_optimizer: parameters -> PyTorch's optimiser.
        transformation: Optax's, clipping included if there is any.
        clip_norm: PyTorch's gradients are clipped by `torch.nn.utils.clip_grad_norm_` to this norm.
        shapes: of the parameters, by name; by default a matrix and a vector.
        steps: how many are taken, in float64, with gradients of very different sizes and some zeros.
        seed: of parameters and gradients.
    """
    shapes = {"weight": (4, 3), "bias": (4,)} if shapes is None else shapes
    rng = np.random.default_rng(seed)
    start = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    gradients = [_draw_gradients(rng, shapes) for _ in range(steps)]
    ours = _run_optax(transformation, start, gradients)

    def first(variation: _Variation) -> tuple[int, str] | None:
        twin = _run_torch(make_optimizer, start, gradients, clip_norm, variation)
        for step, (a, b) in enumerate(zip(ours, twin, strict=True)):
            for name in shapes:
                if not relative_error(a[name], b[name]) <= BOUND:
                    return step, name
        return None

    found = first(_Variation("as it is", {}))
    if found is None:
        return None
    step, name = found
    twin = _run_torch(make_optimizer, start, gradients, clip_norm, _Variation("as it is", {}))
    settings = make_optimizer([torch.nn.Parameter(torch.zeros(1))]).param_groups[0]
    traps = tuple(v.name for v in _variations(settings, clip_norm is not None) if first(v) is None)
    before = ours[step - 1][name] if step else start[name]
    symptoms = describe(ours[step][name] - before, twin[step][name] - before)
    return UpdateDivergence(step + 1, name, relative_error(ours[step][name], twin[step][name]), symptoms, traps)


def _draw_gradients(rng: np.random.Generator, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """From 1e-6 to 10, so that an epsilon shows; one entry in eight is 0, as of a word that does not occur."""
    return {
        name: np.asarray(rng.normal(size=shape) * 10.0 ** rng.uniform(-6, 1, shape) * (rng.random(shape) > 1 / 8))
        for name, shape in shapes.items()
    }


def _run_optax(
    transformation: optax.GradientTransformation,
    start: Mapping[str, np.ndarray],
    gradients: list[dict[str, np.ndarray]],
) -> list[dict[str, np.ndarray]]:
    """The parameters after each step."""
    with jax.enable_x64(True):
        parameters: Any = {name: jax.numpy.asarray(x) for name, x in start.items()}
        state = transformation.init(parameters)

        @jax.jit
        def take(parameters: Any, state: Any, gradient: Any) -> Any:
            updates, state = transformation.update(gradient, state, parameters)
            return optax.apply_updates(parameters, updates), state

        after = []
        for gradient in gradients:
            parameters, state = take(parameters, state, gradient)
            after.append({name: np.asarray(x) for name, x in parameters.items()})
        return after


def _run_torch(
    make_optimizer: MakeOptimizer,
    start: Mapping[str, np.ndarray],
    gradients: list[dict[str, np.ndarray]],
    clip_norm: float | None,
    variation: _Variation,
) -> list[dict[str, np.ndarray]]:
    """The parameters after each step."""
    parameters = {name: torch.nn.Parameter(torch.tensor(x)) for name, x in start.items()}
    optimizer = make_optimizer(parameters.values())
    for group in optimizer.param_groups:
        epsilon = group.get("eps", 0.0)
        group.update(variation.settings)
        if variation.epsilon_inside:
            group["eps"] = 0.0
            for parameter in group["params"]:
                optimizer.state[parameter]["sum"] += epsilon
    after = []
    for gradient in gradients:
        for name, parameter in parameters.items():
            parameter.grad = torch.tensor(gradient[name])
        if clip_norm is not None:
            _clip(parameters.values(), clip_norm, variation.clip_epsilon)
        optimizer.step()
        after.append({name: parameter.detach().numpy().copy() for name, parameter in parameters.items()})
    return after


def _clip(parameters: Iterable[torch.nn.Parameter], clip_norm: float, epsilon: float) -> None:
    """`torch.nn.utils.clip_grad_norm_`, its epsilon at choice."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    for gradient in gradients:
        gradient.mul_((clip_norm / (norm + epsilon)).clamp(max=1.0))


ALTERNATIVES: dict[str, tuple[Any, ...]] = {
    "eps": (0.0, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3),
    "weight_decay": (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1),
    "betas": ((0.9, 0.999), (0.9, 0.99), (0.9, 0.98), (0.9, 0.95), (0.95, 0.999)),
    "momentum": (0.0, 0.9, 0.99),
    "dampening": (0.0, 0.1, 0.5, 0.9),
    "alpha": (0.9, 0.95, 0.99, 0.999),
    "lr_decay": (0.0,),
    "nesterov": (False, True),
    "centered": (False, True),
    "amsgrad": (False, True),
    "decoupled_weight_decay": (False, True),
    "maximize": (False, True),
}
"""Settings that the two frameworks, papers and older versions have as defaults."""


def _variations(settings: Mapping[str, Any], clipped: bool) -> Iterator[_Variation]:
    for name, values in ALTERNATIVES.items():
        for value in values:
            if name in settings and settings[name] != value:
                yield _Variation(f"{name} is {value} in JAX, and {settings[name]} in PyTorch", {name: value})
    decay, decoupled = settings.get("weight_decay"), settings.get("decoupled_weight_decay")
    if decay is not None and decoupled is not None:
        for value in ALTERNATIVES["weight_decay"]:
            if value not in (0.0, decay):
                changed = {"weight_decay": value, "decoupled_weight_decay": not decoupled}
                how = "added to the gradient" if decoupled else "decoupled"
                yield _Variation(f"weight_decay is {value} and {how} in JAX", changed)
    if "initial_accumulator_value" in settings:
        yield _Variation("epsilon is inside the root in JAX", {}, epsilon_inside=True)
    if clipped:
        yield _Variation("the norm is clipped without PyTorch's epsilon of 1e-6 in JAX", {}, clip_epsilon=0.0)
