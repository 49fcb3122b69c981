"""The k likeliest tokens of each row: what every search asks at every step."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

BLOCK = 64


def likeliest(log_probs: Float[Array, "rows vocab"], k: int) -> tuple[Float[Array, "rows {k}"], Int[Array, "rows {k}"]]:
    """The k largest numbers of each row, largest first, and the tokens they belong to; of equal ones the lower token.

    The result is that of `jax.lax.top_k`. On a CPU a large vocabulary is searched several times faster by blocks: the k
    largest lie in the k blocks with the largest maxima, for if one lay elsewhere, k others would stand before it.

    A NaN, of whatever sign and at whatever place, makes the first number of its row NaN (`top_k` sorts a NaN with a
    sign last, and 0·∞ has one on x86).

    Args:
        log_probs: `[rows, N]`.
        k: at least 1, at most N.
    """
    vocab_size = log_probs.shape[-1]
    if vocab_size < 4 * BLOCK * k:
        highest = log_probs.max(axis=-1)
        values, tokens = jax.lax.top_k(log_probs, k)
    else:
        maxima = jax.lax.reduce_window(
            log_probs, -jnp.inf, jax.lax.max, (1, BLOCK), (1, BLOCK), ((0, 0), (0, -vocab_size % BLOCK))
        )
        highest = maxima.max(axis=-1)
        _, blocks = jax.lax.top_k(maxima, k)
        blocks = jnp.sort(blocks, axis=-1)  # so that of equal numbers the lower token comes first again
        candidates = (blocks[:, :, None] * BLOCK + jnp.arange(BLOCK)).reshape(-1, k * BLOCK)
        rows = jnp.arange(log_probs.shape[0])[:, None]
        values, places = jax.lax.top_k(log_probs.at[rows, candidates].get(mode="fill", fill_value=-jnp.inf), k)
        tokens = jnp.take_along_axis(candidates, places, axis=-1)
    # No slice of the values here: XLA knows a top_k by its only slice, and with a second one sorts the whole row.
    unknown = jnp.isnan(highest)[:, None] & (jnp.arange(k) == 0)
    return jnp.where(unknown, jnp.nan, values), tokens.astype(jnp.int32)
