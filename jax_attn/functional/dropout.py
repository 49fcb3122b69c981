"""Dropout by an explicit keep-mask, so that two frameworks can drop the same entries."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray

from jax_attn.functional.checks import require_bool, require_float, require_rate, require_shape


def keep_mask(key: PRNGKeyArray, rate: float, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """Draw a mask that keeps each entry with probability 1 − rate."""
    return jax.random.bernoulli(key, 1 - rate, shape)


def dropout(x: Float[Array, "*shape"], rate: float, keep_mask: Bool[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return x / (1 − rate) where `keep_mask` is True, else 0; the expectation is that of x (Srivastava et al., 2014).

    Raises:
        ValueError: `rate` is outside [0, 1), or the mask has another shape than x.
        TypeError: x is not floating, or the mask is not boolean.
    """
    require_float(x=x)
    require_bool(keep_mask=keep_mask)
    require_rate(rate=rate)
    require_shape(x.shape, keep_mask=keep_mask)
    return jnp.where(keep_mask, x / (1 - rate), 0)
