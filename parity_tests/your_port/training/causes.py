"""Try known mistakes as explanations of where two trainings part.

A mistake is named only if it explains two trainings: the one in which it was found, and another from other weights, on
the batches in another order. Whatever is read off the first (a factor, a learning rate, betas) must hold in the second.

PyTorch's training runs again with the mistake, each step from JAX's parameters. Where the loss or a gradient parts, it
reads what JAX may have read: other labels, fewer rows. Where a moment or a parameter parts, it takes JAX's gradients,
with another setting of its optimiser, another clipping, or the learning rates that follow from JAX's steps.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np

from parity_tests.your_port.measure.arrays import Arrays, flatten
from parity_tests.your_port.training import settings
from parity_tests.your_port.training.errors import Moves, tensor_errors, worst_error
from parity_tests.your_port.training.settings import Deviation
from parity_tests.your_port.training.sides import JaxTraining, StepRecord, TorchTraining

SHARE = 0.01
"""A mistake explains a difference if so much of it is left at most."""
CLIP_EPSILON = 1e-5
"""How far the epsilon of a clipping may move the gradients."""
SCALES = {2.0**power for power in range(8, 25)}
"""How mixed precision may scale a loss: by 2 ** 16 at first. A number of micro-batches is smaller."""
OF_THE_LOSS, OF_UPDATES = 3, 8
"""JAX's training goes on for so many steps, since one step fits more than one explanation."""


def find_causes(quantity: str, step: int, in_jax: JaxTraining, close: float) -> tuple[str, ...]:
    """Name the mistakes that explain why `quantity` is the first to part, at `step` (from 0).

    Args:
        close: the error that counts as agreement.
    """
    in_torch = in_jax.beside
    if quantity == "batch":
        read = [in_torch[other]["batch"] for other in range(len(in_torch.batches))]
        same = [
            i for i, batch in enumerate(read) if not any(tensor_errors(in_jax.records[step]["batch"], batch).values())
        ]
        return tuple(f"JAX reads at step {step + 1} the batch that PyTorch reads at step {i + 1}" for i in same)
    count, of_loss = len(in_torch.batches), quantity in ("loss", "gradients")
    order = range(step + (OF_THE_LOSS if of_loss else OF_UPDATES))
    trials = [
        in_jax.anew(in_torch.anew(weights, [in_torch.batches[place % count] for place in places]))
        for weights, places in ((in_torch.weights, order), (_near(in_torch), [step + 1 - place for place in order]))
    ]
    for trial in trials:
        for batch in trial.beside.batches:
            trial.run(batch)
    if of_loss:
        return tuple(dict.fromkeys(_in_loss(quantity, step, trials, in_jax, close)))
    if quantity in ("norm", "clipped", "learning_rate", *in_torch.state()):
        both = "rates" in in_torch[0] and all("gradients" in record for record in trials[0].records)
        return tuple(_in_updates(trials, close)) if both else ()
    return tuple(_in_average(quantity, trials, close)) if quantity in in_torch[0] else ()


def _near(in_torch: TorchTraining) -> Arrays:
    """Draw other weights near these."""
    rng, tied = np.random.default_rng(0), in_torch.tied
    noise = {name: rng.normal(size=x.shape) for name, x in in_torch.weights.items() if name in tied}
    return {
        name: x + (noise[tied[name]] * np.where(x, 0.1 * x, 0.01)).astype(x.dtype) if name in tied else x
        for name, x in in_torch.weights.items()
    }


def _again(
    trial: JaxTraining, *rows: Deviation, take_gradients: bool = False
) -> Iterator[tuple[StepRecord, StepRecord, Arrays]]:
    """Take the steps of a trial in PyTorch, with mistakes; yield both records of each, and the parameters before it."""
    side = trial.beside.anew()
    side.changes = [row.change for row in reversed(rows) if row.change]
    side.read = next((row.read for row in rows if row.read), side.read)
    scale = np.prod([row.scale for row in rows])
    for step, record in enumerate(trial.records):
        before = trial.before(step)
        side.set_parameters(before)
        side.given = record["gradients"] if take_gradients else {}
        found = side.run(trial.beside.batches[step])
        scaled = {q: {name: scale * x for name, x in found[q].items()} for q in ("loss", "gradients") if q in found}
        yield record, found | scaled, before


def _left(
    trials: list[JaxTraining],
    rows: Iterable[Deviation],
    quantities: Iterable[str],
    close: float,
    rates: list[float] | None = None,
) -> float:
    """Return the largest error that mistakes leave in any trial; infinity where it is above `close`.

    Args:
        rates: filled with the learning rates that bring PyTorch closest to JAX in the first trial; they must do so in
            the others, too.
    """
    worst, updates = 0.0, "parameters" in quantities
    for trial in trials:
        for step, (a, b, before) in enumerate(_again(trial, *rows, take_gradients=updates)):
            if rates is not None:
                names = b["parameters"]
                old = _flat(before, names)
                wanted, taken = (_flat(x["parameters"], names) - old for x in (a, b))
                if step == len(rates):
                    exact = np.abs(old) * np.finfo(old.dtype).eps < 1e-9 * np.abs(taken)  # beside a huge parameter
                    taken = np.where(exact, taken, 0.0) if exact.any() else taken
                    rates.append(float(taken @ wanted / ((taken @ taken) or 1.0)))
                b["parameters"] = {name: before[name] + rates[step] * (x - before[name]) for name, x in names.items()}
            moves = Moves(before, b.get("clipped", {}), trial.beside.groups)
            worst = max(worst, *(worst_error(q, a[q], b[q], moves) for q in quantities if q in a and q in b))
            if not worst <= close:
                return np.inf
    return worst


# The loss and its gradients


def _in_loss(quantity: str, step: int, trials: list[JaxTraining], in_jax: JaxTraining, close: float) -> Iterator[str]:
    as_is = [list(_again(trial)) for trial in trials]
    drawn = "first step gives another result when it is repeated: dropout is on, or something is drawn"
    for side, a, b in (("PyTorch", as_is[0][0][1], in_jax.beside[0]), ("JAX", as_is[0][0][0], in_jax.records[0])):
        if not max(worst_error(q, a[q], b[q]) for q in ("loss", "gradients") if q in a and q in b) <= close:
            yield f"{side}'s {drawn}"
            return
    only = "" if "gradients" in in_jax.records[step] else ", as far as the loss alone shows"
    pairs = [(a, b) for a, b, _ in as_is[0][step:] + as_is[1]]
    clipped = [worst_error("clipped", a["gradients"], b["clipped"]) for a, b in pairs if "clipped" in b and not only]
    clips = any(worst_error("clipped", b["clipped"], b["gradients"]) > 0 for _, b in pairs if "clipped" in b)
    if quantity == "gradients" and clips and (scale := _scale(pairs)):
        yield (
            f"the gradients of PyTorch's backward() are {scale:.0f} times JAX's, which PyTorch undoes later, as with a "
            "GradScaler: leave it out here, by GradScaler(enabled=False)"
        )
        return
    if quantity == "gradients" and clips and max(clipped, default=np.inf) <= CLIP_EPSILON:
        yield "the gradients that JAX returns are clipped already; return them as they are before"
        return
    if quantity == "gradients" and (names := _piled_up(as_is, close)):
        yield (
            f"PyTorch adds the gradients of {_listed(names)} to those of the step before: "
            "call model.zero_grad() in its step, since optimizer.zero_grad() clears only what the optimizer holds"
        )
        return
    yield from (words + only for words in _as_factor(pairs, step))
    yield from _as_decay(quantity, as_is)
    quantities = ("loss", "gradients") if quantity == "loss" else ("gradients",)
    close = min(close, SHARE * _left(trials, (), quantities, np.inf))
    for row in _readings(in_jax.beside.batches[step]):
        try:
            if _left(trials, (row,), quantities, close) <= close:
                yield row.words + only
        except (IndexError, RuntimeError, ValueError):
            continue  # such a batch cannot be read


def _as_factor(pairs: list[tuple[StepRecord, StepRecord]], step: int) -> Iterator[str]:
    """Say whether all of JAX's gradients are one multiple of PyTorch's in every step, and with them the loss."""
    loss, gradients = ([_ratio(a[q], b[q]) for a, b in pairs if q in a and q in b] for q in ("loss", "gradients"))
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


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + " …" * (len(names) > 3)


def _as_decay(quantity: str, runs: Iterable[list[tuple[StepRecord, StepRecord, Arrays]]]) -> Iterator[str]:
    """Say whether one side's loss or gradients hold a weight decay: one multiple of the parameters in every step."""
    steps = [each for run in runs for each in run if all("gradients" in record for record in each[:2])]
    both = [(a["gradients"], b["gradients"]) for a, b, _ in steps]
    apart = [{n: a[n] - x for n, x in b.items() if n in a and a[n].shape == x.shape} for a, b in both]
    names = [n for n in apart[0] if any(np.any(np.abs(x.get(n, 0.0)) > 1e-9) for x in apart)] if apart else []
    decays = [
        _ratio({n: x[n] for n in names if n in x}, before) for x, (_, _, before) in zip(apart, steps, strict=True)
    ]
    if not decays or not np.allclose(decays, decays[0], 1e-6, 0):
        return
    shown, side = _listed(names), "JAX" if decays[0] > 0 else "PyTorch"
    if quantity == "gradients":
        yield f"{side}'s gradients hold a weight decay, {abs(decays[0]):.6g} times {shown}: return them without it"
        return
    squares = [sum(float((before[n] ** 2).sum()) for n in names) for _, _, before in steps]
    losses = [np.sum(a["loss"].get("", np.nan) - b["loss"].get("", np.nan)) for a, b, _ in steps]
    if np.allclose(losses, decays[0] / 2 * np.array(squares), 1e-6, 0):
        yield (
            f"{side}'s loss holds a weight decay, {abs(decays[0]) / 2:.6g} times the squares of {shown}: put it into "
            "both losses, or into both optimizers"
        )


def _piled_up(runs: Iterable[list[tuple[StepRecord, StepRecord, Arrays]]], close: float) -> list[str]:
    """List the parameters whose gradients PyTorch adds to what the step before left in them, if no others part."""
    steps = [
        (a["gradients"], b["gradients"], last.get("clipped", last["gradients"]))
        for run in runs
        for (_, last, _), (a, b, _) in pairwise(run)
    ]
    piled = {name for a, b, _ in steps for name, error in tensor_errors(a, b).items() if error > close}
    alone = [(a, b | {name: b[name] - left[name] for name in piled & b.keys() & left.keys()}) for a, b, left in steps]
    explained = all(worst_error("gradients", a, b) <= close for a, b in alone)
    return [name for name in steps[0][1] if name in piled] if explained else []


def _scale(pairs: list[tuple[StepRecord, StepRecord]]) -> float:
    """Return the scale of mixed precision by which PyTorch's gradients are larger in every step; 0 if it is none."""
    both = [(a["gradients"], b["gradients"]) for a, b in pairs if "gradients" in a and "gradients" in b]
    scales = {float(f"{_ratio(theirs, ours):.9g}") for ours, theirs in both}
    return scales.pop() if len(scales) == 1 and scales <= SCALES else 0.0


def _ratio(a: Arrays, b: Arrays) -> float:
    """The factor between all tensors of a quantity; NaN if it is not one factor."""
    both = [name for name in b if name in a and a[name].shape == b[name].shape]
    x, y = _flat(a, both), _flat(b, both)
    ratio = float(x @ y / (y @ y)) if y.any() else 0.0
    return ratio if ratio and float(np.abs(x - ratio * y).max()) <= 1e-6 * float(np.abs(x).max()) else np.nan


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
    rows = len(next(iter(arrays.values()))) if arrays else 0
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


def _keep(batch: Any, pieces: int, part: slice) -> Any:
    """Keep some of the pieces into which the rows are cut."""
    flat, rebuild = flatten(batch)
    rows = max((len(x) for x in flat.values() if np.ndim(x)), default=0)
    kept = np.arange(rows).reshape(pieces, -1)[part].ravel()
    return rebuild({name: x[kept] if np.ndim(x) and len(x) == rows else x for name, x in flat.items()})


# The optimiser


def _in_updates(trials: list[JaxTraining], close: float) -> Iterator[str]:
    """Yield the settings with which PyTorch's training does what JAX's does."""
    first, side = trials[0], trials[0].beside.anew()
    in_torch = [first.beside[step] for step in range(len(first.records))]
    moments = first.beside.state().keys()
    before = _left(trials[:1], (), moments, np.inf)
    if before <= close:
        return  # the optimisers agree
    close = min(close, SHARE * before)

    def left(*rows: Deviation) -> float:
        try:
            return _left(trials, rows, moments, close)
        except (KeyError, RuntimeError, TypeError, ValueError):  # amsgrad, of a loaded state; Adafactor's two eps
            return np.inf

    def rated(*rows: Deviation) -> dict[str, float]:
        """The same with the learning rates that bring PyTorch closest to JAX."""
        rates = list[float]()
        error = _left(trials, [settings.UNIT_RATE, *rows], moments, close, rates)
        words = _of_rates(rates, [record["rates"][""].tolist() for record in in_torch])
        return {", and ".join([words, *(row.words for row in rows)]): error}

    here, limit = _clipping(in_torch)
    seen = [row for name, value in _estimates(first) for row in settings.setting(side, name, value)]
    rows = [*settings.settings(side), *seen]
    clippings = settings.clippings(here, limit, linear=moments == {"parameters"})
    unclipped = left(Deviation("", settings.clip_otherwise))
    errors = {row.words: left(row) for row in (*rows, *clippings)} | rated()
    # a limit that is not reached clips nothing
    errors = {words: error for words, error in errors.items() if error != unclipped}
    errors[f"the gradients are not clipped in JAX; {here}"] = unclipped
    if min(errors.values()) > close:  # two at once, of which one is seen in the moments, or is Optax's clipping
        seen += [settings.without_epsilon(limit)] * bool(limit)
        for other in seen:
            errors |= {f"{row.words}, and {other.words}": left(row, other) for row in rows if row not in seen}
            errors |= rated(other)
    best = min(errors.values())
    yield from (words for words, error in errors.items() if error <= min(close, 10 * best + 1e-15))


def _clipping(records: list[StepRecord]) -> tuple[str, float]:
    """Read from PyTorch's gradients how they were clipped: in words, and to which norm (0: not by norm)."""
    for record in records:
        if not {"gradients", "clipped"} <= record.keys():
            continue
        raw, clipped = (_flat(record[q], record["gradients"]) for q in ("gradients", "clipped"))
        norm, least = (float(np.linalg.norm(x)) for x in (raw, clipped))
        if not np.array_equal(raw, clipped):
            if np.abs(clipped - least / norm * raw).max() > 1e-6 * np.abs(clipped).max():
                return "PyTorch clips them otherwise", 0.0
            limit = float(f"{least * (1 + 1e-6 / norm):.9g}")  # with PyTorch's epsilon
            return f"PyTorch clips their norm to {limit:g}", limit
    return "PyTorch does not clip them", 0.0


def _estimates(trial: JaxTraining) -> Iterator[tuple[str, Any]]:
    """Read betas or momentum from JAX's moments: m after = b · m before + a · gradient (or its square)."""
    found, (last, now), before = dict[str, float](), trial.records[:2], trial.before(1)
    for quantity, power in {"exp_avg": 1, "exp_avg_sq": 2, "momentum_buffer": 1}.items():
        names = [name for name in now.get(quantity, {}) if name in now["gradients"]]
        if names:
            columns = [last[quantity], {name: now["gradients"][name] ** power for name in names}]
            columns += [before] * (power == 1)  # a decay that is added to the gradient
            known = np.stack([_flat(column, names) for column in columns], 1)
            beta = np.linalg.lstsq(known, _flat(now[quantity], names), rcond=None)[0][0]
            found[quantity] = float(f"{beta:.6g}")
    if {"exp_avg", "exp_avg_sq"} <= found.keys() and all(0 < beta < 1 for beta in found.values()):
        yield "betas", (found["exp_avg"], found["exp_avg_sq"])
    if "momentum_buffer" in found:
        yield "momentum", found["momentum_buffer"]


def _flat(arrays: Arrays, names: Iterable[str]) -> np.ndarray:
    return np.concatenate([np.ravel(arrays[name]) for name in names])


def _of_rates(in_jax: list[float], in_torch: list[list[float]]) -> str:
    """Say how JAX's learning rates differ from those of PyTorch's groups."""
    close = partial(np.allclose, rtol=1e-5, atol=1e-12)
    a, groups = np.array(in_jax), np.array(in_torch[: len(in_jax)])
    if (groups != groups[:, :1]).any():
        rates = ", ".join(f"{rate:.6g}" for rate in groups[0])
        return f"the learning rate is {a[0]:.6g} in JAX for all parameters, and {rates} for PyTorch's groups at step 1"
    b = groups[:, 0]
    apart = np.abs(a - b)
    step = int(np.argmax(apart > np.minimum(apart.max() / 2, 1e-12 + 1e-5 * np.abs(b))))
    digits = 9 if f"{a[step]:.6g}" == f"{b[step]:.6g}" else 6
    here = f"{a[step]:.{digits}g} in JAX and {b[step]:.{digits}g} in PyTorch at step {step + 1}"
    if len(a) > 2 and not close(b, b[0]):
        for way, x, y in (("ahead", a[:-1], b[1:]), ("behind", a[1:], b[:-1])):
            if close(x, y):
                return f"the schedule is one step {way} in JAX: the learning rate is {here}"
        if step == 0 and b[1] > b[0] and a[1] <= a[0] * (1 + 1e-9):
            return f"the schedule has no warm-up in JAX: the learning rate is {here}"
        if close(a, a[0]):
            return f"the learning rate has no schedule in JAX: it is {here}"
    return f"the learning rate is {here}"


# An average of the parameters: a ← decay · a + (1 − decay) · parameters


def _in_average(quantity: str, trials: list[JaxTraining], close: float) -> Iterator[str]:
    """Say how JAX keeps an average and how PyTorch does, if each is understood, and in both trainings."""
    if not trials[0].records[0][quantity].keys() <= trials[0].weights.keys():
        return  # it is not an average of the parameters
    found = []
    for runs in ([t.records for t in trials], [[t.beside[i] for i in range(len(t.records))] for t in trials]):
        both = {_as_average(quantity, run, t.weights, close) for run, t in zip(runs, trials, strict=True)}
        found.append(both.pop() if len(both) == 1 else None)
    a, b = found
    if a and b and a[0] != b[0]:
        yield f"{quantity} keeps {a[0]:g} of itself in each step in JAX, and {b[0]:g} in PyTorch"
    if a and b and a[1] != b[1]:
        yield f"{quantity} starts from {a[1]} in JAX, and starts from {b[1]} in PyTorch"


def _as_average(
    quantity: str, records: list[StepRecord], weights: Mapping[str, np.ndarray], close: float
) -> tuple[float, str] | None:
    """Find an average's decay and what it starts from; None if it is another."""
    (last, record), names = records[-2:], records[0][quantity]
    now = _flat(record["parameters"], names)
    x, y = _flat(record[quantity], names) - now, _flat(last[quantity], names) - now
    decay = float(f"{x @ y / ((y @ y) or 1.0):.6g}")
    starts = {
        "the parameters": weights,
        "the parameters after the first step": records[0]["parameters"],  # as PyTorch's AveragedModel
        "zero": {name: np.zeros_like(x) for name, x in weights.items()},
    }
    for start, first in starts.items():
        average, worst = {name: first[name] for name in names}, 0.0
        for record in records:
            average = {n: decay * x + (1 - decay) * record["parameters"][n] for n, x in average.items()}
            worst = max(worst, worst_error(quantity, record[quantity], average))
        if worst <= close:
            return decay, start
    return None
