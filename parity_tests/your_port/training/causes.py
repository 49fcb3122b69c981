"""Try known mistakes as explanations of where two trainings part.

A mistake is named only if it explains two trainings: the one in which it was found, and another from other weights, on
the batches in another order. Whatever is read off the first (a factor, a learning rate, betas) must hold in the second.

Where the loss or a gradient parts, PyTorch's step runs again with the mistake: on another batch, with other labels,
without dropout. Where a moment or a parameter parts, PyTorch's optimiser steps again on the gradients that JAX
computed, with other settings, another clipping, or the learning rates that follow from JAX's steps.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch

from parity_tests.your_port.measure.tree import flatten
from parity_tests.your_port.training import settings
from parity_tests.your_port.training.errors import worst_error
from parity_tests.your_port.training.settings import Row
from parity_tests.your_port.training.sides import JaxTraining, Record, TorchTraining, digest
from parity_tests.your_port.weights.positions import Arrays

CLOSE = {"float64": 1e-8, "float32": 1e-4}
"""What counts as agreement."""
SHARE = 0.01
"""A mistake explains a difference if so much of it is left at most."""
CLIP_EPSILON = 1e-5
"""How far the epsilon of a clipping may move the gradients."""
IGNORED = -100
"""The label that PyTorch's cross entropy leaves out."""
MORE_STEPS = 8
"""JAX's training goes on for so many steps, since one step fits more than one explanation."""


class Trial(NamedTuple):
    """A training that a mistake must explain."""

    in_torch: TorchTraining
    records: list[Record]
    """JAX's."""
    start: Record
    """The moments with which JAX's optimiser starts."""
    counts: tuple[int, ...]
    """The counts with which it starts."""

    def before(self, step: int) -> Arrays:
        """Return JAX's parameters before a step."""
        return self.records[step - 1]["parameters"] if step else self.in_torch.before(0)

    def again(self, step: int, read: "Read | None" = None) -> Record:
        """Take PyTorch's step from JAX's parameters, on what JAX may have read."""
        side = self.in_torch.anew()
        side.set_parameters(self.before(step))
        batch = self.in_torch.batches[step]
        return side.run(batch if read is None else read.change(side, batch))


def find_causes(
    quantity: str, step: int, in_torch: TorchTraining, in_jax: JaxTraining, found: list[Record], bound: float
) -> tuple[str, ...]:
    """Name the mistakes that explain why `quantity` is the first to part by more than `bound`, at `step` (from 0)."""
    if quantity == "batch":
        return tuple(_in_order_of_data(step, in_torch, found))
    if quantity == "copies":
        return ()
    close, count = min(bound, CLOSE[in_torch.dtype]), len(in_torch.batches)
    order = range(step + MORE_STEPS)
    trials = [
        _run(in_torch.anew(in_torch.weights, [in_torch.batches[place % count] for place in order]), in_jax),
        _run(in_torch.anew(_near(in_torch), [in_torch.batches[(step + 1 - place) % count] for place in order]), in_jax),
    ]
    if quantity in ("loss", "gradients"):
        return tuple(dict.fromkeys(_in_loss(step, trials, in_torch, found, close)))
    if quantity not in ("norm", "clipped", "learning_rate", "parameters", *in_torch.state_names()):
        return tuple(_in_average(quantity, trials, close))
    if "rates" not in in_torch[0] or any("gradients" not in record for record in trials[0].records):
        return ()  # PyTorch's optimiser was not stepped, or JAX gave no gradients
    return tuple(dict.fromkeys(_in_updates(trials, close)))


def _run(in_torch: TorchTraining, in_jax: JaxTraining) -> Trial:
    """Run JAX beside a training of PyTorch."""
    start, counts = in_jax.restart(in_torch.weights)
    return Trial(in_torch, [in_jax.run(batch) for batch in in_torch.batches], start, counts)


def _near(in_torch: TorchTraining) -> Arrays:
    """Draw other weights near these."""
    rng, tied = np.random.default_rng(0), in_torch.tied
    noise = {name: rng.normal(size=x.shape) for name, x in in_torch.weights.items() if name in tied}
    return {
        name: x + (noise[tied[name]] * np.where(x, 0.1 * x, 0.01)).astype(x.dtype) if name in tied else x
        for name, x in in_torch.weights.items()
    }


# The batch


def _in_order_of_data(step: int, in_torch: TorchTraining, found: list[Record]) -> Iterator[str]:
    read, size = found[step]["batch"][""], len(digest({}))
    for other in range(len(in_torch.batches)):
        if np.array_equal(in_torch[other].get("batch", {}).get("", ()), read):
            yield f"JAX reads at step {step + 1} the batch that PyTorch reads at step {other + 1}"
    if np.array_equal(in_torch[step]["batch"][""][size // 2 :], read[size // 2 :]):
        yield "the rows of the batch stand in another order in JAX"


# The loss and its gradients


class Read(NamedTuple):
    """What JAX may have read in the place of a batch."""

    words: str
    change: Callable[[TorchTraining, Any], Any]
    """(PyTorch's training, batch) -> batch; it may also change the model."""
    factor: float = 1.0
    """By which its loss and gradients are multiplied."""
    once: bool = False
    """Whether it says something about this one step."""


def _in_loss(step: int, trials: list[Trial], in_torch: TorchTraining, found: list[Record], close: float) -> Any:
    first, fresh = trials
    drawn = "first step gives another result when it is repeated: dropout is on, or something is drawn"
    plain = first.again(0)
    for side, a, b in (("PyTorch", plain, in_torch[0]), ("JAX", first.records[0], found[0])):
        if not _left(a, b) <= close:
            yield f"{side}'s {drawn}"
            return
    steps = [(trial, number, trial.again(number)) for trial, number in ((first, step), *((fresh, n) for n in range(3)))]
    close = min(close, SHARE * _left(first.records[step], steps[0][2]))
    only = "" if "gradients" in first.records[step] else ", as far as the loss alone shows"
    pairs = [(trial.records[number], as_is) for trial, number, as_is in steps]
    yield from (words + only for words in _as_factor(pairs, step))
    for read in _readings(step, in_torch):
        at = [steps[0], (fresh, step, fresh.again(step))] if read.once else steps
        try:
            if all(_explains(read, *place, close) for place in at):
                yield read.words + only
        except (IndexError, RuntimeError, ValueError):
            continue  # such a batch cannot be read


def _explains(read: Read, trial: Trial, step: int, as_is: Record, close: float) -> bool:
    """Whether PyTorch's step on what JAX may have read has JAX's gradients and loss, or the loss of the whole batch."""
    again = trial.again(step, read)
    if read.factor != 1:
        again = {q: {name: read.factor * x for name, x in xs.items()} for q, xs in again.items()}
    losses = [{"loss": side["loss"]} for side in (again, as_is) if "loss" in side] or [Record()]
    return any(_left(trial.records[step], again | loss) <= close for loss in losses)


def _left(a: Record, b: Record) -> float:
    """The error of the loss and of the gradients."""
    both = [quantity for quantity in ("loss", "gradients") if quantity in a and quantity in b]
    return max((worst_error(quantity, a[quantity], b[quantity]) for quantity in both), default=np.inf)


def _as_factor(pairs: list[tuple[Record, Record]], step: int) -> Iterator[str]:
    """Say whether all of JAX's gradients are one multiple of PyTorch's in every step, and with them the loss."""
    clipped = [(a, {**b, "gradients": b["clipped"]}) for a, b in pairs if "gradients" in a and "clipped" in b]
    if clipped and all(_left(a, b) <= CLIP_EPSILON for a, b in clipped):
        yield "the gradients that JAX returns are clipped already; return them as they are before"
        return
    loss, gradients = (
        [_ratio(a[q], b[q]) for a, b in pairs] if q in pairs[0][0] and q in pairs[0][1] else []
        for q in ("loss", "gradients")
    )
    factors = gradients or loss
    if not np.isfinite([*loss, *gradients]).all() or np.allclose(factors, 1, 0, 1e-6):
        return
    constant = np.ptp(factors) <= 1e-6 * abs(factors[0])
    times = f"{factors[0]:.6g} times PyTorch's"
    if not constant:
        times = f"one multiple of PyTorch's in each step, {factors[0]:.6g} at step {step + 1}, and another in others"
    if np.allclose(loss, 1, 0, 1e-9):
        why = "micro-batches are added, not averaged, or a scale of the loss is not undone"
        equal = ", and the loss is equal" * bool(loss)
        yield f"every gradient is {times}{equal}: {why if constant else 'clipped or normalised'}"
    elif gradients and np.allclose(loss, gradients, 1e-6, 0):
        yield f"the loss and all gradients are {times}: a sum for a mean, or another divisor"
    elif constant and not gradients:
        yield f"the loss is {times}: a sum for a mean, or another divisor"


def _ratio(a: Arrays, b: Arrays) -> float:
    """The factor between all tensors of a quantity; NaN if it is not one factor."""
    both = [name for name in b if name in a and a[name].shape == b[name].shape]
    x, y = _flat(a, both), _flat(b, both)
    ratio = float(x @ y / (y @ y)) if y.any() else 0.0
    return ratio if ratio and float(np.abs(x - ratio * y).max()) <= 1e-6 * float(np.abs(x).max()) else np.nan


def _readings(step: int, in_torch: TorchTraining) -> Iterator[Read]:
    """Yield what JAX may have read in the place of the batch of this step, and a model without dropout."""
    batches = in_torch.batches
    for number in range(max(0, step - 3), min(len(batches), step + 4)):
        if number != step:
            words = f"JAX reads at step {step + 1} the batch of step {number + 1}"
            yield Read(words, partial(_take, batches[number]), once=True)
    arrays = {name: x for name, x in flatten(batches[step])[0].items() if isinstance(x, np.ndarray) and x.ndim}
    for name, x in arrays.items():
        for other, y in arrays.items():
            if other != name and (y.shape, y.dtype) == (x.shape, x.dtype):
                words = f"JAX uses {other} of the batch in the place of {name}"
                yield Read(words, partial(_with, name=name, make=itemgetter(other)))
        for by in (-2, -1, 1, 2):
            words = f"{name} of the batch is shifted by {abs(by)} to the {'left' if by < 0 else 'right'} in JAX"
            yield Read(words, partial(_with, name=name, make=partial(_shift, name=name, by=by)))
            if x.dtype.kind == "i":
                cut = partial(_shift, name=name, by=by, cut=True)
                yield Read(f"{words}, and its end is cut off", partial(_with, name=name, make=cut))
    rows = len(next(iter(arrays.values()))) if arrays else 0
    for pieces in (pieces for pieces in range(2, rows + 1) if rows % pieces == 0 and pieces in (*range(17), rows)):
        for out, side in product(sorted({1, pieces - 1}), ("first", "last")):
            words = f"the {side} {out * rows // pieces} of {rows} rows of the batch are left out in JAX"
            keep = partial(_keep, pieces=pieces, part=slice(out, None) if side == "first" else slice(pieces - out))
            yield Read(words, keep)
            yield Read(f"{words}, and the divisor still counts them", keep, 1 - out / pieces)
    on = _without_dropout(in_torch.anew().model)
    if on:
        words = f"dropout is on in PyTorch ({', '.join(on)}), and off in JAX"
        yield Read(words, lambda side, batch: (batch, _without_dropout(side.model))[0])


def _take(other: Any, *_: Any) -> Any:
    return other


def _with(_: TorchTraining, batch: Any, name: str, make: Callable[[dict[str, Any]], np.ndarray]) -> Any:
    flat, rebuild = flatten(batch)
    return rebuild({**flat, name: make(flat)})


def _shift(flat: dict[str, Any], name: str, by: int, cut: bool = False) -> np.ndarray:
    rolled = np.roll(flat[name], by, -1)
    if cut:  # as PyTorch's cross entropy does with -100
        rolled[..., slice(by, None) if by < 0 else slice(by)] = IGNORED
    return rolled


def _keep(_: TorchTraining, batch: Any, pieces: int, part: slice) -> Any:
    """Keep some of the pieces into which the rows are cut."""
    flat, rebuild = flatten(batch)
    rows = max((len(x) for x in flat.values() if isinstance(x, np.ndarray) and x.ndim), default=0)
    kept = np.arange(rows).reshape(pieces, -1)[part].ravel()
    return rebuild({name: x[kept] if np.ndim(x) and len(x) == rows else x for name, x in flat.items()})


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


def _in_updates(trials: list[Trial], close: float) -> Iterator[str]:
    """Yield the settings with which PyTorch's optimiser, on JAX's gradients, does what JAX's does."""
    first = trials[0]
    side, in_torch = first.in_torch.anew(), [first.in_torch[step] for step in range(len(first.records))]
    kind, limit, epsilon = clipping(in_torch)
    own = partial(_clip, kind=kind, limit=limit, epsilon=epsilon)
    before = replay(first, Row("", clip=own), np.inf)[0]
    if before <= close:
        return  # the optimisers agree
    close = min(close, SHARE * before)

    def left(row: Row) -> float:
        """The error that is left in either training."""
        row = row._replace(clip=row.clip or own)
        error = replay(first, row, close)[0]
        return max(error, *(replay(trial, row, close)[0] for trial in trials[1:])) if error <= close else np.inf

    def rated(row: Row) -> Row:
        """With the learning rates that bring PyTorch closest to JAX."""
        rates = replay(first, row._replace(clip=row.clip or own), close, solve=True)[1]
        words = _of_rates(rates, [float(record["rates"][""][0]) for record in in_torch])
        return Row(words, rates=tuple(rates))

    seen = [*_starts(first), *(row for name, value in _estimates(first) for row in settings.setting(side, name, value))]
    rows = [*settings.settings(side), *seen, *_still(first)]
    errors = {row.words: left(row) for row in [*rows, rated(Row(""))]}
    unclipped = left(Row("", clip=settings.nothing))
    for row in settings.clippings(kind, limit, epsilon, linear=not first.in_torch.state_names()):
        error = left(row)
        if row.change is row.clip or error != unclipped:  # a limit that is not reached clips nothing
            errors[row.words] = min(error, errors.get(row.words, np.inf))
    if min(errors.values()) > close:  # two at once, of which one is seen in the state, or is Optax's clipping
        seen += [settings.without_epsilon(limit)] * (kind == "norm" and epsilon > 0)
        both = [row.beside(other) for other in seen for row in [*rows, rated(other)] if row not in seen]
        errors = {row.words: left(row) for row in both}
    best = min(errors.values(), default=np.inf)
    yield from (words for words, error in errors.items() if error <= min(close, 10 * best + 1e-15))


def replay(trial: Trial, row: Row, close: float, solve: bool = False) -> tuple[float, list[float]]:
    """Take JAX's steps with PyTorch's optimiser; return the largest error and the learning rate of each step.

    solve: find the learning rates with which PyTorch comes closest to JAX. An update is proportional to its rate.
    """
    side, worst, found = trial.in_torch.anew(), 0.0, list[float]()
    optimizer, parameters = side.optimizer, list(side.names)
    for number, group in enumerate(optimizer.param_groups):
        group["number"] = number  # which a change may split
    row.change(side)
    for step, record in enumerate(trial.records):
        rates, trained = trial.in_torch[step]["rates"][""], trial.in_torch[step]["gradients"]
        for parameter, name in side.names.items():
            gradient = record["gradients"].get(name)
            parameter.grad = None if gradient is None or name not in trained else torch.tensor(gradient)
        (row.clip or settings.nothing)([parameter for parameter in parameters if parameter.grad is not None])
        rate = 1.0 if solve else row.rates[step] if row.rates else float(rates[0])
        for group in optimizer.param_groups:
            group["lr"] = rate * float(rates[group["number"]] / rates[0]) if rates[0] else rate
        before = [parameter.detach().clone() for parameter in parameters]
        optimizer.step()
        expected = [torch.tensor(record["parameters"][name]) for name in side.names.values()]
        found.append(_solve(parameters, before, expected) if solve else rate)
        state = side.state()
        errors = (worst_error(q, record[q], xs, trial.before(0)) for q, xs in state.items() if q in record)
        worst = max(worst, *errors)
        if not worst <= close:
            return np.inf, found
    return worst, found


def _clip(parameters: list[torch.nn.Parameter], kind: str, limit: float, epsilon: float) -> None:
    if kind == "norm":
        settings.clip_to_norm(parameters, limit, epsilon)
    elif kind == "value":
        torch.nn.utils.clip_grad_value_(parameters, limit)


def clipping(records: list[Record]) -> tuple[str, float, float]:
    """Read from PyTorch's gradients how they were clipped: by norm or by value, to which limit, with which epsilon."""
    norms, factors = [], []
    for record in records:
        raw, clipped = (_flat(record[q], record[q]) for q in ("gradients", "clipped"))
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


def _estimates(trial: Trial) -> Iterator[tuple[str, Any]]:
    """Read betas and their like from JAX's moments: m after = b · m before + a · gradient (or its square)."""
    found, (last, now), before = dict[str, float](), trial.records[:2], trial.before(1)
    for quantity, power in {"exp_avg": 1, "exp_avg_sq": 2, "square_avg": 2, "momentum_buffer": 1}.items():
        names = [name for name in now.get(quantity, {}) if name in now["gradients"]]
        if names:
            columns = [last[quantity], {name: now["gradients"][name] ** power for name in names}]
            columns += [before] * (power == 1)  # a decay that is added to the gradient
            known = np.stack([_flat(column, names) for column in columns], 1)
            beta = np.linalg.lstsq(known, _flat(now[quantity], names), rcond=None)[0][0]
            if 0 < beta < 1:
                found[quantity] = float(f"{beta:.6g}")
    if "exp_avg" in found and "exp_avg_sq" in found:
        yield "betas", (found["exp_avg"], found["exp_avg_sq"])
    yield from (
        (name, found[q]) for name, q in {"alpha": "square_avg", "momentum": "momentum_buffer"}.items() if q in found
    )


def _flat(arrays: Arrays, names: Iterable[str]) -> np.ndarray:
    return np.concatenate([np.ravel(arrays[name]) for name in names])


def _starts(trial: Trial) -> Iterator[Row]:
    """Yield another start of the optimiser's state: what JAX's is before the first step."""
    names = trial.in_torch.state_names()
    given = {q: xs for q, xs in trial.start.items() if q in names and any(x.any() for x in xs.values())}
    words = []
    for quantity, arrays in given.items():
        numbers = np.unique(_flat(arrays, arrays))
        words.append(f"{quantity} starts from {f'{numbers[0]:g}' if len(numbers) == 1 else 'other moments'} in JAX")
    zeros = {name: np.zeros_like(x) for name, x in trial.before(0).items()}
    state = {quantity: given.get(quantity, zeros) for quantity in names - {"step"}}
    for count in (0, *trial.counts) if given else trial.counts:
        counted = [f"the optimiser counts its steps from {count} in JAX"] * bool(count)
        yield Row(", and ".join([*words, *counted]), partial(settings.start_from, state=state, count=float(count)))


def _still(trial: Trial) -> Iterator[Row]:
    """Yield the parameters that JAX never moves although they have a gradient."""
    last, gradients = trial.records[-1]["parameters"], trial.records[0]["gradients"]
    still = {name for name, x in trial.before(0).items() if np.array_equal(x, last[name])}
    still = {name for name in still if name in gradients and gradients[name].any()}
    if still:
        words = f"{', '.join(sorted(still))} never moves in JAX, although its gradient is not zero"
        yield Row(words, partial(settings.stand_still, names=still))


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
    a, b = np.array(in_jax), np.array(in_torch[: len(in_jax)])
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


class Average(NamedTuple):
    """How an average of the parameters is kept: a ← decay · a + (1 − decay) · parameters."""

    decay: float
    after: bool
    """Whether the parameters are those after the step."""
    start: str
    """What it is before the first step, one of STARTS."""


STARTS = {
    "parameters": "starts from the parameters",
    "zero": "starts from zero",
    "first": "is a copy at the first step",
    "corrected": "starts from zero and is corrected for it",
}


def _in_average(quantity: str, trials: list[Trial], close: float) -> Iterator[str]:
    """Say how JAX keeps an average and how PyTorch does, if each is understood, and in both trainings."""

    if not trials[0].records[0][quantity].keys() <= trials[0].before(0).keys():
        return  # it is not an average of the parameters

    def understood(records_of: Callable[[Trial], list[Record]]) -> list[Average]:
        given = [(records_of(trial), trial.before(0)) for trial in trials]
        kinds = product((True, False), STARTS)
        found = [Average(_decay(quantity, *given[0], after, start), after, start) for after, start in kinds]
        return [kind for kind in found if all(_left_of_average(kind, quantity, *run) <= close for run in given)]

    in_jax = understood(lambda trial: trial.records)
    in_torch = understood(lambda trial: [trial.in_torch[step] for step in range(len(trial.records))])
    for a, b in product(in_jax, in_torch) if not set(in_jax) & set(in_torch) else ():
        if a.decay != b.decay:
            yield f"{quantity} keeps {a.decay:g} of itself in each step in JAX, and {b.decay:g} in PyTorch"
        if a.after != b.after:
            words = ("before", "after")
            yield f"{quantity} averages the parameters {words[a.after]} the step in JAX, {words[b.after]} it in PyTorch"
        if a.start != b.start:
            yield f"{quantity} {STARTS[a.start]} in JAX, and {STARTS[b.start]} in PyTorch"


def _decay(quantity: str, records: list[Record], start: Arrays, after: bool, begin: str) -> float:
    """Find the decay from one step: that which brings the average from what it was to what it is."""
    parameters = [start, *(record["parameters"] for record in records)]
    at = 1 if begin == "corrected" else len(records) - 1
    new, old = records[at][quantity], records[at - 1][quantity]
    now = parameters[at + after]
    if begin == "corrected":  # (1 + d) · new = d · old + now
        x, y = ({n: now[n] - new[n] for n in new}, {n: new[n] - old[n] for n in new})
    else:
        x, y = ({n: new[n] - now[n] for n in new}, {n: old[n] - now[n] for n in new})
    flat_x, flat_y = _flat(x, new), _flat(y, new)
    return float(f"{flat_x @ flat_y / ((flat_y @ flat_y) or 1.0):.6g}")


def _left_of_average(kind: Average, quantity: str, records: list[Record], start: Arrays) -> float:
    """Keep such an average beside a training; return how far it is from the one that was kept."""
    worst, before = 0.0, start
    names = records[0][quantity]
    average = {name: start[name] * (kind.start not in ("zero", "corrected")) for name in names}
    for step, record in enumerate(records):
        now = record["parameters"] if kind.after else before
        before, d = record["parameters"], 0.0 if kind.start == "first" and step == 0 else kind.decay
        average = {name: d * average[name] + (1 - d) * now[name] for name in average}
        share = 1 - d ** (step + 1) if kind.start == "corrected" else 1.0
        shown = {name: x / (share or 1.0) for name, x in average.items()}
        worst = max(worst, worst_error(quantity, record[quantity], shown))
    return worst if np.isfinite(worst) else np.inf
