"""The step function that every search calls, and the result that every search returns."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

State = Any
Memory = Any
Step = Callable[[Array, State, Memory], tuple[Array, State, Array | None]]
"""step(tokens [rows], state, memory) -> (log_probs [rows, N], state, weights [rows, K] or None).

There are B · n rows: n hypotheses for each of B sentences, those of one sentence side by side. Every leaf of the state
leads with the rows, and search reorders it, unless it is `Stationary`. The memory has one entry for each sentence.
Search passes it on unchanged, so that it can be of any type.
"""


class Stationary(NamedTuple):
    """A part of the state that search does not reorder, such as a cache which is cheaper to read than to copy.

    The step itself keeps track of which entries belong to a hypothesis, in a leaf that is reordered. The state before
    the first token has room for one hypothesis of each sentence; search repeats the last axis but one for the others.
    """

    leaves: Any
    """Arrays `[batch, ..., slots, features]`."""


def map_state(
    reorder: Callable[[Array], Array], state: State, stationary: Callable[[Array], Array] = lambda leaf: leaf
) -> State:
    """Apply `reorder` to the leaves that lead with the rows, and another function to those that are `Stationary`."""

    def apply(part: Any) -> Any:
        return jax.tree.map(stationary, part) if isinstance(part, Stationary) else reorder(part)

    return jax.tree.map(apply, state, is_leaf=lambda part: isinstance(part, Stationary))


class StepOutputs(NamedTuple):
    """Shapes and dtypes of a step's outputs."""

    vocab_size: int
    dtype: jnp.dtype  # that of the log probabilities
    weights: jax.ShapeDtypeStruct | None  # shape `[rows, K]` and dtype

    @property
    def score_dtype(self) -> jnp.dtype:
        """Scores are summed in float32 or wider: half precision could not rank long sentences."""
        return jnp.promote_types(self.dtype, jnp.float32)

    @property
    def num_keys(self) -> int | None:
        """K, or None without weights."""
        return None if self.weights is None else self.weights.shape[-1]

    def zero_weights(self, *leading: int) -> Array | None:
        """Return zeros `[*leading, K]`, or None without weights."""
        return None if self.weights is None else jnp.zeros((*leading, self.weights.shape[-1]), self.weights.dtype)


def inspect_step(step: Step, tokens: Array, state: State, memory: Memory, *, bos: int, eos: int) -> StepOutputs:
    """Trace the step, without computing it, and check what it returns.

    Raises:
        ValueError: log probabilities that are not `[rows, N]`, weights that are not `[rows, K]`, `bos` or `eos`
            outside [0, N).
        TypeError: log probabilities that are not floating.
    """
    rows = tokens.shape[0]
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
    is_token = jnp.arange(ids.shape[-1]) < lengths[..., None]
    return SearchResult(
        ids=jnp.where(is_token, ids, eos),
        lengths=lengths,
        scores=scores.astype(dtype),
        token_scores=jnp.where(is_token, token_scores, 0).astype(dtype),
        weights=None if weights is None else jnp.where(is_token[..., None], weights, 0),
    )
