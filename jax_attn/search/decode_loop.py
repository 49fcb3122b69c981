"""The loop that greedy search and sampling share: each hypothesis grows by one token a step."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jax_attn.search.constraints import constrain
from jax_attn.search.inputs import SearchInputs
from jax_attn.search.step import SearchResult, State, make_result

Choose = Callable[[Array, Array], tuple[Array, Array]]
"""choose(log_probs [rows, N], time) -> (log p of the chosen tokens [rows], the tokens [rows]).

The log p of a row is NaN if its `log_probs` contain a NaN.
"""


class Progress(NamedTuple):
    """The hypotheses after `time` steps."""

    time: Int[Array, ""]
    tokens: Int[Array, "rows"]  # the last of each row
    state: State
    live: Bool[Array, "rows"]  # the rows that go on
    lengths: Int[Array, "rows"]
    scores: Float[Array, "rows"]  # Σ log p
    ids: Int[Array, "rows length"]
    token_scores: Float[Array, "rows length"]
    weights: Float[Array, "length rows key"] | None


def decode_loop(inputs: SearchInputs, choose: Choose) -> SearchResult:
    """Append the chosen token to each row until every row has ended, or has `max_len` tokens.

    A row ends at `eos`. It also ends where no token can be chosen; its score is then −inf or NaN.
    """
    step, max_len, eos = inputs.step, inputs.max_len, inputs.constraints.eos
    rows, dtype = inputs.tokens.shape[0], inputs.outputs.score_dtype

    def advance(now: Progress) -> Progress:
        log_probs, state, weights = step(now.tokens, now.state, inputs.memory)
        log_probs = constrain(log_probs.astype(dtype), now.ids, now.time, inputs.constraints)
        token_scores, tokens = choose(log_probs, now.time)
        token_scores, tokens = jnp.where(now.live, token_scores, 0), jnp.where(now.live, tokens, eos)
        scores = now.scores + token_scores
        return Progress(
            time=now.time + 1,
            tokens=tokens,
            state=state,
            live=now.live & (tokens != eos) & (scores > -jnp.inf),  # a NaN ends the row as well
            lengths=now.lengths + now.live,
            scores=scores,
            ids=now.ids.at[:, now.time].set(tokens),
            token_scores=now.token_scores.at[:, now.time].set(token_scores),
            weights=None if now.weights is None else now.weights.at[now.time].set(weights),
        )

    start = Progress(
        time=jnp.zeros((), jnp.int32),
        tokens=inputs.tokens,
        state=inputs.state,
        live=jnp.ones(rows, bool),
        lengths=jnp.zeros(rows, jnp.int32),
        scores=jnp.zeros(rows, dtype),
        ids=jnp.full((rows, max_len), eos, jnp.int32),
        token_scores=jnp.zeros((rows, max_len), dtype),
        weights=inputs.outputs.zero_weights(max_len, rows),
    )
    end = jax.lax.while_loop(lambda now: (now.time < max_len) & now.live.any(), advance, start)
    weights = None if end.weights is None else jnp.moveaxis(end.weights, 0, 1)
    by_row = (end.ids, end.lengths, end.scores, end.token_scores, weights)
    return make_result(*jax.tree.map(inputs.by_sentence, by_row), eos=eos, dtype=inputs.outputs.dtype)
