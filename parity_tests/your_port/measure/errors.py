"""How far a tensor is from the right one: each entry is measured beside the entries of about its own size.

The size by which an entry's error is divided is the largest |truth| at most three decades above the entry's own. So
finfo.min or −1e9, with which a mask fills a tensor, say nothing about the entries beside them, whatever lies between;
and an entry that happens to be near 0 among others is measured by these, since it carries their rounding.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from parity_tests.your_port.measure.arrays import is_floating

DECADES = 3
"""How far apart numbers of about the same size are at most."""
DECADES_OF_FLOAT32 = 7
"""The same in float32, in which a number may be nothing but the rounding of one that is 1e7 times larger."""


def unit_roundoff(dtype: str) -> float:
    """u: half the distance from 1 to the next number."""
    return float(jnp.finfo(dtype).eps) / 2


def relative_error(x: np.ndarray, truth: np.ndarray, least: Any = 0.0) -> float:
    """Compute the largest |x − truth| / size; or count wrong integers.

    Args:
        least: the smallest size that any entry is measured by, such as a share of the largest number of other tensors;
            or one for each entry.

    Returns:
        0 where both are equal, infinity where they differ in shape, in NaN or in infinities.
    """
    if x.shape != truth.shape or differing_extremes(x, truth):
        return np.inf
    if not is_floating(truth):
        return float(np.sum(x != truth))
    return float(relative_errors(x, truth, least).max(initial=0.0))


def relative_errors(x: np.ndarray, truth: np.ndarray, least: Any = 0.0) -> np.ndarray:
    """Compute each entry's |x − truth| / size; 0 where the truth is not finite."""
    x, truth = np.asarray(x, np.float64), np.asarray(truth, np.float64)
    finite, errors = np.isfinite(truth), np.zeros(truth.shape)
    sizes, *_ = neighbours(truth[finite], np.zeros(finite.sum()))
    with np.errstate(over="ignore"):
        errors[finite] = np.abs(x[finite] - truth[finite]) / np.maximum(
            sizes, np.broadcast_to(least, truth.shape)[finite]
        )
    return errors


def differing_extremes(x: np.ndarray, truth: np.ndarray, sides: tuple[str, str] = ("JAX", "PyTorch")) -> str:
    """Say which of NaN and the infinities do not stand in the same places; "" if all do."""
    if not is_floating(truth) or (np.isfinite(x).all() and np.isfinite(truth).all()):
        return ""
    x, truth = x.astype(np.float64), truth.astype(np.float64)
    for name, test in (("NaN", np.isnan), ("inf", np.isposinf), ("−inf", np.isneginf)):
        found, expected = test(x), test(truth)
        if not np.array_equal(found, expected):
            return f"{name} in {found.sum()} places in {sides[0]}, in {expected.sum()} in {sides[1]}, not the same ones"
    return ""


def neighbours(truth: np.ndarray, noise: np.ndarray, decades: int = DECADES) -> tuple[np.ndarray, ...]:
    """Return the sizes that finite entries are measured by, the largest noise that each may carry, and their own sizes.

    A zero, which has no size, counts as the largest entry, but at most as 1; and no size is below a hundredth of that:
    with a bound of 1e-12 some hundred roundings of the largest entry may be anywhere. Noise is that of entries of about
    the same size. Where it leaves no digit, an entry was cancelled or absorbed, and may carry that of far larger ones.
    Its own size is without the hundredth: a part of a tensor may be nothing but rounding.
    """
    if truth.size == 0:
        return truth, noise, truth
    magnitudes = np.abs(truth)
    one = min(1.0, magnitudes.max()) or 1.0
    magnitudes[magnitudes == 0] = one
    places = np.floor(np.log10(magnitudes)).astype(int)
    group = places - places.min()
    above = np.arange(group.max() + 1) - np.arange(group.max() + 1)[:, None]

    def by_decade(values: np.ndarray) -> np.ndarray:
        found = np.zeros(len(above))
        np.maximum.at(found, group, values)
        return found

    largest, loudest = by_decade(magnitudes), by_decade(noise)
    sizes = np.where((above >= 0) & (above <= decades), largest, 0.0).max(1)
    reach = np.where(loudest < 0.1 * largest, decades, DECADES_OF_FLOAT32)[:, None]
    carried = np.where((above >= -decades) & (above <= reach), loudest, 0.0).max(1)
    return np.maximum(sizes, one / 100)[group], carried[group], sizes[group]
