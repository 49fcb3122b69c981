"""Which keys a query may attend to. Every mask is boolean, and True means "may attend"."""

from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Num

from jax_attn.functional.checks import as_array, require_lengths, require_rank, require_shape, shape_text, wide_dtype


def length_mask(valid_lens: Num[Array, "*lens"], size: int) -> Bool[Array, "*lens {size}"]:
    """Mark the first `valid_lens` of `size` positions.

        length_mask([1, 3], 4) = [[1, 0, 0, 0],
                                  [1, 1, 1, 0]]

    Args:
        valid_lens: integer or float, any shape. A fraction counts as the next whole number: 1.5 marks two positions.
        size: the number of positions.

    Returns:
        True at position j where j < valid_lens, `[*lens, size]`.

    Raises:
        TypeError: `valid_lens` are not numbers.
        ValueError: `size` is negative, or a length is outside [0, size]. Lengths are checked only outside a jit.
    """
    if size < 0:
        raise ValueError(f"size must be at least 0; got {size}")
    return jnp.arange(size) < _comparable(valid_lens, size)[..., None]


def _comparable(valid_lens: Num[Array, "*lens"], size: int) -> Num[Array, "*lens"]:
    """Check that lengths are within [0, size], and return them in a dtype that can be compared with positions."""
    valid_lens = as_array("valid_lens", valid_lens)
    require_lengths(size, valid_lens=valid_lens)
    if jnp.issubdtype(valid_lens.dtype, jnp.floating):  # bfloat16 cannot tell 256 from 257
        valid_lens = valid_lens.astype(wide_dtype(valid_lens))
    return valid_lens


def causal_mask(num_queries: int, num_keys: int | None = None) -> Bool[Array, "query key"]:
    """Allow query i to attend to keys 0 … i.

        causal_mask(3) = [[1, 0, 0],
                          [1, 1, 0],
                          [1, 1, 1]]

    Args:
        num_queries: Q.
        num_keys: K, by default Q.
    """
    return jnp.tri(num_queries, num_queries if num_keys is None else num_keys, dtype=bool)


def attention_mask(
    shape: tuple[int, ...], valid_lens: Num[Array, "..."] | None = None, mask: Bool[Array, "..."] | None = None
) -> Bool[Array, "..."] | None:
    """Combine lengths and mask into one mask for scores of shape `[*batch, Q, K]`.

    Args:
        shape: the scores' shape.
        valid_lens: `[*batch]`, one length for all queries of an example, or `[*batch, Q]`, one for each query.
            The rank decides which of the two it is, so that `vmap` over the batch gives the same.
        mask: boolean, broadcastable to `shape`.

    Returns:
        True where both allow it, with as many axes as the scores and broadcastable to them; None if neither is given.

    Raises:
        ValueError: a shape does not fit; the message names both shapes.
        TypeError: the mask is not boolean, or the lengths are not numbers.
    """
    if len(shape) < 2:
        raise ValueError(f"scores must be [..., Q, K]; got {shape_text(shape)}")
    allowed = None
    if valid_lens is not None:
        lens = checked_lens(valid_lens, shape)
        allowed = length_mask(lens[..., 0], shape[-1])
    if mask is not None:
        mask = checked_mask(mask, shape)
        allowed = mask if allowed is None else allowed & mask
    return allowed


def checked_lens(valid_lens: Num[Array, "..."], shape: tuple[int, ...]) -> Num[Array, "*batch #query 1"]:
    """Check that lengths fit scores of a shape, as in `attention_mask`, and give them the scores' rank."""
    valid_lens = as_array("valid_lens", valid_lens)
    if valid_lens.shape not in (shape[:-2], shape[:-1]):
        raise ValueError(
            f"valid_lens must be {shape_text(shape[:-2])} or {shape_text(shape[:-1])}; "
            f"got {shape_text(valid_lens.shape)}"
        )
    lens = _comparable(valid_lens, shape[-1])
    return lens.reshape(*lens.shape, *(1,) * (len(shape) - lens.ndim))


def checked_mask(mask: Bool[Array, "..."], shape: tuple[int, ...]) -> Bool[Array, "*#batch #query #key"]:
    """Check that a mask is boolean (TypeError) and broadcastable to `shape` (ValueError), and give it that rank."""
    mask = as_array("mask", mask)
    if mask.dtype != jnp.bool_:
        raise TypeError(f"mask must be boolean, True where it allows; got {mask.dtype}")
    trailing = shape[len(shape) - mask.ndim :]
    if mask.ndim > len(shape) or any(size not in (1, full) for size, full in zip(mask.shape, trailing, strict=True)):
        raise ValueError(f"mask must be broadcastable to {shape_text(shape)}; got {shape_text(mask.shape)}")
    return mask.reshape((1,) * (len(shape) - mask.ndim) + mask.shape)


def zero_unattended(
    positions: Float[Array, "*batch key features"], allowed: Bool[Array, "*#batch #query #key"] | None
) -> Float[Array, "*batch key features"]:
    """Replace keys or values by zeros where no query of the example may attend.

    Such a position must reach no result and no gradient even if it holds NaN. A weight of zero is not enough, since
    0 · NaN is NaN: the position has to be replaced before the first product that it enters.
    """
    if allowed is None:
        return positions
    return jnp.where(allowed.any(axis=-2)[..., None], positions, 0)


def allow_all_where_empty(allowed: Bool[Array, "*batch #query #key"]) -> Bool[Array, "*batch #query #key"]:
    """Let a query that may attend to nothing attend to everything, which is what `empty_row="uniform"` means."""
    return allowed | ~allowed.any(axis=-1, keepdims=True)


def sequence_mask(X: Num[Array, "*shape"], valid_lens: Int[Array, "*batch"], value: Any = 0) -> Num[Array, "*shape"]:
    """Copy `X`, and write `value` at every position past its sequence's length (d2l.ai's `sequence_mask`).

        sequence_mask([[1, 2, 3], [4, 5, 6]], [1, 2]) = [[1, 0, 0], [4, 5, 0]]

    Args:
        X: `[*batch, T, *features]`.
        valid_lens: `[*batch]`; its rank says which axis of `X` is time.
        value: a scalar.

    Raises:
        ValueError: `valid_lens` does not have the leading axes of `X`.
    """
    X, valid_lens = as_array("X", X), as_array("valid_lens", valid_lens)
    require_rank(valid_lens.ndim + 1, "the axes of valid_lens and time", X=X)
    require_shape(X.shape[: valid_lens.ndim], valid_lens=valid_lens)
    keep = length_mask(valid_lens, X.shape[valid_lens.ndim])
    keep = keep.reshape(keep.shape + (1,) * (X.ndim - keep.ndim))
    return jnp.where(keep, X, jnp.asarray(value, X.dtype))
