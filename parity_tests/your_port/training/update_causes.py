"""Name the mistakes behind moments or parameters that differ: in the optimiser, clipping or the learning rates."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from parity_tests.your_port.training import settings
from parity_tests.your_port.training.settings import Deviation
from parity_tests.your_port.training.sides import JaxTraining, StepRecord
from parity_tests.your_port.training.trials import SHARE, error_left, flat


def causes_in_updates(trials: list[JaxTraining], close: float) -> Iterator[str]:
    """Yield the settings with which PyTorch's training does what JAX's does."""
    first, side = trials[0], trials[0].beside.anew()
    in_torch = [first.beside[step] for step in range(len(first.records))]
    moments = first.beside.state().keys()
    before = error_left(trials[:1], (), moments, np.inf)
    if before <= close:
        return  # the optimisers agree
    close = min(close, SHARE * before)

    def left(*rows: Deviation) -> float:
        try:
            return error_left(trials, rows, moments, close)
        except (KeyError, RuntimeError, TypeError, ValueError):  # amsgrad, of a loaded state; Adafactor's two eps
            return np.inf

    def rated(*rows: Deviation) -> dict[str, float]:
        """The same with the learning rates that bring PyTorch closest to JAX."""
        rates = list[float]()
        error = error_left(trials, [settings.UNIT_RATE, *rows], moments, close, rates)
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
        raw, clipped = (flat(record[q], record["gradients"]) for q in ("gradients", "clipped"))
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
            known = np.stack([flat(column, names) for column in columns], 1)
            beta = np.linalg.lstsq(known, flat(now[quantity], names), rcond=None)[0][0]
            found[quantity] = float(f"{beta:.6g}")
    if {"exp_avg", "exp_avg_sq"} <= found.keys() and all(0 < beta < 1 for beta in found.values()):
        yield "betas", (found["exp_avg"], found["exp_avg_sq"])
    if "momentum_buffer" in found:
        yield "momentum", found["momentum_buffer"]


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
