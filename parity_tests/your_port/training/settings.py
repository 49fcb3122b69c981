"""What may be otherwise in JAX's optimiser than in PyTorch's, as rows: words, and a change that does it to PyTorch's.

Defaults of the same name differ between the two frameworks (AdamW's decay is 1e-2 in PyTorch and 1e-4 in Optax), and so
do the places of epsilons, and what NAdam and AMSGrad mean. A change is a generator around each step of PyTorch's
optimiser; the rest of its training, such as its schedule, goes on as it was written.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from parity_tests.your_port.training.sides import AroundStep, TorchTraining


class Deviation(NamedTuple):
    """A way in which JAX's training may be otherwise than PyTorch's."""

    words: str
    change: AroundStep | None = None
    """Makes PyTorch's optimiser do the same."""
    read: Callable[[Any], Any] | None = None
    """Makes of a batch what JAX may have read in its place."""
    scale: float = 1.0
    """By what the loss and its gradients are then multiplied."""


ALTERNATIVES: dict[str, tuple[Any, ...]] = {
    "eps": (0.0, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3),
    "weight_decay": (0.0, *(float(f"{digit}e-{power}") for power in range(1, 6) for digit in (1, 2, 3, 5))),
    "momentum": (0.0,),
    "dampening": (0.0, 0.1, 0.5, 0.9),
    "alpha": (0.9, 0.95, 0.99, 0.999),
    **dict.fromkeys(("nesterov", "centered", "amsgrad", "decoupled_weight_decay", "maximize"), (False, True)),
}
"""Defaults of the two frameworks, of papers and of older versions. Betas and momentum are read from JAX's moments."""
ROOTS = (1e-16, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6)
"""Epsilons inside the root."""
ADAMS = {
    **{name: f"those of optax.{name}" for name in ("adam", "nadam", "amsgrad")},
    "uncorrected": "those of Adam without correcting the bias of its moments, as BertAdam",
    "keras": "those of Keras's Adam, which adds eps before it corrects the bias",
}
"""Other optimisers with Adam's moments, and what their steps are called."""
LIMITS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)


def settings(side: TorchTraining) -> Iterator[Deviation]:
    """Yield what may be otherwise in the optimiser."""
    for name, values in ALTERNATIVES.items():
        for value in values:
            yield from setting(side, name, value)
    if all(g.get("decoupled_weight_decay") is False and not g["weight_decay"] for g in side.optimizer.param_groups):
        for value in ALTERNATIVES["weight_decay"][1:]:
            words = f"weight_decay is {value} in JAX, as that of AdamW, and 0 in PyTorch"
            yield Deviation(words, partial(_decay_apart, decay=value))
    if isinstance(side.optimizer, torch.optim.Adam | torch.optim.NAdam):
        others = dict(ADAMS)
        if isinstance(side.optimizer, torch.optim.Adam) and not any(g["amsgrad"] for g in side.optimizer.param_groups):
            del others["adam"]  # which are its own
        for name, steps in others.items():
            words = f"JAX's steps are {steps}, and PyTorch's those of {type(side.optimizer).__name__}"
            yield Deviation(words, partial(_step_as, name=name))
        for root in ROOTS:
            words = f"eps_root is {root:g} and eps is {side.optimizer.param_groups[0]['eps']:g} in JAX"
            yield Deviation(words, partial(_step_as, root=root))
    yield from _decays(side)


def setting(side: TorchTraining, name: str, value: Any) -> Iterator[Deviation]:
    """Yield another value of one setting."""
    now = max((group.get(name, value) for group in side.optimizer.param_groups), default=value)
    if now != value:
        yield Deviation(f"{name} is {value} in JAX, and {now} in PyTorch", partial(_set, name=name, value=value))


def _step_with(side: TorchTraining, groups: list[dict[str, Any]]) -> Iterator[None]:
    """Let the optimiser take a step with other groups; after it a schedule finds its own."""
    own, side.optimizer.param_groups = side.optimizer.param_groups, groups
    yield
    side.optimizer.param_groups = own


def _set(side: TorchTraining, name: str, value: Any) -> Iterator[None]:
    """Change a setting; the decay only where there is one, unless there is none at all."""
    groups = side.optimizer.param_groups
    everywhere = name != "weight_decay" or not any(group[name] for group in groups)
    return _step_with(side, [{**group, name: value} if everywhere or group[name] else group for group in groups])


def _decay_apart(side: TorchTraining, decay: float) -> Iterator[None]:
    """Let an optimiser without a decay decay as AdamW does."""
    apart = {"weight_decay": decay, "decoupled_weight_decay": True}
    return _step_with(side, [group | apart for group in side.optimizer.param_groups])


UNIT_RATE = Deviation("", partial(_set, name="lr", value=1.0))


def _decays(side: TorchTraining) -> Iterator[Deviation]:
    """Yield the other masks of weight decay."""
    groups = side.optimizer.param_groups
    given = {p for group in groups for p in group["params"]}
    decayed = {p for group in groups for p in group["params"] if group.get("weight_decay")}
    modules = [m for m in side.model.modules() if isinstance(getattr(m, "weight", None), nn.Parameter)]
    embeddings = {m.weight for m in modules if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    scales = {m.weight for m in modules if "norm" in type(m).__name__.lower()}
    biases = {p for p, name in side.names.items() if name.endswith("bias")}
    masks = {
        "acts on all parameters in JAX, and on some in PyTorch": given,
        "leaves vectors (biases, norms) alone in JAX, and not in PyTorch": {p for p in decayed if p.dim() > 1},
        "acts in JAX on those parameters that PyTorch spares, and on no others: the mask is inverted": given - decayed,
        "leaves embeddings alone in JAX, and not in PyTorch": decayed - embeddings,
        "leaves biases alone in JAX, and not in PyTorch": decayed - biases,
        "leaves the scales of norms alone in JAX, and not in PyTorch": decayed - scales,
        "acts on biases in JAX, and not in PyTorch": decayed | biases & given,
        "acts on the scales of norms in JAX, and not in PyTorch": decayed | scales & given,
    }
    if any(group.get("weight_decay") and group.get("decoupled_weight_decay") for group in groups):
        words = "the weight decay is not multiplied by the learning rate in JAX"
        yield Deviation(words, partial(_decay_without_rate, sign=1))
        yield Deviation(f"{words}, and makes the parameters larger", partial(_decay_without_rate, sign=-1))
    tried = [set(), decayed]
    for words, mask in masks.items() if decayed else ():
        if mask not in tried:
            tried.append(mask)
            yield Deviation(f"weight decay {words}", partial(_decay, names={side.names.get(p) for p in mask}))


def _decay(side: TorchTraining, names: set[str | None]) -> Iterator[None]:
    """Let the decay act on these parameters alone."""
    decay, groups = max(group["weight_decay"] for group in side.optimizer.param_groups), []
    for group in side.optimizer.param_groups:
        for inside in (True, False):
            params = [p for p in group["params"] if (side.names.get(p) in names) == inside]
            groups.append({**group, "params": params, "weight_decay": decay * inside})
    return _step_with(side, groups)


def _decay_without_rate(side: TorchTraining, sign: int) -> Iterator[None]:
    """Multiply the parameters by 1 ∓ decay, as where `optax.add_decayed_weights` stands after the learning rate."""
    groups = side.optimizer.param_groups
    return _step_with(
        side, [g | {"weight_decay": sign * g["weight_decay"] / g["lr"]} if g["lr"] else g for g in groups]
    )


def _step_as(side: TorchTraining, name: str = "adam", root: float = 0.0) -> Iterator[None]:
    """Step as another of `ADAMS`: lr · m / (√(v + root) + eps). PyTorch's own step then has no parameters."""
    for group, p in [(g, p) for g in side.optimizer.param_groups for p in g["params"] if p.grad is not None]:
        state, (b1, b2), decoupled = side.optimizer.state[p], group["betas"], group.get("decoupled_weight_decay", False)
        g = p.grad if decoupled else p.grad + group["weight_decay"] * p.detach()
        step = state["step"] = state.get("step", 0) + 1
        m = state["exp_avg"] = b1 * state.get("exp_avg", 0) + (1 - b1) * g
        v = state["exp_avg_sq"] = b2 * state.get("exp_avg_sq", 0) + (1 - b2) * g * g
        kept_1, kept_2 = 1 - b1**step, 1 - b2**step  # what the weights in m and v add up to
        if name == "uncorrected":
            kept_1 = kept_2 = 1.0
        elif name == "keras":
            kept_1, kept_2 = kept_1 / kept_2**0.5, 1.0
        m = b1 * m / (1 - b1 ** (step + 1)) + (1 - b1) * g / kept_1 if name == "nadam" else m / kept_1
        v = v / kept_2
        if name == "amsgrad":
            v = state["highest"] = torch.maximum(state.get("highest", v), v)
        update = m / ((v + root).sqrt() + group["eps"])
        with torch.no_grad():
            p.sub_(group["lr"] * (update.nan_to_num() + decoupled * group["weight_decay"] * p))
    return _step_with(side, [])


# Clipping


def clippings(here: str, limit: float, linear: bool) -> Iterator[Deviation]:
    """Yield other clippings than PyTorch's, which is by norm to `limit`, or none or another one where that is 0.

    here: says how PyTorch clips.
    linear: the optimiser keeps nothing, so clipping after it is clipping before it.
    """
    if limit:
        yield without_epsilon(limit)
    for other in sorted({*LIMITS, *filter(None, [limit])}):
        ways: list[tuple[str, Callable[[list[nn.Parameter]], Any]]] = [
            (f"the norm of the gradients is clipped to {other:g}", partial(clip_to_norm, limit=other)),
            (
                f"each entry of a gradient is clipped to ±{other:g}",
                partial(nn.utils.clip_grad_value_, clip_value=other),
            ),
            (f"the norm of each gradient on its own is clipped to {other:g}", partial(_clip_each, limit=other)),
        ]
        for words, clip in ways[other == limit :]:
            yield Deviation(f"{words} in JAX; {here}", partial(clip_otherwise, clip=clip))
        if not linear:
            words = f"the norm of the update, before the learning rate, is clipped to {other:g} in JAX"
            yield Deviation(f"{words}, and not that of the gradients; {here}", partial(_clip_update, limit=other))


def without_epsilon(limit: float) -> Deviation:
    """Clip as Optax does, which adds no epsilon to the norm."""
    words = "the norm is clipped without PyTorch's epsilon of 1e-6 in JAX"
    return Deviation(words, partial(clip_otherwise, clip=partial(clip_to_norm, limit=limit)))


def _unclipped(side: TorchTraining) -> list[nn.Parameter]:
    """Give the optimiser the gradients as they are before clipping."""
    given: list[Any] = [p for p in side.names if p.grad is not None]
    for p in given:
        p.grad = torch.tensor(side.record["gradients"][side.names[p]])
    return given


def clip_otherwise(side: TorchTraining, clip: Callable[[list[nn.Parameter]], Any] | None = None) -> Iterator[None]:
    """Clip the gradients in another way, or not at all."""
    parameters = _unclipped(side)
    if clip:
        clip(parameters)
    yield


def clip_to_norm(parameters: list[nn.Parameter], limit: float) -> None:
    """`torch.nn.utils.clip_grad_norm_` without its epsilon."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    factor = (limit / nn.utils.get_total_norm(gradients)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)


def _clip_each(parameters: list[nn.Parameter], limit: float) -> None:
    for parameter in parameters:
        clip_to_norm([parameter], limit)


def _clip_update(side: TorchTraining, limit: float) -> Iterator[None]:
    """Clip what the optimiser adds to the parameters, divided by the learning rate."""
    before = {p: p.detach().clone() for p in _unclipped(side)}
    yield
    rate = side.optimizer.param_groups[0]["lr"] or 1.0
    norm = nn.utils.get_total_norm([(p.detach() - old) / rate for p, old in before.items()])
    with torch.no_grad():
        for p, old in before.items():
            p.copy_(old + (p - old) * (limit / norm).clamp(max=1.0))
