"""The hypotheses that a search returns."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int


class SearchResult(NamedTuple):
    """n hypotheses for each sentence: of a beam the best first, of sampling in the order drawn.

    L is the longest length allowed and K the number of positions in the memory. If fewer than n hypotheses have a
    positive probability, the remaining places have score −inf and length 0. If the step returns NaN for a token that
    the search had to consider, the sentence has NaN scores and lengths 0; other sentences are not affected.
    """

    ids: Int[Array, "batch n length"]
    """The tokens, followed by `eos` up to L."""
    lengths: Int[Array, "batch n"]
    """The number of tokens, a final `eos` included."""
    scores: Float[Array, "batch n"]
    """Σ log p in nats; of a beam, with its penalties."""
    token_scores: Float[Array, "batch n length"]
    """log p of each token, 0 past the end."""
    weights: Float[Array, "batch n length key"] | None
    """The attention weights of each token, 0 past the end; None if the step returns none."""


def make_result(
    ids: Int[Array, "batch n length"],
    lengths: Int[Array, "batch n"],
    scores: Float[Array, "batch n"],
    token_scores: Float[Array, "batch n length"],
    weights: Float[Array, "batch n length key"] | None,
    *,
    eos: int,
    dtype: jnp.dtype,
) -> SearchResult:
    """Blank out what lies past the ends, and every hypothesis whose score is −inf or NaN."""
    lengths = jnp.where(scores > -jnp.inf, lengths, 0)
    counts = jnp.arange(ids.shape[-1]) < lengths[..., None]
    return SearchResult(
        ids=jnp.where(counts, ids, eos),
        lengths=lengths,
        scores=scores.astype(dtype),
        token_scores=jnp.where(counts, token_scores, 0).astype(dtype),
        weights=None if weights is None else jnp.where(counts[..., None], weights, 0),
    )
