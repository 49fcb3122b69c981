"""What may be otherwise in JAX's optimiser than in PyTorch's, as rows: words, and a change that does it to PyTorch's.

Defaults of the same name differ between the two frameworks (AdamW's decay is 1e-2 in PyTorch and 1e-4 in Optax), and so
do the places of epsilons, and what NAdam and AMSGrad mean. A change hangs hooks on the optimiser's step; the rest of
PyTorch's training, such as its schedule, goes on as it was written.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from parity_tests.your_port.training.sides import TorchTraining

Groups = list[dict[str, Any]]
"""An optimiser's groups of parameters with their settings."""


class Row(NamedTuple):
    """A way in which JAX's updates may be otherwise than PyTorch's."""

    words: str
    change: Callable[[TorchTraining], Any]
    """Makes PyTorch's optimiser do the same."""

    def beside(self, other: "Row") -> "Row":
        """Return both mistakes together."""

        def change(side: TorchTraining) -> None:
            other.change(side)
            self.change(side)

        return Row(f"{self.words}, and {other.words}", change)


ALTERNATIVES: dict[str, tuple[Any, ...]] = {
    "eps": (0.0, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3),
    "weight_decay": (0.0, *(float(f"{digit}e-{power}") for power in range(1, 6) for digit in (1, 2, 3, 5))),
    "momentum": (0.0,),
    "dampening": (0.0, 0.1, 0.5, 0.9),
    "alpha": (0.9, 0.95, 0.99, 0.999),
    **dict.fromkeys(("nesterov", "centered", "amsgrad", "decoupled_weight_decay", "maximize"), (False, True)),
}
"""Defaults of the two frameworks, of papers and of older versions. Betas and momentum are read from JAX's moments."""
ROOTS = (1e-16, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6)
"""Epsilons inside the root."""
LIMITS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)


def settings(side: TorchTraining) -> Iterator[Row]:
    """Yield what may be otherwise in the optimiser."""
    for name, values in ALTERNATIVES.items():
        for value in values:
            yield from setting(side, name, value)
    if isinstance(side.optimizer, torch.optim.Adam | torch.optim.NAdam):
        yield from _formulas(side.optimizer)
    yield from _decays(side)


def setting(side: TorchTraining, name: str, value: Any) -> Iterator[Row]:
    """Yield another value of one setting."""
    now = max(side.optimizer.param_groups, key=lambda group: group.get("weight_decay", 0.0))
    if name in now and now[name] != value:
        words = f"{name} is {value} in JAX, and {now[name]} in PyTorch"
        yield Row(words, partial(_in_each_step, groups=partial(_with, name=name, value=value)))


def _in_each_step(side: TorchTraining, groups: Callable[[Groups], Groups]) -> None:
    """Let the optimiser take its steps with other groups; between them a schedule finds its own."""
    optimizer, own = side.optimizer, side.optimizer.param_groups

    def change(*_: Any) -> None:
        optimizer.param_groups = groups(optimizer.param_groups)

    def restore(*_: Any) -> None:
        optimizer.param_groups = own

    optimizer.register_step_pre_hook(change)
    optimizer.register_step_post_hook(restore)


def _with(groups: Groups, name: str, value: Any) -> Groups:
    """Change a setting; the decay only where there is one, unless there is none at all."""
    everywhere = name != "weight_decay" or not any(group[name] for group in groups)
    return [{**group, name: value} if everywhere or group[name] else group for group in groups]


def set_rates(side: TorchTraining, rates: Sequence[float]) -> None:
    """Take the steps with other learning rates, of which each is that of the first group."""
    given = iter(rates)

    def groups(own: Groups) -> Groups:
        rate, first = next(given), own[0]["lr"]
        return [{**group, "lr": rate * float(group["lr"] / first) if first else rate} for group in own]

    _in_each_step(side, groups)


def _decays(side: TorchTraining) -> Iterator[Row]:
    """Yield the other masks of weight decay."""
    groups = side.optimizer.param_groups
    given = {p for group in groups for p in group["params"]}
    decayed = {p for group in groups for p in group["params"] if group.get("weight_decay")}
    if not decayed:
        return
    embeddings = {m.weight for m in side.model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    masks = {
        "acts on all parameters in JAX, and on some in PyTorch": given,
        "leaves vectors (biases, norms) alone in JAX, and not in PyTorch": {p for p in decayed if p.dim() > 1},
        "acts in JAX on those parameters that PyTorch spares, and on no others: the mask is inverted": given - decayed,
        "leaves embeddings alone in JAX, and not in PyTorch": decayed - embeddings,
        "acts on embeddings in JAX, and not in PyTorch": decayed | embeddings & given,
    }
    for words, mask in masks.items():
        if mask != decayed and mask:
            names = {side.names[p] for p in mask}
            yield Row(f"weight decay {words}", partial(_decay_where, names=names))


def _decay_where(side: TorchTraining, names: set[str]) -> None:
    """Let the decay act on these parameters alone."""

    def groups(own: Groups) -> Groups:
        decay = max(group["weight_decay"] for group in own)
        return [
            {**group, "params": [p for p in group["params"] if (side.names[p] in names) == inside], "weight_decay": now}
            for group in own
            for inside, now in ((True, decay), (False, 0.0))
        ]

    _in_each_step(side, groups)


# Other formulas


def _formulas(optimizer: torch.optim.Optimizer) -> Iterator[Row]:
    """Yield Optax's formulas of Adam's family."""

    def row(words: str, **how: Any) -> Row:
        return Row(words, lambda side: _in_each_step(side, partial(_step, side.optimizer.state, **how)))

    for name in ("adam", "nadam", "amsgrad"):
        words = f"JAX takes the steps of optax.{name}, and PyTorch those of {type(optimizer).__name__}"
        yield row(words, nesterov=name == "nadam", amsgrad=name == "amsgrad")
    yield row("the moments are not corrected for their bias in JAX", corrected=False)
    own = optimizer.param_groups[0]["eps"]
    yield row("epsilon is inside the root in JAX", root=own, eps=0.0)
    for root in ROOTS:
        yield row(f"eps_root is {root:g} and eps is {own:g} in JAX", root=root)


def _step(
    states: Mapping[nn.Parameter, dict[str, Any]],
    groups: Groups,
    root: float = 0.0,
    eps: float | None = None,
    nesterov: bool = False,
    amsgrad: bool = False,
    corrected: bool = True,
) -> Groups:
    """Step as Optax does: lr · m / (√(v + root) + eps). PyTorch's own step then has no parameters."""
    for group, p in [(each, p) for each in groups for p in each["params"] if p.grad is not None]:
        state, (b1, b2), decoupled = states[p], group["betas"], group.get("decoupled_weight_decay", False)
        g = p.grad if decoupled else p.grad + group["weight_decay"] * p.detach()
        step = state["step"] = state.get("step", 0) + 1
        m = state["exp_avg"] = b1 * state.get("exp_avg", 0) + (1 - b1) * g
        v = state["exp_avg_sq"] = b2 * state.get("exp_avg_sq", 0) + (1 - b2) * g * g
        if corrected:
            m = b1 * m / (1 - b1 ** (step + 1)) + (1 - b1) * g / (1 - b1**step) if nesterov else m / (1 - b1**step)
            v = v / (1 - b2**step)
        if amsgrad:
            v = state["highest"] = torch.maximum(state.get("highest", v), v)
        update = m / ((v + root).sqrt() + (group["eps"] if eps is None else eps))
        with torch.no_grad():
            p.sub_(group["lr"] * (update.nan_to_num() + decoupled * group["weight_decay"] * p))
    return []


# Clipping


def clippings(here: str, limit: float, linear: bool) -> Iterator[Row]:
    """Yield other clippings than PyTorch's, which is by norm to `limit`, or none where that is 0.

    here: says so.
    linear: the optimiser keeps nothing, so clipping after it is clipping before it.
    """
    if limit:
        yield without_epsilon(limit)
    for other in sorted({*LIMITS, *([limit] if limit else [])}):
        for eps in (0.0, 1e-6) if other != limit else ():
            words = f"the norm of the gradients is clipped to {other:g} in JAX; {here}"
            yield Row(words, partial(clip_otherwise, clip=partial(clip_to_norm, limit=other, epsilon=eps)))
        by_value = partial(nn.utils.clip_grad_value_, clip_value=other)
        words = f"each entry of a gradient is clipped to ±{other:g} in JAX; {here}"
        yield Row(words, partial(clip_otherwise, clip=by_value))
        words = f"the norm of each gradient on its own is clipped to {other:g} in JAX; {here}"
        yield Row(words, partial(clip_otherwise, clip=partial(_clip_each, limit=other)))
        lates = {} if linear else {"before the learning rate": True, "with the learning rate": False}
        for words, by_rate in lates.items():
            late = f"the norm of the update, {words}, is clipped to {other:g} in JAX, and not that of the gradients"
            yield Row(f"{late}; {here}", partial(_clip_update, limit=other, by_rate=by_rate))


def without_epsilon(limit: float) -> Row:
    """Clip as Optax does, which adds no epsilon to the norm."""
    words = "the norm is clipped without PyTorch's epsilon of 1e-6 in JAX"
    return Row(words, partial(clip_otherwise, clip=partial(clip_to_norm, limit=limit, epsilon=0.0)))


def clip_otherwise(side: TorchTraining, clip: Callable[[list[nn.Parameter]], Any] | None = None) -> None:
    """Give the optimiser the gradients as they are before clipping, and clip them so."""

    def again(*_: Any) -> None:
        raw = {p: side.record["gradients"][name] for p, name in side.names.items() if p.grad is not None}
        for p, gradient in raw.items():
            p.grad = torch.tensor(gradient)
        if clip:
            clip(list(raw))

    side.optimizer.register_step_pre_hook(again)


def clip_to_norm(parameters: list[nn.Parameter], limit: float, epsilon: float) -> None:
    """`torch.nn.utils.clip_grad_norm_` with a given epsilon."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    factor = (limit / (nn.utils.get_total_norm(gradients) + epsilon)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)


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

    clip_otherwise(side)
    optimizer.register_step_pre_hook(remember)
    optimizer.register_step_post_hook(clip)
