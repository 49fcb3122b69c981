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
    """n hypotheses for each sentence, best first (L: the longest allowed, K: the positions of the memory)."""

    ids: Int[Array, "batch n length"]
    """The tokens, `eos` from the end on."""
    lengths: Int[Array, "batch n"]
    """How many of the tokens count, `eos` included where it was reached."""
    scores: Float[Array, "batch n"]
    """Σ log p / length^penalty, in nats."""
    token_scores: Float[Array, "batch n length"]
    """log p of each token, 0 past the end."""
    weights: Float[Array, "batch n length key"] | None
    """What each token attended to, 0 past the end; None if the step returns none."""


def check_search(*, max_len: int, batch_size: int, beam_size: int = 1) -> None:
    """Raise ValueError on a search that could not return anything."""
    for name, value in {"max_len": max_len, "batch_size": batch_size, "beam_size": beam_size}.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1; got {value}")


def inspect_step(
    step: Step, tokens: Array, state: State, memory: Memory, *, bos: int, eos: int, max_len: int
) -> tuple[jnp.dtype, Array | None]:
    """The dtype of a step's log probabilities, and `[B·beam, L, K]` zeros for its weights (None if it has none).

    Nothing is computed.

    Raises:
        ValueError: state that does not lead with the rows, log probabilities that are not `[rows, N]`, `bos` or `eos`
            outside [0, N).
    """
    rows = tokens.shape[0]
    for leaf in jax.tree.leaves(state):
        if jnp.shape(leaf)[:1] != (rows,):
            raise ValueError(f"every leaf of the state must be [{rows}, ...]; got {list(jnp.shape(leaf))}")
    log_probs, _, weights = jax.eval_shape(step, tokens, state, memory)
    if log_probs.ndim != 2 or log_probs.shape[0] != rows:
        raise ValueError(f"step must return log_probs of shape [{rows}, N]; got {list(log_probs.shape)}")
    for name, token in {"bos": bos, "eos": eos}.items():
        if not 0 <= token < log_probs.shape[1]:
            raise ValueError(f"{name} must be in [0, {log_probs.shape[1]}); got {token}")
    if weights is None:
        return log_probs.dtype, None
    return log_probs.dtype, jnp.zeros((rows, max_len, weights.shape[-1]), weights.dtype)
