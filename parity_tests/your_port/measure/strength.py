"""How much inputs can show: which are the same number everywhere, and stronger ones. Imports no torch.

With an input of ones, equal lengths, or a mask that hides nothing, two different programs may agree. So two that agree
run once more on other numbers, where these cost little: the compiled program is the same.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from parity_tests.your_port.measure.arrays import flatten, is_floating
from parity_tests.your_port.measure.case import Case, Variant, random_for
from parity_tests.your_port.measure.draw import Draw
from parity_tests.your_port.measure.judge import Measurement, Runs
from parity_tests.your_port.measure.numbers import Run, redrawn


def find_constant(case: Case) -> list[str]:
    """Say which inputs are the same number everywhere, in one sentence or none."""
    flat, _ = flatten(dict(case.variants[0].inputs))
    found = {name: x for name, x in flat.items() if x is not None and _is_constant(np.asarray(x))}
    more = " (print(report.blind) shows which)" if case.torch.golden is None else ""
    return [f"{_everywhere(found)}, which may hide mistakes{more}"] if found else []


def on_other_numbers(draw: Draw) -> tuple[list[Measurement], list[str]]:
    """Run two programs that agree once more, on other weights where these are constant, and on other inputs.

    Returns:
        the results that an input changes in PyTorch and not in JAX, and what else parts them, in words.
    """
    if draw.case.torch.golden is not None:
        return [], []  # PyTorch has no other numbers
    numbers, most = draw.numbers, 1 if draw.dtype == "float64" else 16  # a single draw below float64 may be unlucky
    values = {**numbers.weights, **numbers.buffers}
    leaving = {name for name, x in values.items() if x.size == 1 and float(x.flat[0]) in (0.0, 1.0)}  # all as it is
    weights = {name: _varied(x, name) for name, x in values.items() if _is_constant(x) or name in leaving}
    seen = draw.in_torch().gradients
    unseen = {name: np.asarray(x) for name, x in numbers.inputs.items() if x is not None and name not in seen}
    drawn = {name: redrawn(x, random_for(draw.case.name, "other numbers", name)) for name, x in unseen.items()}
    inputs = {name: x for name, x in drawn.items() if not np.array_equal(x, unseen[name], equal_nan=is_floating(x))}
    weak, unread = list[str](), list[Measurement]()

    def run(others: Mapping[str, Any]) -> Runs | None:
        try:
            return draw.on(numbers.rounded(draw.dtype, others)).runs()
        except Exception:  # PyTorch refuses these numbers
            return None

    def parted(others: Mapping[str, Any]) -> list[Measurement]:
        runs = run(others) if others else None
        is_nan = runs and any(np.isnan(x).any() for x in runs.truth.outputs.values() if is_floating(x))
        measured = [] if runs is None or is_nan else draw.compare(runs)
        return sorted((m for m in measured if m.share > most), key=lambda m: m.is_gradient)

    if found := parted(weights):
        names = [name for name, x in weights.items() if parted({name: x})] or weights
        told = _everywhere({name: values[name] for name in names})
        weak.append(f"{told}, and with other numbers the two differ in {found[0].tensor}")
    if found := parted(inputs):
        first = draw.runs()
        for name, x in inputs.items():
            other = run({name: x})
            if other and _same(first.jax, other.jax) and not _same(first.torch, other.torch):
                words = f"other numbers in {name} change it in PyTorch, and not in JAX: does the port read it?"
                unread.append(replace(found[0], mismatch=words))
        weak += [] if unread else [f"with other numbers in {', '.join(inputs)} the two differ in {found[0].tensor}"]
    return unread, weak


def _everywhere(constant: Mapping[str, Any]) -> str:
    told = ", ".join(f"{name} is {np.ravel(x)[0]:g} everywhere" for name, x in [*constant.items()][:3])
    return told + " …" * (len(constant) > 3)


def _same(one: Run, other: Run) -> bool:
    return all(np.array_equal(x, other.outputs[name], equal_nan=is_floating(x)) for name, x in one.outputs.items())


def _varied(x: np.ndarray, name: str) -> np.ndarray:
    """Draw numbers of the same sign and of about the same size."""
    drawn = random_for("varied", name).normal(size=x.shape)
    return 0.5 * drawn if not x.any() else x * np.exp(0.5 * drawn)


def stronger(variant: Variant) -> Iterator[Variant]:
    """Yield variants with stronger inputs and with drawn weights; a program may refuse some of them.

    In the first one only constant inputs change. In the next all numbers do: whole ones begin at 0, so that ids meet
    the padding, and real ones have both signs. In the others an axis of one element, such as one key, has two.
    """
    flat, rebuild = flatten(dict(variant.inputs))
    arrays = {name: None if x is None else np.asarray(x) for name, x in flat.items()}
    axes = sorted({axis for x in arrays.values() if x is not None for axis, size in enumerate(x.shape) if size == 1})

    def drawn(name: str, **changed: Any) -> Variant:
        return replace(variant, name=f"{variant.name}, {name}", inputs=rebuild({**arrays, **changed}), weights=None)

    constant = {name: x for name, x in arrays.items() if x is not None and _is_constant(x)}
    yield drawn("constants drawn", **{name: _drawn(x, name, least=1) for name, x in constant.items()})
    for several in dict.fromkeys(((), *((axis,) for axis in axes), tuple(axes))):
        grown = {name: _grown(x, several) for name, x in arrays.items() if x is not None}
        yield drawn(f"all drawn {several}", **{name: _drawn(x, name, least=0) for name, x in grown.items()})


def _is_constant(x: np.ndarray) -> bool:
    return x.size > 1 and bool((x == x.flat[0]).all())


def _grown(x: np.ndarray, axes: Iterable[int]) -> np.ndarray:
    for axis in axes:
        x = np.repeat(x, 2, axis) if x.shape[axis : axis + 1] == (1,) else x
    return x


def _drawn(x: np.ndarray, name: str, least: int) -> np.ndarray:
    """Draw a mask whose rows have both values, whole numbers from `least` up to the largest one, or real numbers."""
    rng = random_for("stronger", name)
    if x.dtype == bool or (least == 0 and x.ndim > 1 and np.isin(x, (0, 1)).all()):
        if not _is_constant(x) or x.shape[-1] == 1:
            return x
        return rng.permuted(np.broadcast_to(np.arange(x.shape[-1]) % 2, x.shape), axis=-1).astype(x.dtype)
    if x.size == 0 or not np.isfinite(x).all() or (x < 0).all():
        return x
    if is_floating(x):
        return rng.normal(size=x.shape)
    drawn = rng.integers(min(least, x.max()), x.max(), x.shape, endpoint=True)
    drawn.flat[np.argmax(x)] = x.max()  # which may be a length of time
    if x.ndim > 1:
        drawn.flat[0] = min(least, x.max())  # which may be the padding
    return np.where(x < 0, x, drawn).astype(x.dtype)
