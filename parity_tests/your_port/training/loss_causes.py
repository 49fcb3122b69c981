"""Name the mistakes behind a loss or gradients that differ: in the batch, the loss, or after the backward pass."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, pairwise, product
from typing import Any

import numpy as np

from parity_tests.your_port.measure.arrays import Arrays, flatten
from parity_tests.your_port.training.errors import tensor_errors, worst_error
from parity_tests.your_port.training.settings import Deviation
from parity_tests.your_port.training.sides import JaxTraining, StepRecord
from parity_tests.your_port.training.trials import SHARE, TrialStep, error_left, ratio, take_again

CLIP_EPSILON = 1e-5
"""How far the epsilon of a clipping may move the gradients."""
SCALES = {2.0**power for power in range(8, 25)}
"""How mixed precision may scale a loss: by 2 ** 16 at first. A number of micro-batches is smaller."""


def causes_in_loss(
    quantity: str, step: int, trials: list[JaxTraining], in_jax: JaxTraining, close: float
) -> Iterator[str]:
    """Name what the loss or its gradients, of which `quantity` parts first, at `step`, are otherwise computed from.

    Args:
        trials: two trainings, of which the first repeats `in_jax`.
    """
    as_is = [[*take_again(trial)] for trial in trials]
    drawn = "first step gives another result when it is repeated: dropout is on, or something is drawn"
    for side, a, b in (
        ("PyTorch", as_is[0][0].in_torch, in_jax.beside[0]),
        ("JAX", as_is[0][0].in_jax, in_jax.records[0]),
    ):
        if not max(worst_error(q, a[q], b[q]) for q in ("loss", "gradients") if q in a and q in b) <= close:
            yield f"{side}'s {drawn}"
            return
    pairs = [(a, b) for a, b, _ in as_is[0][step:] + as_is[1]]
    if quantity == "gradients" and (words := _after_backward(as_is, pairs, close)):
        yield words
        return
    only = "" if "gradients" in in_jax.records[step] else ", as far as the loss alone shows"
    yield from (words + only for words in _as_factor(pairs, step))
    yield from _as_decay(quantity, chain(*as_is))
    quantities = ("loss", "gradients") if quantity == "loss" else ("gradients",)
    close = min(close, SHARE * error_left(trials, (), quantities, np.inf))
    for row in _readings(in_jax.beside.batches[step]):
        try:
            if error_left(trials, (row,), quantities, close) <= close:
                yield row.words + only
        except (IndexError, RuntimeError, ValueError):
            continue  # such a batch cannot be read


def _after_backward(runs: list[list[TrialStep]], pairs: list[tuple[StepRecord, StepRecord]], close: float) -> str:
    """Say why the gradients are recorded otherwise, though both may compute the same: scaled, clipped or piled up."""
    clipped = [(a["gradients"], b["clipped"], b["gradients"]) for a, b in pairs if "clipped" in b]
    clips = any(worst_error("clipped", after, before) > 0 for _, after, before in clipped)
    if clips and (scale := _scale(pairs)):
        return (
            f"the gradients of PyTorch's backward() are {scale:.0f} times JAX's, which PyTorch undoes later, as with a "
            "GradScaler: leave it out here, by GradScaler(enabled=False)"
        )
    if clips and all(worst_error("clipped", ours, after) <= CLIP_EPSILON for ours, after, _ in clipped):
        return "the gradients that JAX returns are clipped already; return them as they are before"
    if names := _piled_up(runs, close):
        return (
            f"PyTorch adds the gradients of {_listed(names)} to those of the step before: "
            "call model.zero_grad() in its step, since optimizer.zero_grad() clears only what the optimizer holds"
        )
    return ""


def _as_factor(pairs: list[tuple[StepRecord, StepRecord]], step: int) -> Iterator[str]:
    """Say whether all of JAX's gradients are one multiple of PyTorch's in every step, and with them the loss."""
    loss, gradients = ([ratio(a[q], b[q]) for a, b in pairs if q in a and q in b] for q in ("loss", "gradients"))
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


def _as_decay(quantity: str, steps: Iterable[TrialStep]) -> Iterator[str]:
    """Say whether one side's loss or gradients hold a weight decay: one multiple of the parameters in every step."""
    steps = [step for step in steps if "gradients" in step.in_jax and "gradients" in step.in_torch]
    added = [_difference(step.in_jax["gradients"], step.in_torch["gradients"]) for step in steps]
    names = list(dict.fromkeys(name for each in added for name, x in each.items() if np.abs(x).max() > 1e-9))
    if not names:
        return
    decays = [
        ratio({name: each[name] for name in names if name in each}, step.before)
        for each, step in zip(added, steps, strict=True)
    ]
    if not np.allclose(decays, decays[0], 1e-6, 0):
        return
    shown, side = _listed(names), "JAX" if decays[0] > 0 else "PyTorch"
    if quantity == "gradients":
        yield f"{side}'s gradients hold a weight decay, {abs(decays[0]):.6g} times {shown}: return them without it"
        return
    squares = np.array([sum(float((step.before[name] ** 2).sum()) for name in names) for step in steps])
    losses = [
        float(np.sum(step.in_jax["loss"].get("", np.nan) - step.in_torch["loss"].get("", np.nan))) for step in steps
    ]
    if np.allclose(losses, decays[0] / 2 * squares, 1e-6, 0):
        yield (
            f"{side}'s loss holds a weight decay, {abs(decays[0]) / 2:.6g} times the squares of {shown}: put it into "
            "both losses, or into both optimizers"
        )


def _difference(a: Arrays, b: Arrays) -> Arrays:
    return {name: a[name] - x for name, x in b.items() if name in a and a[name].shape == x.shape and x.size}


def _piled_up(runs: Iterable[list[TrialStep]], close: float) -> list[str]:
    """List the parameters whose gradients PyTorch adds to what the step before left in them, if no others part."""
    pairs = [pair for run in runs for pair in pairwise(run)]
    steps = [
        (step.in_jax["gradients"], step.in_torch["gradients"], last.in_torch.get("clipped", last.in_torch["gradients"]))
        for last, step in pairs
    ]
    piled = {name for a, b, _ in steps for name, error in tensor_errors(a, b).items() if error > close}
    alone = [(a, b | {name: b[name] - left[name] for name in piled & b.keys() & left.keys()}) for a, b, left in steps]
    explained = all(worst_error("gradients", a, b) <= close for a, b in alone)
    return [name for name in steps[0][1] if name in piled] if explained else []


def _scale(pairs: list[tuple[StepRecord, StepRecord]]) -> float:
    """Return the scale of mixed precision by which PyTorch's gradients are larger in every step; 0 if it is none."""
    both = [(a["gradients"], b["gradients"]) for a, b in pairs if "gradients" in a and "gradients" in b]
    scales = {float(f"{ratio(theirs, ours):.9g}") for ours, theirs in both}
    return scales.pop() if len(scales) == 1 and scales <= SCALES else 0.0


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + " …" * (len(names) > 3)


# The batch


def _readings(batch: Any) -> Iterator[Deviation]:
    """Yield what JAX may have read instead of a batch."""
    arrays = {name: x for name, x in flatten(batch)[0].items() if isinstance(x, np.ndarray) and x.ndim}
    for name, x in arrays.items():
        for other, y in arrays.items():
            if other != name and (y.shape, y.dtype) == (x.shape, x.dtype):
                words = f"JAX uses {other} of the batch instead of {name}"
                yield Deviation(words, read=partial(_with, name=name, source=other))
        for by in (-2, -1, 1, 2):
            words = f"{name} of the batch is shifted by {abs(by)} to the {'left' if by < 0 else 'right'} in JAX"
            yield Deviation(words, read=partial(_with, name=name, source=name, by=by))
    rows = _rows(arrays)
    for pieces in (pieces for pieces in range(2, rows + 1) if rows % pieces == 0 and pieces in (*range(17), rows)):
        for out, side in product(sorted({1, pieces - 1}), ("first", "last")):
            words = f"the {side} {out * rows // pieces} of {rows} rows of the batch are left out in JAX"
            part = slice(out, None) if side == "first" else slice(pieces - out)
            read = partial(_keep, pieces=pieces, part=part)
            yield Deviation(words, read=read)
            yield Deviation(f"{words}, and the divisor still counts them", read=read, scale=1 - out / pieces)


def _with(batch: Any, name: str, source: str, by: int = 0) -> Any:
    """Put one of the arrays, perhaps shifted, instead of another."""
    flat, rebuild = flatten(batch)
    return rebuild({**flat, name: np.roll(flat[source], by, -1)})


def _rows(arrays: Mapping[str, Any]) -> int:
    """Return the length of most arrays of a batch."""
    lengths = Counter(len(x) for x in arrays.values() if np.ndim(x))
    return lengths.most_common(1)[0][0] if lengths else 0


def _keep(batch: Any, pieces: int, part: slice) -> Any:
    """Keep some of the pieces into which the rows are cut."""
    flat, rebuild = flatten(batch)
    rows = _rows(flat)
    kept = np.arange(rows).reshape(pieces, -1)[part].ravel()
    return rebuild({name: x[kept] if np.ndim(x) and len(x) == rows else x for name, x in flat.items()})
