"""Greedy search: at each step the likeliest token."""

from typing import Any

import jax
import jax.numpy as jnp

from jax_attn.functional.search import SearchResult, Step, check_search, inspect_step


def greedy_search(
    step: Step, state: Any, memory: Any, *, bos: int, eos: int, max_len: int, batch_size: int
) -> SearchResult:
    """Follow the likeliest token until every sentence has reached `eos`, or for `max_len` tokens.

    Args:
        step: see `jax_attn.functional.search.Step`.
        state: the state before the first token, every leaf leading with `batch_size`.
        memory: handed to each step as it is.
        bos, eos: the first token given to the step, and the token that ends a sentence.
        max_len: L, the most tokens of a sentence, `eos` included.
        batch_size: B.

    Returns:
        One hypothesis a sentence (n = 1); its score is Σ log p.

    Raises:
        ValueError: a size below 1, an id outside the vocabulary, state or log probabilities of a wrong shape.
    """
    check_search(max_len=max_len, batch_size=batch_size)
    tokens = jnp.full(batch_size, bos, jnp.int32)
    score_dtype, no_weights = inspect_step(step, tokens, state, memory, bos=bos, eos=eos, max_len=max_len)
    start = {
        "time": jnp.zeros((), jnp.int32),
        "tokens": tokens,
        "state": state,
        "finished": jnp.zeros(batch_size, bool),
        "ids": jnp.full((batch_size, max_len), eos, jnp.int32),
        "token_scores": jnp.zeros((batch_size, max_len), score_dtype),
        "weights": no_weights,
    }

    def advance(search):
        time, finished = search["time"], search["finished"]
        log_probs, state, weights = step(search["tokens"], search["state"], memory)
        tokens = jnp.where(finished, eos, jnp.argmax(log_probs, axis=-1).astype(jnp.int32))
        chosen = jnp.take_along_axis(log_probs, tokens[:, None], axis=-1)[:, 0]
        return {
            "time": time + 1,
            "tokens": tokens,
            "state": state,
            "finished": finished | (tokens == eos),
            "ids": search["ids"].at[:, time].set(tokens),
            "token_scores": search["token_scores"].at[:, time].set(jnp.where(finished, 0, chosen)),
            "weights": None if weights is None else search["weights"].at[:, time].set(
                jnp.where(finished[:, None], 0, weights)
            ),
        }  # fmt: skip

    search = jax.lax.while_loop(lambda search: (search["time"] < max_len) & ~search["finished"].all(), advance, start)
    ended = search["ids"] == eos
    lengths = jnp.where(ended.any(axis=-1), jnp.argmax(ended, axis=-1) + 1, max_len).astype(jnp.int32)
    return SearchResult(
        ids=search["ids"][:, None],
        lengths=lengths[:, None],
        scores=search["token_scores"].sum(axis=-1)[:, None],
        token_scores=search["token_scores"][:, None],
        weights=None if search["weights"] is None else search["weights"][:, None],
    )
