"""Lengths and masks in every form, and inputs of attention with NaN where they hide."""

from typing import Any, NamedTuple

import numpy as np

from parity_tests.your_port.measure.case import DTYPES, random_for


class Masking(NamedTuple):
    """Lengths and mask for scores of one shape, and which entries they hide."""

    name: str
    shape: tuple[int, ...]  # [*batch, Q, K]
    valid_lens: np.ndarray | None = None
    mask: np.ndarray | None = None
    options: dict[str, Any] = {}  # noqa: RUF012 (a NamedTuple's default, never written to)
    nan: bool = False
    """Whether NaN stands wherever nothing attends."""

    @property
    def allowed(self) -> np.ndarray:
        """True = may attend, `[*batch, Q, K]`, written independently of both libraries."""
        allowed: np.ndarray = np.ones(self.shape, bool)
        if self.valid_lens is not None:
            lens = np.asarray(self.valid_lens)
            lens = lens[..., None] if lens.ndim == len(self.shape) - 2 else lens
            allowed &= np.arange(self.shape[-1]) < lens[..., None]
        return allowed if self.mask is None else allowed & self.mask

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Rounding does not depend on the mask: only float64 gets every kind of mask."""
        lengths_alone = self.valid_lens is not None and self.valid_lens.ndim == 1 and self.mask is None
        return DTYPES if lengths_alone and not self.options and len(self.shape) == 3 else ("float64",)


_SHAPE = (3, 2, 5)  # three examples, two queries, five keys
_UNIFORM = {"empty_row": "uniform"}
_MASK = np.array([[[1, 0, 1, 1, 0], [0, 1, 1, 0, 0]], [[1, 1, 1, 1, 1], [0, 0, 0, 0, 0]], [[0, 1, 0, 0, 1]] * 2], bool)
_LENS = np.array([2, 5, 3], np.int32)
_PER_QUERY = np.array([[1, 3], [0, 5], [2, 4]], np.int32)

RAGGED = Masking("ragged lengths", _SHAPE, _LENS)

COMMON = (
    Masking("nothing masked", _SHAPE),
    RAGGED,
    Masking("an empty row", _SHAPE, np.array([0, 3, 1], np.int32)),
    Masking("an empty row, uniform", _SHAPE, np.array([0, 3, 1], np.int32), options=_UNIFORM),
    Masking("lengths of each query", _SHAPE, _PER_QUERY),
    Masking("mask and lengths", _SHAPE, _LENS, _MASK),
    Masking("NaN where nothing attends", _SHAPE, _LENS, nan=True),
    Masking("NaN where nothing attends, an empty row", _SHAPE, np.array([0, 3, 1], np.int32), nan=True),
    Masking("a single key", (3, 2, 1), np.array([1, 0, 1], np.int32)),
)
"""Every attention runs on these."""

MORE = (
    Masking("lengths of each query, uniform", _SHAPE, _PER_QUERY, options=_UNIFORM),
    Masking("lengths of all the keys", _SHAPE, np.array([5, 2, 5], np.int32)),
    Masking("floating lengths", _SHAPE, np.array([2.0, 4.5, 0.0])),
    Masking("mask alone", _SHAPE, None, _MASK),
    Masking("causal mask of all examples", (3, 5, 5), None, np.tri(5, dtype=bool)),
    Masking("more leading axes", (2, 3, 2, 5), np.array([[1, 2, 5], [0, 4, 3]], np.int32)),
    Masking("more leading axes, lengths of each query", (2, 3, 2, 5), np.array([_PER_QUERY, _PER_QUERY[::-1]])),
    Masking("no leading axis", (2, 5), np.array(3, np.int32)),
    Masking("no leading axis, lengths of each query", (2, 5), np.array([3, 0], np.int32)),
)
"""The pure functions also run on these."""

EXTREME = Masking("scores of ±1e4", _SHAPE, np.array([4, 5, 3], np.int32))
"""Lengths for scores of ±1e4. Some are close to each other, so that gradients are not all 0."""


def draw_inputs(masking: Masking, names: tuple[str, ...], *seed: str, sizes: tuple[int, ...] = (4, 4, 3)) -> Any:
    """Draw the inputs `names` of attention, and add lengths and mask; `sizes` are the features of q, k and v."""
    rng = random_for(*seed, masking.name)
    *batch, num_queries, num_keys = masking.shape
    shapes = zip((num_queries, num_keys, num_keys), sizes, strict=True)
    queries, keys, values = (rng.normal(size=(*batch, *shape)) for shape in shapes)
    scores = random_for("scores", masking.name).normal(size=masking.shape) * 2
    if masking is EXTREME:
        scores = extreme_scores(masking.shape)
        if sizes[0] == sizes[1]:  # products of ±1e4 by the first feature, and of a few units by the others
            queries[..., 0], keys[..., 0] = 1e4, np.sign(keys[..., 0])
    if masking.nan:
        allowed = masking.allowed
        scores = np.where(allowed, scores, np.nan)
        seen = np.any(allowed, axis=-2, keepdims=True).swapaxes(-2, -1)  # [*batch, K, 1]
        keys, values = (np.where(seen, x, np.nan) for x in (keys, values))
    arrays = {"scores": scores, "queries": queries, "keys": keys, "values": values}
    arrays |= {"query": queries, "key": keys, "value": values}
    return {**{name: arrays[name] for name in names}, "valid_lens": masking.valid_lens, "mask": masking.mask}


def extreme_scores(shape: tuple[int, ...]) -> np.ndarray:
    """Draw ±1e4, some of them within a few units of each other."""
    rng = random_for("extreme")
    return 1e4 * np.sign(rng.normal(size=shape)) + rng.normal(size=shape)
