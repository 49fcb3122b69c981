"""Describe what a wrong tensor looks like beside the right one: often enough to name the mistake."""

from collections.abc import Iterator

import numpy as np

from parity_tests.your_port.measure.errors import relative_error, relative_errors

_CLOSE = 1e-6
"""Relative to the entries of about the same size: what counts as equal here, in any dtype."""
_NEAR_ONE = 1e-3
"""A factor so near 1 is no scale that somebody chose."""
_MOST = 0.9
"""If so many entries differ, all over the tensor, it says nothing which they are."""


def describe(in_jax: np.ndarray | None, truth: np.ndarray | None) -> tuple[str, ...]:
    """Describe each symptom in words; `in_jax` is JAX's tensor, `truth` PyTorch's."""
    if in_jax is None or truth is None or in_jax.size == 0 or in_jax.shape != truth.shape:
        return ()
    in_jax, truth = in_jax.astype(np.float64), truth.astype(np.float64)
    finite = np.isfinite(in_jax).all() and np.isfinite(truth).all()
    return tuple(_in_values(in_jax, truth) if finite else _in_extremes(in_jax, truth))


def _in_extremes(in_jax: np.ndarray, truth: np.ndarray) -> Iterator[str]:
    wrong = np.isnan(in_jax) & ~np.isnan(truth)
    if wrong.any():
        yield f"NaN in {_where(wrong)}: 0 · NaN, or a where whose other branch is NaN"
    wrong = np.isinf(in_jax) & np.isfinite(truth)
    if wrong.any():
        yield f"infinite in {_where(wrong)}: an overflow, or a mask of −inf left in"


def _in_values(in_jax: np.ndarray, truth: np.ndarray) -> Iterator[str]:
    wrong = relative_errors(in_jax, truth) > _CLOSE
    rows = np.atleast_2d(in_jax - truth).reshape(-1, np.atleast_1d(in_jax).shape[-1])
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = float((in_jax * truth).sum() / ((truth * truth).sum() or 1.0))
    if not wrong.any():
        yield "rounding: the two are equal to 6 digits; a precision, an epsilon or an order of summation"
    elif not in_jax.any():
        yield "JAX's is zero everywhere: not used, or its gradient is stopped"
    elif not truth.any():
        yield "PyTorch's is zero everywhere: not used there, or its gradient is stopped"
    elif _equal(in_jax, ratio * truth) and (truth.size > 1 or _is_simple(ratio)):
        digits = 6 if abs(ratio - 1) > 1e-5 else 9
        is_near = abs(ratio - 1) < _NEAR_ONE
        others = "an epsilon, or a constant of few digits" if is_near else "a sum for a mean, or a sign"
        yield f"JAX's is {ratio:.{digits}g} times PyTorch's: a scale, {others}"
    elif len(rows) > 1 and _equal(rows, np.broadcast_to(rows[0], rows.shape)):
        yield "the difference is the same in every row: a bias"
    elif _equal(np.sort(in_jax, axis=None), np.sort(truth, axis=None)):
        yield "the same numbers in another order: an axis transposed, flipped or shifted"
    elif wrong.mean() < _MOST or _block(wrong) != [(0, size) for size in wrong.shape]:
        yield f"only part of it differs: {_where(wrong)}"


def _is_simple(ratio: float) -> bool:
    """Whether it is a whole number, or one divided by it: any two numbers have some ratio."""
    larger = max(abs(ratio), 1 / abs(ratio))
    return abs(larger - round(larger)) <= _CLOSE * larger


def _equal(x: np.ndarray, y: np.ndarray) -> bool:
    return relative_error(x, y) <= _CLOSE


def _where(wrong: np.ndarray) -> str:
    """Count the wrong entries, and give the smallest block of indices that holds them all."""
    block = ", ".join(f"{start}:{end}" for start, end in _block(wrong))
    return f"{wrong.sum()} of {wrong.size} entries, all within [{block}]"


def _block(wrong: np.ndarray) -> list[tuple[int, int]]:
    """Return the smallest block that holds all wrong entries: where it starts and ends along each axis."""
    places = np.argwhere(wrong)
    return [(int(first), int(last) + 1) for first, last in zip(places.min(0), places.max(0), strict=True)]
