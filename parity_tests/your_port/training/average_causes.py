"""Say how an average of the parameters is kept otherwise: a ← decay · a + (1 − decay) · parameters."""

from collections.abc import Iterator, Mapping

import numpy as np

from parity_tests.your_port.training.errors import worst_error
from parity_tests.your_port.training.sides import JaxTraining, StepRecord
from parity_tests.your_port.training.trials import flat


def causes_in_average(quantity: str, trials: list[JaxTraining], close: float) -> Iterator[str]:
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
    now = flat(record["parameters"], names)
    x, y = flat(record[quantity], names) - now, flat(last[quantity], names) - now
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
