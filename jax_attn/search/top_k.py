"""The k largest log probabilities of each row, which every search needs at every step."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

BLOCK = 64


def top_k(log_probs: Float[Array, "rows vocab"], k: int) -> tuple[Float[Array, "rows {k}"], Int[Array, "rows {k}"]]:
    """Return the k largest numbers of each row, largest first, and their tokens; of equal ones the lower token first.

    The result is that of `jax.lax.top_k`. A large vocabulary is searched by blocks, which is several times faster on a
    CPU. The k largest numbers lie in the k blocks with the largest maxima: if one lay in another block, those k maxima
    would all stand before it.

    A NaN of either sign, anywhere in a row, makes the first number of that row NaN. It is looked for by itself:
    `jax.lax.top_k` sorts a NaN with the sign bit last, and 0·∞ has that bit on x86; and on a CPU XLA loses NaN in the
    maxima of a large array, see `row_maximum`.

    Args:
        log_probs: `[rows, N]`.
        k: at least 1, at most N.
    """
    vocab_size = log_probs.shape[-1]
    if vocab_size < 4 * BLOCK * k:
        values, tokens = jax.lax.top_k(log_probs, k)
    else:
        maxima = jax.lax.reduce_window(
            log_probs, -jnp.inf, jax.lax.max, (1, BLOCK), (1, BLOCK), ((0, 0), (0, -vocab_size % BLOCK))
        )
        _, blocks = jax.lax.top_k(maxima, k)
        blocks = jnp.sort(blocks, axis=-1)  # so that of equal numbers the lower token comes first again
        candidates = (blocks[:, :, None] * BLOCK + jnp.arange(BLOCK)).reshape(-1, k * BLOCK)
        rows = jnp.arange(log_probs.shape[0])[:, None]
        values, places = jax.lax.top_k(log_probs.at[rows, candidates].get(mode="fill", fill_value=-jnp.inf), k)
        tokens = jnp.take_along_axis(candidates, places, axis=-1)
    # The values are not sliced here: XLA recognises a top_k by its only slice, and sorts the whole row if it sees two.
    has_nan = jnp.isnan(log_probs).any(axis=-1, keepdims=True) & (jnp.arange(k) == 0)
    return jnp.where(has_nan, jnp.nan, values), tokens.astype(jnp.int32)
