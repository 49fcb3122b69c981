"""Where a token stands, as features."""

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float


def sinusoidal_positions(
    length: int, num_features: int, dtype: DTypeLike = jnp.float32
) -> Float[Array, "{length} {num_features}"]:
    """Positions as sines and cosines of geometrically falling frequencies (Vaswani et al., 2017).

        P[t, 2i] = sin(t / 10000^(2i/D)),   P[t, 2i+1] = cos(t / 10000^(2i/D))

    Args:
        length: T, how many positions.
        num_features: D; an odd one ends with a sine.

    Returns:
        `[T, D]`, computed in float32 or wider.
    """
    wide = jnp.promote_types(dtype, jnp.float32)
    frequencies = 10000.0 ** (-jnp.arange(0, num_features, 2, dtype=wide) / num_features)
    angles = jnp.arange(length, dtype=wide)[:, None] * frequencies  # [T, ceil(D / 2)]
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)  # [T, ceil(D / 2), 2]
    return pairs.reshape(length, 2 * frequencies.size)[:, :num_features].astype(dtype)
