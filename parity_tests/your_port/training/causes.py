"""Try known mistakes as explanations of where two trainings part.

A mistake is named only if it explains two trainings: the one in which it was found, and another from other weights, on
the batches in another order. Whatever is read off the first (a factor, a learning rate, betas) must hold in the second.

Where the loss or a gradient parts, PyTorch's step runs again on what JAX may have read: other labels, fewer rows. Where
a moment or a parameter parts, PyTorch's training runs again on JAX's gradients with another setting of its optimiser,
another clipping, or the learning rates that follow from JAX's steps.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from parity_tests.your_port.measure.tree import flatten
from parity_tests.your_port.training import settings
from parity_tests.your_port.training.errors import worst_error
from parity_tests.your_port.training.settings import Row
from parity_tests.your_port.training.sides import JaxTraining, Record, TorchTraining
from parity_tests.your_port.weights.positions import Arrays

CLOSE = {"float64": 1e-8, "float32": 1e-4}
"""What counts as agreement."""
SHARE = 0.01
"""A mistake explains a difference if so much of it is left at most."""
CLIP_EPSILON = 1e-5
"""How far the epsilon of a clipping may move the gradients."""
MORE_STEPS = 8
"""JAX's training goes on for so many steps, since one step fits more than one explanation."""
Change = Callable[[Any], Any]
"""batch -> what JAX may have read in its place."""


class Trial(NamedTuple):
    """A training that a mistake must explain."""

    in_torch: TorchTraining
    records: list[Record]
    """JAX's."""

    def before(self, step: int) -> Arrays:
        """Return JAX's parameters before a step."""
        return self.records[step - 1]["parameters"] if step else self.in_torch.before(0)

    def again(self, step: int, change: Change | None = None) -> Record:
        """Take PyTorch's step from JAX's parameters, on what JAX may have read."""
        side, batch = self.in_torch.anew(), self.in_torch.batches[step]
        side.set_parameters(self.before(step))
        return side.run(change(batch) if change else batch)


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
    if quantity not in ("norm", "clipped", "learning_rate", *in_torch.state()):
        return tuple(_in_average(quantity, trials, close))
    if "rates" not in in_torch[0] or any("gradients" not in record for record in trials[0].records):
        return ()  # PyTorch's optimiser was not stepped, or JAX gave no gradients
    return tuple(_in_updates(trials, close))


def _run(in_torch: TorchTraining, in_jax: JaxTraining) -> Trial:
    """Run JAX beside a training of PyTorch."""
    in_jax.restart(in_torch.weights)
    return Trial(in_torch, [in_jax.run(batch) for batch in in_torch.batches])


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
    for other in range(len(in_torch.batches)):
        if np.array_equal(in_torch[other].get("batch", {}).get("", ()), found[step]["batch"][""]):
            yield f"JAX reads at step {step + 1} the batch that PyTorch reads at step {other + 1}"


# The loss and its gradients


def _in_loss(step: int, trials: list[Trial], in_torch: TorchTraining, found: list[Record], close: float) -> Any:
    first, fresh = trials
    drawn = "first step gives another result when it is repeated: dropout is on, or something is drawn"
    for side, a, b in (("PyTorch", first.again(0), in_torch[0]), ("JAX", first.records[0], found[0])):
        if not _left(a, b) <= close:
            yield f"{side}'s {drawn}"
            return
    steps = [(trial, number, trial.again(number)) for trial, number in ((first, step), *((fresh, n) for n in range(3)))]
    close = min(close, SHARE * _left(first.records[step], steps[0][2]))
    only = "" if "gradients" in first.records[step] else ", as far as the loss alone shows"
    pairs = [(trial.records[number], as_is) for trial, number, as_is in steps]
    yield from (words + only for words in _as_factor(pairs, step))
    for words, change, factor in _readings(in_torch.batches[step]):
        try:
            if all(_explains(change, factor, *place, close) for place in steps):
                yield words + only
        except (IndexError, RuntimeError, ValueError):
            continue  # such a batch cannot be read


def _explains(change: Change, factor: float, trial: Trial, step: int, as_is: Record, close: float) -> bool:
    """Whether PyTorch's step on what JAX may have read has JAX's gradients and loss, or the loss of the whole batch."""
    again = {q: {name: factor * x for name, x in xs.items()} for q, xs in trial.again(step, change).items()}
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


def _ratio(a: Arrays, b: Arrays) -> float:
    """The factor between all tensors of a quantity; NaN if it is not one factor."""
    both = [name for name in b if name in a and a[name].shape == b[name].shape]
    x, y = _flat(a, both), _flat(b, both)
    ratio = float(x @ y / (y @ y)) if y.any() else 0.0
    return ratio if ratio and float(np.abs(x - ratio * y).max()) <= 1e-6 * float(np.abs(x).max()) else np.nan


def _readings(batch: Any) -> Iterator[tuple[str, Change, float]]:
    """Yield what JAX may have read in the place of a batch, and by what its loss and gradients are then multiplied."""
    arrays = {name: x for name, x in flatten(batch)[0].items() if isinstance(x, np.ndarray) and x.ndim}
    for name, x in arrays.items():
        for other, y in arrays.items():
            if other != name and (y.shape, y.dtype) == (x.shape, x.dtype):
                words = f"JAX uses {other} of the batch in the place of {name}"
                yield words, partial(_with, name=name, source=other), 1.0
        for by in (-2, -1, 1, 2):
            words = f"{name} of the batch is shifted by {abs(by)} to the {'left' if by < 0 else 'right'} in JAX"
            yield words, partial(_with, name=name, source=name, by=by), 1.0
    rows = len(next(iter(arrays.values()))) if arrays else 0
    for pieces in (pieces for pieces in range(2, rows + 1) if rows % pieces == 0 and pieces in (*range(17), rows)):
        for out, side in product(sorted({1, pieces - 1}), ("first", "last")):
            words = f"the {side} {out * rows // pieces} of {rows} rows of the batch are left out in JAX"
            keep = partial(_keep, pieces=pieces, part=slice(out, None) if side == "first" else slice(pieces - out))
            yield words, keep, 1.0
            yield f"{words}, and the divisor still counts them", keep, 1 - out / pieces


def _with(batch: Any, name: str, source: str, by: int = 0) -> Any:
    """Put one of the arrays, perhaps shifted, in the place of another."""
    flat, rebuild = flatten(batch)
    return rebuild({**flat, name: np.roll(flat[source], by, -1)})


def _keep(batch: Any, pieces: int, part: slice) -> Any:
    """Keep some of the pieces into which the rows are cut."""
    flat, rebuild = flatten(batch)
    rows = max((len(x) for x in flat.values() if isinstance(x, np.ndarray) and x.ndim), default=0)
    kept = np.arange(rows).reshape(pieces, -1)[part].ravel()
    return rebuild({name: x[kept] if np.ndim(x) and len(x) == rows else x for name, x in flat.items()})


# The optimiser


def _in_updates(trials: list[Trial], close: float) -> Iterator[str]:
    """Yield the settings with which PyTorch's training does what JAX's does."""
    first = trials[0]
    in_torch = [first.in_torch[step] for step in range(len(first.records))]
    before = _replay(first, Row("", lambda side: None), np.inf)
    if before <= close:
        return  # the optimisers agree
    close = min(close, SHARE * before)

    def left(row: Row) -> float:
        """The error that is left in either training."""
        error = _replay(first, row, close)
        return max(error, *(_replay(trial, row, close) for trial in trials[1:])) if error <= close else np.inf

    def rated(row: Row | None = None) -> Row:
        """With the learning rates that bring PyTorch closest to JAX."""
        rates = _rates(first, row)
        words = _of_rates(rates, [float(record["rates"][""][0]) for record in in_torch])
        return Row(words, partial(settings.set_rates, rates=rates))

    side, (here, limit) = first.in_torch.anew(), _clipping(in_torch)
    seen = [row for name, value in _estimates(first) for row in settings.setting(side, name, value)]
    rows = [*settings.settings(side), *seen]
    errors = {row.words: left(row) for row in [*rows, rated()]}
    unclipped = left(Row("", settings.clip_otherwise))
    errors[f"the gradients are not clipped in JAX; {here}"] = unclipped
    for row in settings.clippings(here, limit, linear=first.in_torch.state().keys() == {"parameters"}):
        error = left(row)
        if error != unclipped:  # a limit that is not reached clips nothing
            errors[row.words] = min(error, errors.get(row.words, np.inf))
    if min(errors.values()) > close:  # two at once, of which one is seen in the moments, or is Optax's clipping
        seen += [settings.without_epsilon(limit)] * bool(limit)
        both = [row.beside(other) for other in seen for row in [*rows, rated(other)] if row not in seen]
        errors = {row.words: left(row) for row in both}
    best = min(errors.values(), default=np.inf)
    yield from (words for words, error in errors.items() if error <= min(close, 10 * best + 1e-15))


def _replay(trial: Trial, row: Row, close: float) -> float:
    """Train in PyTorch with a mistake, on JAX's gradients; return the error of the worst, infinite above `close`."""
    side, worst = trial.in_torch.anew(), 0.0
    row.change(side)
    for record, batch in zip(trial.records, trial.in_torch.batches, strict=True):
        side.given = record["gradients"]
        side.run(batch)
        errors = (worst_error(q, record[q], xs, trial.before(0)) for q, xs in side.state().items() if q in record)
        worst = max(worst, *errors)
        if not worst <= close:
            return np.inf
    return worst


def _rates(trial: Trial, row: Row | None) -> list[float]:
    """Find the learning rates with which PyTorch comes closest to JAX: an update is proportional to its rate."""
    side, rates = trial.in_torch.anew(), list[float]()
    if row:
        row.change(side)
    settings.set_rates(side, [1.0] * len(trial.records))
    for step, record in enumerate(trial.records):
        before = trial.before(step)
        side.set_parameters(before)
        side.given = record["gradients"]
        after = side.run(trial.in_torch.batches[step])["parameters"]
        taken, wanted = (_flat(x, after) - _flat(before, after) for x in (after, record["parameters"]))
        rates.append(float(taken @ wanted / ((taken @ taken) or 1.0)))
    return rates


def _clipping(records: list[Record]) -> tuple[str, float]:
    """Read from PyTorch's gradients how they were clipped: in words, and to which norm (0: not by norm)."""
    for record in records:
        raw, clipped = (_flat(record[q], record["gradients"]) for q in ("gradients", "clipped"))
        norm, least = (float(np.linalg.norm(x)) for x in (raw, clipped))
        if not np.array_equal(raw, clipped):
            if np.abs(clipped - least / norm * raw).max() > 1e-6 * np.abs(clipped).max():
                return "PyTorch clips them otherwise", 0.0
            limit = float(f"{least * (1 + 1e-6 / norm):.9g}")  # with PyTorch's epsilon
            return f"PyTorch clips their norm to {limit:g}", limit
    return "PyTorch does not clip them", 0.0


def _estimates(trial: Trial) -> Iterator[tuple[str, Any]]:
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


# An average of the parameters: a ← decay · a + (1 − decay) · parameters


def _in_average(quantity: str, trials: list[Trial], close: float) -> Iterator[str]:
    """Say how JAX keeps an average and how PyTorch does, if each is understood, and in both trainings."""
    if not trials[0].records[0][quantity].keys() <= trials[0].before(0).keys():
        return  # it is not an average of the parameters
    starts = [trial.before(0) for trial in trials]
    in_torch = [[trial.in_torch[step] for step in range(len(trial.records))] for trial in trials]
    a = _as_average(quantity, [trial.records for trial in trials], starts, close)
    b = _as_average(quantity, in_torch, starts, close)
    if a and b and a[0] != b[0]:
        yield f"{quantity} keeps {a[0]:g} of itself in each step in JAX, and {b[0]:g} in PyTorch"
    if a and b and a[1] != b[1]:
        words = ("zero", "the parameters")
        yield f"{quantity} starts from {words[a[1]]} in JAX, and starts from {words[b[1]]} in PyTorch"


def _as_average(
    quantity: str, runs: list[list[Record]], starts: list[Arrays], close: float
) -> tuple[float, bool] | None:
    """Find an average's decay, and whether it starts from the parameters or from zero; None if it is another."""
    last, record = runs[0][-2:]
    names, now = record[quantity], _flat(record["parameters"], record[quantity])
    x, y = _flat(record[quantity], names) - now, _flat(last[quantity], names) - now
    decay = float(f"{x @ y / ((y @ y) or 1.0):.6g}")
    for of_parameters in (True, False):
        worst = 0.0
        for records, start in zip(runs, starts, strict=True):
            average = {name: start[name] * of_parameters for name in names}
            for record in records:
                average = {n: decay * x + (1 - decay) * record["parameters"][n] for n, x in average.items()}
                worst = max(worst, worst_error(quantity, record[quantity], average))
        if worst <= close:
            return decay, of_parameters
    return None
