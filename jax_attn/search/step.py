"""What every search shares: the step it drives and the result it returns. It knows ids and scores, and no model."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

State = Any
Memory = Any
Step = Callable[[Array, State, Memory], tuple[Array, State, Array | None]]
"""step(tokens [B·beam], state, memory) -> (log_probs [B·beam, N], state, weights [B·beam, K] or None).

Every leaf of the state leads with batch × beam and is what search reorders. The memory holds one entry for each
sentence, is never reordered and may be anything the step understands.
"""


class SearchResult(NamedTuple):
    """n hypotheses for each sentence, best first, or as drawn (L: the longest allowed, K: the memory's positions).

    A place that no hypothesis fills, because none of positive probability is left, has score −inf and length 0. Where
    the step gave NaN for a token that was in question, nothing can be said of the sentence: its scores are NaN and its
    lengths 0. Other sentences do not suffer.
    """

    ids: Int[Array, "batch n length"]
    """The tokens, `eos` from the end on."""
    lengths: Int[Array, "batch n"]
    """How many of the tokens count, `eos` included where it was reached."""
    scores: Float[Array, "batch n"]
    """Σ log p in nats; of a beam, with its penalties."""
    token_scores: Float[Array, "batch n length"]
    """log p of each token, 0 past the end."""
    weights: Float[Array, "batch n length key"] | None
    """What each token attended to, 0 past the end; None if the step returns none."""


class StepOutputs(NamedTuple):
    """What a step returns, as far as it can be known without computing anything."""

    vocab_size: int
    dtype: jnp.dtype
    """Of the log probabilities."""
    weights: jax.ShapeDtypeStruct | None
    """`[rows, K]`."""

    @property
    def score_dtype(self) -> jnp.dtype:
        """What is summed and compared: in half precision the ranks of long sentences would be random."""
        return jnp.promote_types(self.dtype, jnp.float32)

    @property
    def num_keys(self) -> int | None:
        """K, or None without weights."""
        return None if self.weights is None else self.weights.shape[-1]

    def room_for_weights(self, max_len: int) -> Array | None:
        """Zeros `[L, rows, K]`, or None without weights."""
        return None if self.weights is None else jnp.zeros((max_len, *self.weights.shape), self.weights.dtype)


def check_search(*, max_len: int, batch_size: int, **sizes: int) -> None:
    """Raise ValueError on a search that could not return anything."""
    for name, value in {"max_len": max_len, "batch_size": batch_size, **sizes}.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1; got {value}")


def inspect_step(step: Step, tokens: Array, state: State, memory: Memory, *, bos: int, eos: int) -> StepOutputs:
    """What the step will return. Nothing is computed.

    Raises:
        ValueError: state that does not lead with the rows, log probabilities that are not `[rows, N]`, weights that are
            not `[rows, K]`, `bos` or `eos` outside [0, N).
        TypeError: log probabilities that are not floating.
    """
    rows = tokens.shape[0]
    for leaf in jax.tree.leaves(state):
        if jnp.shape(leaf)[:1] != (rows,):
            raise ValueError(f"every leaf of the state must be [{rows}, ...]; got {list(jnp.shape(leaf))}")
    log_probs, _, weights = jax.eval_shape(step, tokens, state, memory)
    if not jnp.issubdtype(log_probs.dtype, jnp.floating):
        raise TypeError(f"step must return log_probs of a floating dtype; got {log_probs.dtype}")
    if log_probs.ndim != 2 or log_probs.shape[0] != rows:
        raise ValueError(f"step must return log_probs of shape [{rows}, N]; got {list(log_probs.shape)}")
    if weights is not None and (weights.ndim != 2 or weights.shape[0] != rows):
        raise ValueError(f"step must return weights of shape [{rows}, K] or None; got {list(weights.shape)}")
    for name, token in {"bos": bos, "eos": eos}.items():
        if not 0 <= token < log_probs.shape[1]:
            raise ValueError(f"{name} must be in [0, {log_probs.shape[1]}); got {token}")
    return StepOutputs(log_probs.shape[1], log_probs.dtype, weights)


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
    """Blank out what lies past the ends, and whole hypotheses whose score says that there is none (−inf or NaN)."""
    lengths = jnp.where(scores > -jnp.inf, lengths, 0)
    counts = jnp.arange(ids.shape[-1]) < lengths[..., None]
    return SearchResult(
        ids=jnp.where(counts, ids, eos),
        lengths=lengths,
        scores=scores.astype(dtype),
        token_scores=jnp.where(counts, token_scores, 0).astype(dtype),
        weights=None if weights is None else jnp.where(counts[..., None], weights, 0),
    )
