"""What a wrong argument is told: which one, what it must be, what it is. Every check runs at trace time."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array


def shape_text(shape: Sequence[int | str]) -> str:
    """`(2, 3)` as `[2, 3]`, the way shapes are written in the messages and the docstrings."""
    return "[" + ", ".join(str(size) for size in shape) + "]"


def require_float(**arrays: Array) -> None:
    """Raise TypeError unless every array has a real floating dtype."""
    for name, array in arrays.items():
        if not jnp.issubdtype(jnp.result_type(array), jnp.floating):
            raise TypeError(f"{name} must have a floating dtype; got {jnp.result_type(array)}")


def require_integer(**arrays: Array) -> None:
    """Raise TypeError unless every array has an integer dtype."""
    for name, array in arrays.items():
        if not jnp.issubdtype(jnp.result_type(array), jnp.integer):
            raise TypeError(f"{name} must have an integer dtype; got {jnp.result_type(array)}")


def require_bool(**arrays: Array) -> None:
    """Raise TypeError unless every array is boolean."""
    for name, array in arrays.items():
        if jnp.result_type(array) != jnp.bool_:
            raise TypeError(f"{name} must be boolean; got {jnp.result_type(array)}")


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
    require_same_batch(**arrays)
    (first, reference), *others = arrays.items()
    for name, array in others:
        if array.shape[-2] != reference.shape[-2]:
            raise ValueError(
                f"{name} must have as many positions as {first}, {reference.shape[-2]}; got {array.shape[-2]} "
                f"({first} is {shape_text(reference.shape)}, {name} is {shape_text(array.shape)})"
            )


def require_same_features(**arrays: Array) -> None:
    """Raise ValueError unless the last axes agree: queries `[*batch, Q, D]` beside keys `[*batch, K, D]`."""
    require_same_batch(**arrays)
    (first, reference), *others = arrays.items()
    for name, array in others:
        if array.shape[-1] != reference.shape[-1]:
            raise ValueError(
                f"{name} must have as many features as {first}, {reference.shape[-1]}; got {array.shape[-1]} "
                f"({first} is {shape_text(reference.shape)}, {name} is {shape_text(array.shape)})"
            )


def wide_dtype(*arrays: Array) -> jnp.dtype:
    """The dtype that scores and softmax are computed in: the inputs' own, and float32 at least."""
    return jnp.promote_types(jnp.result_type(*arrays), jnp.float32)
