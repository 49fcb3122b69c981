"""One hypothesis at a time, grown by one token at each step: what greedy search and sampling have in common."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from jax_attn.search.constraints import Constraints, constrain
from jax_attn.search.step import Memory, SearchResult, State, Step, StepOutputs, make_result

Choose = Callable[[Array, Array], tuple[Array, Array]]
"""choose(log_probs [rows, N], time) -> (log p of the chosen [rows], tokens [rows]); NaN where log_probs hold one."""


def walk(
    step: Step,
    tokens: Array,
    state: State,
    memory: Memory,
    choose: Choose,
    constraints: Constraints,
    outputs: StepOutputs,
    *,
    batch_size: int,
    max_len: int,
) -> SearchResult:
    """Follow the chosen tokens from `tokens` `[rows]` on, until every row has ended, or for `max_len` tokens.

    A row ends at `eos`, and where no token can be chosen: its score is then −inf or NaN. The rows of a sentence stand
    side by side, and become its hypotheses in that order.
    """
    rows, eos = tokens.shape[0], constraints.eos
    start = {
        "time": jnp.zeros((), jnp.int32),
        "tokens": tokens,
        "state": state,
        "live": jnp.ones(rows, bool),
        "lengths": jnp.zeros(rows, jnp.int32),
        "sums": jnp.zeros(rows, outputs.score_dtype),
        "ids": jnp.full((rows, max_len), eos, jnp.int32),
        "token_scores": jnp.zeros((rows, max_len), outputs.score_dtype),
        "weights": outputs.room_for_weights(max_len),
    }

    def advance(search):
        time, live = search["time"], search["live"]
        log_probs, state, weights = step(search["tokens"], search["state"], memory)
        log_probs = constrain(log_probs.astype(outputs.score_dtype), search["ids"], time, constraints)
        gained, tokens = choose(log_probs, time)
        gained, tokens = jnp.where(live, gained, 0), jnp.where(live, tokens, eos)
        sums = search["sums"] + gained
        return {
            "time": time + 1,
            "tokens": tokens,
            "state": state,
            "live": live & (tokens != eos) & (sums > -jnp.inf),  # false of NaN
            "lengths": search["lengths"] + live,
            "sums": sums,
            "ids": search["ids"].at[:, time].set(tokens),
            "token_scores": search["token_scores"].at[:, time].set(gained),
            "weights": None if weights is None else search["weights"].at[time].set(weights),
        }

    search = jax.lax.while_loop(lambda search: (search["time"] < max_len) & search["live"].any(), advance, start)
    weights = search["weights"]

    def by_sentence(x: Array) -> Array:
        return x.reshape(batch_size, rows // batch_size, *x.shape[1:])

    return make_result(
        by_sentence(search["ids"]),
        by_sentence(search["lengths"]),
        by_sentence(search["sums"]),
        by_sentence(search["token_scores"]),
        None if weights is None else by_sentence(jnp.moveaxis(weights, 0, 1)),
        eos=eos,
        dtype=outputs.dtype,
    )
