"""Dropout with a keep-mask that can be handed over, so that two frameworks can drop the same entries."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray

from jax_attn.functional.checks import require_bool, require_float, require_rate, require_shape


def keep_mask(key: PRNGKeyArray, rate: float, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """A random mask that keeps each entry with probability 1 − rate."""
    return jax.random.bernoulli(key, 1 - rate, shape)


def dropout(x: Float[Array, "*shape"], rate: float, keep_mask: Bool[Array, "*shape"]) -> Float[Array, "*shape"]:
    """x / (1 − rate) where `keep_mask`, else 0 (Srivastava et al., 2014): the expectation stays that of x.

    Raises:
        ValueError: `rate` outside [0, 1), or a mask of another shape.
        TypeError: x that is not floating, a mask that is not boolean.
    """
    require_float(x=x)
    require_bool(keep_mask=keep_mask)
    require_rate(rate=rate)
    require_shape(x.shape, keep_mask=keep_mask)
    return jnp.where(keep_mask, x / (1 - rate), 0)
