"""The settings of PyTorch's optimisers that may be otherwise in JAX, and how PyTorch's is changed to have them.

Defaults of the same name differ between the two frameworks (AdamW's decay is 1e-2 in PyTorch and 1e-4 in Optax), and so
do the places of epsilons.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch

MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]

NO_EPSILON = "the norm is clipped without PyTorch's epsilon of 1e-6 in JAX"

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
    """√(s + ε) in place of √s + ε, of Adagrad's sum of squares: the sum has the ε while a step is taken."""
    given = [(parameter, group["eps"]) for group in optimizer.param_groups for parameter in group["params"]]
    _set(optimizer, eps=0.0)

    def add(sign: int, *_: Any) -> None:
        for parameter, eps in given:
            optimizer.state[parameter]["sum"] += sign * eps

    optimizer.register_step_pre_hook(partial(add, 1))
    optimizer.register_step_post_hook(partial(add, -1))


def clip_to_norm(parameters: list[torch.nn.Parameter], limit: float, epsilon: float = 1e-6) -> torch.Tensor:
    """`torch.nn.utils.clip_grad_norm_` with a given epsilon."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    for gradient in gradients:
        gradient.mul_((limit / (norm + epsilon)).clamp(max=1.0))
    return norm
