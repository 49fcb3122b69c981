"""Checks of arguments. Each message says which argument is wrong, what it must be, and what it is.

Shapes and dtypes are checked when a function is traced. Values are checked only outside a jit.

The checks of dtypes, and `as_array`, also refuse what JAX would change in silence, see `require_plain`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_attn.compiler import warn_of_faults


def shape_text(shape: Sequence[int | str]) -> str:
    """Write `(2, 3)` as `[2, 3]`, like the shapes in messages and docstrings."""
    return "[" + ", ".join(str(size) for size in shape) + "]"


def require_plain(**arrays: Any) -> None:
    """Raise for what JAX would change in silence: a masked array (TypeError), an integer too large (ValueError).

    Every public function that takes arrays comes here first. So here stands the warning of a compiler that computes
    wrongly.
    """
    warn_of_faults()
    for name, array in arrays.items():
        parts = array if isinstance(array, list | tuple) else (array,)
        if any(isinstance(part, np.ma.MaskedArray) for part in parts):
            raise TypeError(
                f"{name} must not be a NumPy masked array, whose mask would be lost; "
                "pass .filled(...) of it, and the positions that count as mask or valid_lens"
            )
        if isinstance(array, np.ndarray | np.generic) and array.dtype.kind in "iu" and array.size:
            dtype = jax.dtypes.canonicalize_dtype(array.dtype)
            lowest, highest = np.iinfo(dtype).min, np.iinfo(dtype).max
            if array.min() < lowest or array.max() > highest:
                wrong = array.min() if array.min() < lowest else array.max()
                raise ValueError(
                    f"{name} must fit {dtype}, [{lowest}, {highest}]; got {wrong}, which would become another number; "
                    'correct it, or call jax.config.update("jax_enable_x64", True)'
                )


def as_array(name: str, value: Any) -> Array:
    """Check a value by `require_plain`, and convert it to a JAX array."""
    require_plain(**{name: value})
    return jnp.asarray(value)


def _dtype(name: str, array: Any) -> jnp.dtype:
    """Check an array by `require_plain`, refuse a list, and return the dtype that JAX gives the array."""
    require_plain(**{name: array})
    if isinstance(array, list | tuple):
        raise TypeError(f"{name} must be an array; got a {type(array).__name__}")
    return jnp.result_type(array)


def require_float(**arrays: Array) -> None:
    """Raise TypeError unless every array has a real floating dtype."""
    for name, array in arrays.items():
        if not jnp.issubdtype(_dtype(name, array), jnp.floating):
            raise TypeError(f"{name} must have a floating dtype; got {_dtype(name, array)}")


def require_integer(**arrays: Any) -> None:
    """Raise TypeError unless every array has an integer dtype."""
    for name, array in arrays.items():
        if not jnp.issubdtype(_dtype(name, array), jnp.integer):
            raise TypeError(f"{name} must have an integer dtype; got {_dtype(name, array)}")


def require_bool(**arrays: Array) -> None:
    """Raise TypeError unless every array is boolean."""
    for name, array in arrays.items():
        if _dtype(name, array) != jnp.bool_:
            raise TypeError(f"{name} must be boolean; got {_dtype(name, array)}")


def require_rate(**rates: float) -> None:
    """Raise ValueError unless every dropout rate is in [0, 1)."""
    for name, rate in rates.items():
        if not 0 <= rate < 1:
            raise ValueError(f"{name} must be in [0, 1); got {rate}")


def require_real(**numbers: Any) -> None:
    """Raise TypeError unless numbers are integers or floating."""
    for name, number in numbers.items():
        dtype = _dtype(name, number)
        if not (jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating)):
            raise TypeError(f"{name} must be a real number; got {dtype}")


def require_above_zero(**numbers: Any) -> None:
    """Raise TypeError unless numbers are real, and (outside a jit) ValueError unless they are above 0."""
    require_real(**numbers)
    for name, number in numbers.items():
        if not isinstance(number, jax.core.Tracer) and not np.all(np.asarray(number) > 0):
            raise ValueError(f"{name} must be above 0; got {number}")


def require_rank(minimum: int, axes: str, **arrays: Array) -> None:
    """Raise ValueError unless every array has at least `minimum` axes; `axes` names them in the message."""
    for name, array in arrays.items():
        if jnp.ndim(array) < minimum:
            raise ValueError(
                f"{name} must have at least {minimum} axes, {axes}; got shape {shape_text(jnp.shape(array))}"
            )


def require_shape(expected: Sequence[int], **arrays: Array) -> None:
    """Raise ValueError unless every array has exactly the expected shape."""
    for name, array in arrays.items():
        if tuple(jnp.shape(array)) != tuple(expected):
            raise ValueError(f"{name} must be {shape_text(expected)}; got {shape_text(jnp.shape(array))}")


def require_same_batch(**arrays: Array) -> None:
    """Raise ValueError unless all axes but the last two agree: `[*batch, Q, D]` beside `[*batch, K, D]`."""
    require_rank(2, "[*batch, length, features]", **arrays)
    (first, reference), *others = arrays.items()
    for name, array in others:
        if array.shape[:-2] != reference.shape[:-2]:
            raise ValueError(
                f"{name} must have the leading axes of {first}, {shape_text(reference.shape[:-2])}; "
                f"got {shape_text(array.shape[:-2])} ({first} is {shape_text(reference.shape)}, "
                f"{name} is {shape_text(array.shape)})"
            )


def require_same_length(**arrays: Array) -> None:
    """Raise ValueError unless all axes but the last agree: keys `[*batch, K, D]` beside values `[*batch, K, V]`."""
    _require_same(-2, "positions", arrays)


def require_same_features(**arrays: Array) -> None:
    """Raise ValueError unless the last axes agree: queries `[*batch, Q, D]` beside keys `[*batch, K, D]`."""
    _require_same(-1, "features", arrays)


def _require_same(axis: int, plural: str, arrays: Mapping[str, Array]) -> None:
    require_same_batch(**arrays)
    (first, reference), *others = arrays.items()
    for name, array in others:
        if array.shape[axis] != reference.shape[axis]:
            raise ValueError(
                f"{name} must have as many {plural} as {first}, {reference.shape[axis]}; got {array.shape[axis]} "
                f"({first} is {shape_text(reference.shape)}, {name} is {shape_text(array.shape)})"
            )


def wide_dtype(*arrays: Array) -> jnp.dtype:
    """Return the dtype that scores and softmax are computed in: the inputs' own, but float32 at least."""
    return jnp.promote_types(jnp.result_type(*arrays), jnp.float32)


def require_ids(vocab_size: int, **arrays: Any) -> None:
    """Raise TypeError unless ids are integers, and ValueError if one is outside [0, vocab_size).

    Under a jit the range cannot be checked, and JAX would return NaN or the last row: check ids on the host before.
    """
    require_integer(**arrays)
    for name, array in arrays.items():
        _require_between(name, array, 0, vocab_size - 1, f"[0, {vocab_size})")


def require_lengths(longest: int, **arrays: Any) -> None:
    """Raise TypeError unless lengths are numbers, and (outside a jit) ValueError if one is outside [0, longest]."""
    for name, array in arrays.items():
        dtype = _dtype(name, array)
        if not (jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating)):
            raise TypeError(f"{name} must have an integer or floating dtype; got {dtype}")
        _require_between(name, array, 0, longest, f"[0, {longest}]")


def _require_between(name: str, array: Any, lowest: int, highest: int, interval: str) -> None:
    if isinstance(array, jax.core.Tracer) or not jnp.size(array):
        return
    values = np.asarray(array).astype(np.float64)
    wrong = ~((values >= lowest) & (values <= highest))
    if wrong.any():
        raise ValueError(f"{name} must be in {interval}; got {values[wrong][0]:g}")
