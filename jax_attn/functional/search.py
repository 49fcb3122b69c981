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


def check_search(*, bos: int, eos: int, max_len: int, batch_size: int, beam_size: int = 1) -> None:
    """Raise ValueError on a search that could not return anything."""
    for name, value in {"max_len": max_len, "batch_size": batch_size, "beam_size": beam_size}.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1; got {value}")
    for name, value in {"bos": bos, "eos": eos}.items():
        if value < 0:
            raise ValueError(f"{name} must be a token id, 0 or more; got {value}")


def zeros_for_weights(step: Step, tokens: Array, state: State, memory: Memory, length: int) -> Array | None:
    """`[B·beam, L, K]` zeros to collect a step's weights in, or None if it returns none; nothing is computed."""
    log_probs, _, weights = jax.eval_shape(step, tokens, state, memory)
    if log_probs.ndim != 2 or log_probs.shape[0] != tokens.shape[0]:
        raise ValueError(f"step must return log_probs of shape [{tokens.shape[0]}, N]; got {list(log_probs.shape)}")
    if weights is None:
        return None
    return jnp.zeros((tokens.shape[0], length, weights.shape[-1]), weights.dtype)
