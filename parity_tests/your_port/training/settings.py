"""What may be otherwise in JAX's optimiser than in PyTorch's, as rows: words, and a change that does it to PyTorch's.

Defaults of the same name differ between the two frameworks (AdamW's decay is 1e-2 in PyTorch and 1e-4 in Optax), and so
do the places of epsilons, and what NAdam and AMSGrad mean.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import nn

from parity_tests.your_port.training.sides import TorchTraining
from parity_tests.your_port.weights.positions import Arrays

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Clip = Callable[[list[nn.Parameter]], Any]
"""Clips the gradients of parameters in place."""


def nothing(*_: Any) -> None:
    """Change nothing."""


class Row(NamedTuple):
    """A way in which JAX's updates may be otherwise than PyTorch's."""

    words: str
    change: Callable[[TorchTraining], None] = nothing
    """Makes PyTorch's optimiser do the same."""
    clip: Clip | None = None
    """In the place of PyTorch's clipping."""
    rates: tuple[float, ...] = ()
    """In the place of PyTorch's learning rates, by step."""

    def beside(self, other: "Row") -> "Row":
        """Return both mistakes together."""

        def change(side: TorchTraining) -> None:
            other.change(side)
            self.change(side)

        return Row(f"{self.words}, and {other.words}", change, self.clip or other.clip, self.rates)


ALTERNATIVES: dict[str, tuple[Any, ...]] = {
    "eps": (0.0, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3),
    "weight_decay": (0.0, *(float(f"{digit}e-{power}") for power in range(1, 6) for digit in (1, 2, 3, 5))),
    "betas": ((0.9, 0.999), (0.9, 0.99), (0.9, 0.98), (0.9, 0.95), (0.95, 0.999)),
    "momentum": (0.0, 0.9, 0.99),
    "dampening": (0.0, 0.1, 0.5, 0.9),
    "alpha": (0.9, 0.95, 0.99, 0.999),
    "lr_decay": (0.0,),
    **dict.fromkeys(("nesterov", "centered", "amsgrad", "decoupled_weight_decay", "maximize"), (False, True)),
}
"""Defaults of the two frameworks, of papers and of older versions."""
ROOTS = (1e-16, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6)
"""Epsilons inside the root."""
LIMITS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)


def settings(side: TorchTraining) -> Iterator[Row]:
    """Yield what may be otherwise in the optimiser."""
    now = max(side.optimizer.param_groups, key=lambda group: group.get("weight_decay", 0.0))
    for name, values in ALTERNATIVES.items():
        for value in values:
            yield from setting(side, name, value)
    if "decoupled_weight_decay" in now:
        decoupled = now["decoupled_weight_decay"]
        how = "added to the gradient" if decoupled else "decoupled"
        for value in ALTERNATIVES["weight_decay"]:
            if value not in (0.0, now["weight_decay"]):
                change = partial(_set, weight_decay=value, decoupled_weight_decay=not decoupled)
                yield Row(f"weight_decay is {value} and {how} in JAX", change)
    yield from _formulas(side.optimizer, now)
    yield from _decays(side)


def setting(side: TorchTraining, name: str, value: Any) -> Iterator[Row]:
    """Yield another value of one setting."""
    now = max(side.optimizer.param_groups, key=lambda group: group.get("weight_decay", 0.0))
    if name in now and now[name] != value:
        yield Row(f"{name} is {value} in JAX, and {now[name]} in PyTorch", partial(_set, **{name: value}))


# Where the decay acts


def _decays(side: TorchTraining) -> Iterator[Row]:
    """Yield the other masks of weight decay."""
    groups = side.optimizer.param_groups
    given = {p for group in groups for p in group["params"]}
    decayed = {p for group in groups for p in group["params"] if group.get("weight_decay")}
    if not decayed:
        return
    matrices = {p for p in given if p.dim() > 1}
    embeddings = {m.weight for m in side.model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    frozen = {p for p in side.names if not p.requires_grad}
    masks = {
        "acts on all parameters in JAX, and on some in PyTorch": given,
        "leaves vectors (biases, norms) alone in JAX, and not in PyTorch": decayed & matrices,
        "acts in JAX on those parameters that PyTorch spares, and on no others: the mask is inverted": given - decayed,
        "leaves embeddings alone in JAX, and not in PyTorch": decayed - embeddings,
        "acts on embeddings in JAX, and not in PyTorch": decayed | embeddings & given,
        "acts in JAX also on frozen parameters": decayed | frozen,
    }
    for words, mask in masks.items():
        if mask != decayed and mask:
            yield Row(f"weight decay {words}", partial(_decay_where, names={side.names[p] for p in mask}))
    yield Row("weight decay acts in JAX also on parameters without a gradient, which PyTorch leaves alone", _give_zeros)


def _decay_where(side: TorchTraining, names: set[str]) -> None:
    """Let the decay act on these parameters alone."""
    optimizer, last = side.optimizer, side.optimizer.param_groups[0]
    decay = max(group["weight_decay"] for group in optimizer.param_groups)
    given = {p for group in optimizer.param_groups for p in group["params"]}
    for group in list(optimizer.param_groups):
        mine = [p for p in group["params"] if side.names[p] in names]
        group["params"] = [p for p in group["params"] if side.names[p] not in names]
        optimizer.add_param_group({**group, "params": mine, "weight_decay": decay})
        group["weight_decay"] = 0.0
    new = [p for p, name in side.names.items() if name in names and p not in given]
    if new:
        optimizer.add_param_group({**last, "params": new, "weight_decay": decay})
        _give_zeros(side, new)


def _give_zeros(side: TorchTraining, parameters: Iterable[nn.Parameter] = ()) -> None:
    """Let parameters without a gradient have one of zeros, as in JAX; by default all."""
    filled = [*parameters] or [p for group in side.optimizer.param_groups for p in group["params"]]

    def fill(*_: Any) -> None:
        for p in filled:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad

    side.optimizer.register_step_pre_hook(fill)


def stand_still(side: TorchTraining, names: set[str]) -> None:
    """Take parameters from the optimiser."""
    for group in side.optimizer.param_groups:
        group["params"] = [p for p in group["params"] if side.names[p] not in names]


def _set(side: TorchTraining, **values: Any) -> None:
    """Change settings; the decay only where there is one, unless there is none at all."""
    decays = any(group.get("weight_decay") for group in side.optimizer.param_groups)
    for group in side.optimizer.param_groups:
        spared = {"weight_decay"} if decays and not group.get("weight_decay") else set[str]()
        group.update({name: value for name, value in values.items() if name not in spared})


def start_from(side: TorchTraining, state: Mapping[str, Arrays], count: float) -> None:
    """Let the optimiser start from given moments, and count its steps from `count`."""
    for p, name in side.names.items():
        moments = {quantity: torch.tensor(arrays[name]) for quantity, arrays in state.items() if name in arrays}
        side.optimizer.state[p].update(moments, step=torch.tensor(count))


# Other formulas


def _formulas(optimizer: torch.optim.Optimizer, now: Mapping[str, Any]) -> Iterator[Row]:
    """Yield Optax's formulas of Adam's family, of RMSprop and of Adagrad."""
    kind = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.Adam | torch.optim.NAdam):
        for name in ("adam", "nadam", "amsgrad"):
            change = partial(_use_formula, nesterov=name == "nadam", amsgrad=name == "amsgrad")
            yield Row(f"JAX takes the steps of optax.{name}, and PyTorch those of {kind}", change)
        uncorrected = partial(_use_formula, corrected=False)
        yield Row("the moments are not corrected for their bias in JAX", uncorrected)
    if isinstance(optimizer, torch.optim.Adam | torch.optim.NAdam | torch.optim.RMSprop | torch.optim.Adagrad):
        for root, eps in product(dict.fromkeys((now["eps"], *ROOTS)), dict.fromkeys((now["eps"], 0.0))):
            words = f"eps_root is {root:g} and eps is {eps:g} in JAX"
            if root == now["eps"] and not eps:
                words = "epsilon is inside the root in JAX"
            yield Row(words, partial(_use_formula, root=root, eps=eps))


def _use_formula(side: TorchTraining, **how: Any) -> None:
    side.optimizer.step = partial(_step, side.optimizer, **how)  # type: ignore[method-assign]


def _step(
    optimizer: torch.optim.Optimizer,
    root: float = 0.0,
    eps: float | None = None,
    nesterov: bool = False,
    amsgrad: bool = False,
    corrected: bool = True,
) -> None:
    """Step as Optax does: lr · m / (√(v + root) + eps), with or without a first moment and its correction."""
    pairs = [(group, p) for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    for group, p in pairs:
        state, adam = optimizer.state[p], "betas" in group
        b1, b2 = group["betas"] if adam else (0.0, group.get("alpha", 1.0))
        second = "exp_avg_sq" if adam else "square_avg" if "alpha" in group else "sum"
        decoupled = group.get("decoupled_weight_decay", False)
        g = p.grad if decoupled else p.grad + group["weight_decay"] * p.detach()
        step = state["step"] = state.get("step", 0) + 1
        m = state["exp_avg"] = b1 * state.get("exp_avg", 0) + (1 - b1) * g
        v = state[second] = b2 * state.get(second, 0) + (1 - b2 or 1.0) * g * g
        if adam and corrected:
            m = b1 * m / (1 - b1 ** (step + 1)) + (1 - b1) * g / (1 - b1**step) if nesterov else m / (1 - b1**step)
            v = v / (1 - b2**step)
        if amsgrad:
            v = state["highest"] = torch.maximum(state.get("highest", v), v)
        if group.get("centered"):
            state["grad_avg"] = b2 * state.get("grad_avg", 0) + (1 - b2) * g
            v = v - state["grad_avg"] ** 2
        update = m / ((v + root).sqrt() + (group["eps"] if eps is None else eps))
        if group.get("momentum"):
            update = state["momentum_buffer"] = group["momentum"] * state.get("momentum_buffer", 0) + update
        with torch.no_grad():
            p.sub_(group["lr"] * (update.nan_to_num() + decoupled * group["weight_decay"] * p))


# Clipping


def clippings(kind: str, limit: float, epsilon: float, linear: bool) -> Iterator[Row]:
    """Yield other clippings than PyTorch's, which is by `kind` to `limit`, with an epsilon.

    linear: the optimiser keeps nothing, so clipping after it is clipping before it.
    """
    here = f"PyTorch clips their {kind} to {limit:g}" if kind else "PyTorch does not clip them"
    if kind:
        yield Row(f"the gradients are not clipped in JAX; {here}", clip=nothing)
    if kind == "norm" and epsilon:
        yield without_epsilon(limit)
    for other in sorted({*LIMITS, *([limit] if kind else [])}):
        for eps in (0.0, 1e-6) if (kind, other) != ("norm", limit) else ():
            words = f"the norm of the gradients is clipped to {other:g} in JAX; {here}"
            yield Row(words, clip=partial(clip_to_norm, limit=other, epsilon=eps))
        if (kind, other) != ("value", limit):
            by_value = partial(nn.utils.clip_grad_value_, clip_value=other)
            yield Row(f"each entry of a gradient is clipped to ±{other:g} in JAX; {here}", clip=by_value)
        alone = f"the norm of each gradient on its own is clipped to {other:g} in JAX; {here}"
        yield Row(alone, clip=partial(_clip_each, limit=other))
        lates = {} if linear else {"before the learning rate": True, "with the learning rate": False}
        for words, by_rate in lates.items():
            late = f"the norm of the update, {words}, is clipped to {other:g} in JAX, and not that of the gradients"
            yield Row(f"{late}; {here}", partial(_clip_update, limit=other, by_rate=by_rate), clip=nothing)


def without_epsilon(limit: float) -> Row:
    """Clip as Optax does, which adds no epsilon to the norm."""
    words = "the norm is clipped without PyTorch's epsilon of 1e-6 in JAX"
    return Row(words, clip=partial(clip_to_norm, limit=limit, epsilon=0.0))


def clip_to_norm(parameters: list[nn.Parameter], limit: float, epsilon: float = 1e-6) -> torch.Tensor:
    """`torch.nn.utils.clip_grad_norm_` with a given epsilon."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    for gradient in gradients:
        gradient.mul_((limit / (norm + epsilon)).clamp(max=1.0))
    return norm


def _clip_each(parameters: list[nn.Parameter], limit: float) -> None:
    for parameter in parameters:
        clip_to_norm([parameter], limit, 0.0)


def _clip_update(side: TorchTraining, limit: float, by_rate: bool) -> None:
    """Clip what the optimiser adds to the parameters, divided by the learning rate or not."""
    optimizer, before = side.optimizer, dict[nn.Parameter, torch.Tensor]()

    def remember(*_: Any) -> None:
        before.update({p: p.detach().clone() for group in optimizer.param_groups for p in group["params"]})

    def clip(*_: Any) -> None:
        rates = {p: group["lr"] if by_rate else 1.0 for group in optimizer.param_groups for p in group["params"]}
        norm = nn.utils.get_total_norm([(p.detach() - before[p]) / (rates[p] or 1.0) for p in before])
        with torch.no_grad():
            for p, old in before.items():
                p.copy_(old + (p - old) * (limit / norm).clamp(max=1.0))

    optimizer.register_step_pre_hook(remember)
    optimizer.register_step_post_hook(clip)
