"""Try known mistakes as explanations of where two trainings part: one that is made, or undone, must bring agreement.

Where the loss or a gradient parts, PyTorch's step runs again with the mistake: on another batch, with other labels,
without dropout. Where a moment or a parameter parts, PyTorch's optimiser steps again on the gradients that JAX
computed, with other settings, another clipping, or the learning rates that follow from JAX's steps.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from parity_tests.your_port.measure.tree import flatten
from parity_tests.your_port.training.settings import NO_EPSILON, Change, changes, clip_to_norm
from parity_tests.your_port.training.sides import JaxTraining, Record, TorchTraining
from parity_tests.your_port.weights.positions import Arrays

CLOSE = {"float64": 1e-8, "float32": 1e-4}
"""What counts as agreement."""
IGNORED = -100
"""The label that PyTorch's cross entropy leaves out."""
MORE_STEPS = 8
"""JAX's training goes on for so many steps, since one step fits more than one explanation."""


def find_causes(
    quantity: str, step: int, in_torch: TorchTraining, in_jax: JaxTraining, found: list[Record], bound: float
) -> tuple[str, ...]:
    """Name the mistakes that explain why `quantity` is the first to part by more than `bound`, at `step` (from 0)."""
    close = min(bound, CLOSE[in_torch.dtype])
    if quantity == "batch":
        return tuple(_in_order_of_data(step, in_torch, found))
    if quantity in ("loss", "gradients"):
        return tuple(_in_loss(step, in_torch, in_jax, found[step], close))
    steps = min(step + MORE_STEPS, len(in_torch.batches))
    in_jax.restart()
    records = [in_jax.run(batch) for batch in in_torch.batches[:steps]]
    if quantity not in ("norm", "clipped", "learning_rate", "parameters", *_moments(in_torch)):
        return tuple(_in_average(quantity, in_torch, records, close))
    if "rates" not in in_torch[0] or any("gradients" not in record for record in records):
        return ()  # PyTorch's optimiser was not stepped, or JAX gave no gradients
    return tuple(Updates(in_torch, records, close).find())


def _moments(in_torch: TorchTraining) -> set[str]:
    return {key for state in in_torch.optimizer.state.values() for key in state}


# The batch


def _in_order_of_data(step: int, in_torch: TorchTraining, found: list[Record]) -> Iterator[str]:
    read = found[step]["batch"][""]
    for other in range(len(in_torch.batches)):
        if np.array_equal(in_torch[other].get("batch", {}).get("", ()), read):
            yield f"JAX reads at step {step + 1} the batch that PyTorch reads at step {other + 1}"


# The loss and its gradients


def _in_loss(step: int, in_torch: TorchTraining, in_jax: JaxTraining, found: Record, close: float) -> Iterator[str]:
    first = TorchTraining(in_torch.start, in_torch.weights, in_torch.batches, in_torch.dtype)
    if not _same(first[0], in_torch[0], close):
        yield "PyTorch's first step gives another result when it is repeated: dropout is on, or something is drawn"
        return
    in_jax.restart()
    once = in_jax.run(in_torch.batches[0])
    in_jax.restart()
    if not _same(in_jax.run(in_torch.batches[0]), once, close):
        yield "JAX's first step gives another result when it is repeated: dropout is on, or something is drawn"
        return
    ratio, in_torch_now = _ratio(found, in_torch[step], "loss"), in_torch[step]
    of_gradients = _ratio(found, in_torch_now, "gradients") if "gradients" in found else ratio
    if ratio is not None and of_gradients is not None and abs(of_gradients - 1) > 1e-6:
        if abs(ratio - 1) < 1e-9:
            added = "micro-batches are added, not averaged, or a scale of the loss is not undone"
            yield f"every gradient is {of_gradients:.6g} times PyTorch's, and the loss is equal: {added}"
        elif abs(ratio / of_gradients - 1) < 1e-6:
            yield f"the loss and all gradients are {ratio:.6g} times PyTorch's: a sum for a mean, or another divisor"
        return
    for words, batch in _other_batches(step, in_torch.batches):
        first.set_parameters(in_torch.before(step))
        try:
            record = first.run(batch)
        except (IndexError, RuntimeError, ValueError):
            continue  # such a batch cannot be read
        if _same(record, found, close):
            yield words
    first.set_parameters(in_torch.before(step))
    dropped = _without_dropout(first.model)
    if dropped and _same(first.run(in_torch.batches[step]), found, close):
        yield f"dropout is on in PyTorch ({', '.join(dropped)}), and off in JAX"


def _same(a: Record, b: Record, close: float) -> bool:
    quantities = [quantity for quantity in ("loss", "gradients") if quantity in a and quantity in b]
    return bool(quantities) and all(_apart(a[quantity], b[quantity]) <= close for quantity in quantities)


def _ratio(a: Record, b: Record, quantity: str) -> float | None:
    """The factor between all tensors of a quantity, if it is one factor."""
    both = [name for name in b[quantity] if name in a[quantity]]
    x, y = (np.concatenate([side[quantity][name].ravel() for name in both]) for side in (a, b))
    ratio = float(x @ y / (y @ y)) if y.any() else 0.0
    return ratio if ratio and float(np.abs(x - ratio * y).max()) <= 1e-6 * float(np.abs(x).max()) else None


def _other_batches(step: int, batches: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield what JAX may have read in the place of the batch of this step."""
    for number in range(max(0, step - 3), min(len(batches), step + 4)):
        if number != step:
            yield f"JAX reads at step {step + 1} the batch of step {number + 1}", batches[number]
    flat, rebuild = flatten(batches[step])
    arrays = {name: x for name, x in flat.items() if isinstance(x, np.ndarray) and x.ndim}
    for name, x in arrays.items():
        for other, y in arrays.items():
            if other != name and (y.shape, y.dtype) == (x.shape, x.dtype):
                yield f"JAX uses {other} of the batch in the place of {name}", rebuild({**flat, name: y})
        for by in (-2, -1, 1, 2):
            rolled = np.roll(x, by, -1)
            words = f"{name} of the batch is shifted by {abs(by)} to the {'left' if by < 0 else 'right'} in JAX"
            yield words, rebuild({**flat, name: rolled})
            if x.dtype.kind == "i":
                ignored = rolled.copy()  # as PyTorch's cross entropy does with -100
                ignored[..., by:] = IGNORED if by < 0 else ignored[..., by:]
                ignored[..., :by] = IGNORED if by > 0 else ignored[..., :by]
                yield f"{words}, and its end is cut off", rebuild({**flat, name: ignored})


def _without_dropout(model: torch.nn.Module) -> list[str]:
    """Switch off every dropout of the model; return the names of those that were on."""
    names = []
    for name, module in model.named_modules():
        for attribute in ("p", "dropout") if "Dropout" in type(module).__name__ else ("dropout",):
            if isinstance(getattr(module, attribute, None), float) and getattr(module, attribute) > 0:
                setattr(module, attribute, 0.0)
                names.append(name or type(module).__name__)
    return names


# The optimiser


Clip = Callable[[list[torch.nn.Parameter]], Any]
"""Clips the gradients in place."""


def _apart(a: Arrays, b: Arrays) -> float:
    """The largest difference of any number, beside the largest number."""
    both = a.keys() & b.keys()
    largest = max((float(np.abs(b[name]).max()) for name in both), default=0.0)
    apart = [float(np.abs(a[name] - b[name]).max()) for name in both]
    return max(apart) / (largest or 1.0) if apart and np.isfinite(apart).all() else np.inf


def _no_clip(parameters: list[torch.nn.Parameter]) -> None:
    """Leave the gradients as they are."""


class Updates:
    """PyTorch's optimiser, stepping on JAX's gradients to JAX's parameters."""

    def __init__(self, in_torch: TorchTraining, records: list[Record], close: float) -> None:
        self.in_torch, self.records, self.close = in_torch, records, close
        self.rates = [in_torch[step]["rates"][""] for step in range(len(records))]
        self.kind, self.limit, self.epsilon = _clipping([in_torch[step] for step in range(len(records))])

    def find(self) -> Iterator[str]:
        """Yield the settings with which PyTorch's optimiser does what JAX's does."""
        if self.replay()[0] <= self.close:
            return  # the optimisers agree
        fitting = list(self._fitting(None, ""))
        if (
            not fitting and self.kind == "norm" and self.epsilon
        ):  # Optax has none, so it often comes with another mistake
            without = partial(clip_to_norm, limit=self.limit, epsilon=0.0)
            fitting = list(self._fitting(without, f", and {NO_EPSILON}"))
        best = min((error for _, error in fitting), default=0.0)
        yield from (words for words, error in fitting if error <= 10 * best + 1e-15)

    def _fitting(self, clip: Clip | None, also: str) -> Iterator[tuple[str, float]]:
        """Yield the explanations under one clipping, and their errors: a setting, else other rates."""
        tried = [(words + also, self.replay(change, clip)[0]) for words, change in changes(self.in_torch.optimizer)]
        if clip is None:  # a high limit clips nothing, so the first that fits counts
            clips = ((words, self.replay(clip=clip)[0]) for words, clip in self._other_clips())
            tried += [next((tried for tried in clips if tried[1] <= self.close), ("", np.inf))]
        fitting = [(words, error) for words, error in tried if error <= self.close]
        yield from fitting
        if not fitting:
            error, rates = self.replay(clip=clip, solve=True)
            if error <= self.close:
                yield _of_rates(rates, [float(rate[0]) for rate in self.rates]) + also, error

    def replay(self, change: Change | None = None, clip: Clip | None = None, solve: bool = False) -> tuple[float, list]:
        """Take JAX's steps; return the largest error of the parameters and the learning rate of each step.

        solve: find the learning rates with which PyTorch comes closest to JAX. An update is proportional to its rate.
        """
        side = TorchTraining(self.in_torch.start, self.in_torch.weights, [], self.in_torch.dtype)
        optimizer, parameters, worst, found = side.optimizer, list(side.names), 0.0, []
        for number, group in enumerate(optimizer.param_groups):
            group["number"] = number  # which a change may split
        if change is not None:
            change(optimizer)
        for record, rates in zip(self.records, self.rates, strict=True):
            for parameter, name in side.names.items():
                gradient = record["gradients"].get(name)
                parameter.grad = None if gradient is None else torch.tensor(gradient)
            (clip or self._clip)([parameter for parameter in parameters if parameter.grad is not None])
            for group in optimizer.param_groups:
                rate = rates[group["number"]]
                group["lr"] = float(rate / rates[0] if rates[0] else 1.0) if solve else float(rate)
            before = [parameter.detach().clone() for parameter in parameters]
            optimizer.step()
            expected = [torch.tensor(record["parameters"][name]) for name in side.names.values()]
            found.append(_solve(parameters, before, expected) if solve else float(rates[0]))
            worst = max(
                worst, *(_apart(xs, record[quantity]) for quantity, xs in side.state().items() if quantity in record)
            )
            if not worst <= self.close:
                return np.inf, found
        return worst, found

    def _clip(self, parameters: list[torch.nn.Parameter]) -> None:
        if self.kind == "norm":
            clip_to_norm(parameters, self.limit, self.epsilon)
        elif self.kind == "value":
            torch.nn.utils.clip_grad_value_(parameters, self.limit)

    def _other_clips(self) -> Iterator[tuple[str, Clip]]:
        limits = {self.limit} if self.kind else set[float]()
        here = f"PyTorch clips their {self.kind} to {self.limit:g}" if self.kind else "PyTorch does not clip them"
        if self.kind:
            yield f"the gradients are not clipped in JAX; {here}", _no_clip
        if self.kind == "norm" and self.epsilon:
            yield (
                NO_EPSILON,
                partial(clip_to_norm, limit=self.limit, epsilon=0.0),
            )
        for limit in sorted(limits | {0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0}):
            if (self.kind, self.limit) != ("norm", limit):
                yield (
                    f"the norm of the gradients is clipped to {limit:g} in JAX; {here}",
                    partial(clip_to_norm, limit=limit),
                )
            if (self.kind, self.limit) != ("value", limit):
                by_value = partial(torch.nn.utils.clip_grad_value_, clip_value=limit)
                yield f"each entry of a gradient is clipped to ±{limit:g} in JAX; {here}", by_value
            alone = partial(_clip_each, limit=limit)
            yield f"the norm of each gradient on its own is clipped to {limit:g} in JAX; {here}", alone


def _clip_each(parameters: list[torch.nn.Parameter], limit: float) -> None:
    for parameter in parameters:
        clip_to_norm([parameter], limit, 0.0)


def _clipping(records: list[Record]) -> tuple[str, float, float]:
    """Read from PyTorch's gradients how they were clipped: by norm or by value, to which limit, with which epsilon."""
    norms, factors = [], []
    for record in records:
        raw, clipped = (np.concatenate([x.ravel() for x in record[q].values()]) for q in ("gradients", "clipped"))
        if raw.shape != clipped.shape or np.array_equal(raw, clipped):
            continue
        factor = float(raw @ clipped / (raw @ raw))
        if np.abs(clipped - factor * raw).max() > 1e-6 * np.abs(clipped).max():
            limit = float(np.abs(clipped).max())
            return ("value", limit, 0.0) if np.array_equal(raw.clip(-limit, limit), clipped) else ("", 0.0, 0.0)
        norms.append(float(np.linalg.norm(raw)))
        factors.append(factor)
    if not factors:
        return "", 0.0, 0.0
    all_norms, all_factors = np.array(norms), np.array(factors)
    spread = {epsilon: float(np.ptp(all_factors * (all_norms + epsilon))) for epsilon in (1e-6, 0.0)}
    epsilon = min(spread, key=spread.__getitem__)
    return "norm", float(f"{np.mean(all_factors * (all_norms + epsilon)):.9g}"), epsilon


def _solve(parameters: list[torch.nn.Parameter], before: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Take the step that was taken at rate 1 again, at the rate that brings it closest to `expected`; return that."""
    steps = [p.detach() - b for p, b in zip(parameters, before, strict=True)]
    wanted = [x - b for x, b in zip(expected, before, strict=True)]
    size = sum(float((step * step).sum()) for step in steps)
    rate = sum(float((w * step).sum()) for w, step in zip(wanted, steps, strict=True)) / (size or 1.0)
    with torch.no_grad():
        for parameter, b, step in zip(parameters, before, steps, strict=True):
            parameter.copy_(b + rate * step)
    return rate


def _of_rates(in_jax: list[float], in_torch: list[float]) -> str:
    """Say how JAX's learning rates differ from PyTorch's."""
    close = partial(np.allclose, rtol=1e-5, atol=1e-12)
    a, b = np.array(in_jax), np.array(in_torch)
    step = int(np.argmax(~np.isclose(a, b, 1e-5, 1e-12)))
    here = f"{a[step]:.6g} in JAX and {b[step]:.6g} in PyTorch at step {step + 1}"
    if len(a) > 2 and not close(b, b[0]):
        if close(a[:-1], b[1:]):
            return f"the schedule is one step ahead in JAX: the learning rate is {here}"
        if close(a[1:], b[:-1]):
            return f"the schedule is one step behind in JAX: the learning rate is {here}"
        if step == 0 and b[1] > b[0] and a[1] <= a[0] * (1 + 1e-9):
            return f"the schedule has no warm-up in JAX: the learning rate is {here}"
        if close(a, a[0]):
            return f"the learning rate has no schedule in JAX: it is {here}"
    return f"the learning rate is {here}"


# An average of the parameters


def _in_average(quantity: str, in_torch: TorchTraining, records: list[Record], close: float) -> Iterator[str]:
    theirs = [in_torch[step] for step in range(len(records))]
    a, b = (_decay(quantity, side, in_torch.before(0), close) for side in (records, theirs))
    if a is not None and b is not None and a != b:
        words = ("before", "after")
        if a[0] != b[0]:
            yield f"{quantity} keeps {a[0]:g} of itself in each step in JAX, and {b[0]:g} in PyTorch"
        if a[1] != b[1]:
            yield f"{quantity} averages the parameters {words[a[1]]} the step in JAX, {words[b[1]]} it in PyTorch"


def _decay(quantity: str, records: list[Record], start: Arrays, close: float) -> tuple[float, int] | None:
    """Find d in average = d · average + (1 − d) · parameters, and whether the parameters are those after the step."""
    for after in (1, 0):
        decays = []
        for last, record in pairwise(records):
            average, old = record[quantity], last[quantity]
            parameters = (last, record)[after]["parameters"]
            names = [name for name in average if name in parameters]
            x = np.concatenate([(average[name] - parameters[name]).ravel() for name in names])
            y = np.concatenate([(old[name] - parameters[name]).ravel() for name in names])
            decay = float(x @ y / (y @ y)) if y.any() else np.nan
            decays.append(decay if np.abs(x - decay * y).max() <= close else np.nan)
        if decays and np.ptp(decays) <= 1e-6:
            return float(f"{np.mean(decays):.6g}"), after
    return None
