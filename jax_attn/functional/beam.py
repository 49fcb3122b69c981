"""Beam search: at each step the best few continuations of the best few beginnings."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_attn.functional.search import SearchResult, Step, check_search, inspect_step


def beam_search(
    step: Step,
    state: Any,
    memory: Any,
    *,
    bos: int,
    eos: int,
    max_len: int,
    batch_size: int,
    beam_size: int = 5,
    length_penalty: float = 0.0,
) -> SearchResult:
    """Keep the `beam_size` best hypotheses of each sentence, finished ones among them, until all have ended.

    Hypotheses are ranked by Σ log p / length^length_penalty, `eos` counted in the length; of equal ones the earlier
    hypothesis with the smaller token comes first. One that has emitted `eos` keeps its score and its claim to a place.

    Args:
        step: see `jax_attn.functional.search.Step`.
        state: the state before the first token, every leaf leading with `batch_size`; repeated `beam_size` times here.
        memory: handed to each step as it is, one entry for each sentence.
        bos, eos: the first token given to the step, and the token that ends a sentence.
        max_len: L, the most tokens of a sentence, `eos` included.
        batch_size: B.
        beam_size: n, how many hypotheses are kept and returned. Places that cannot be filled, because fewer sentences
            exist than places, score −inf and have length 0.
        length_penalty: 0 compares sums, 1 averages, between them a compromise.

    Returns:
        `beam_size` hypotheses a sentence, best first.

    Raises:
        ValueError: a size below 1, an id outside the vocabulary, state or log probabilities of a wrong shape.
    """
    check_search(max_len=max_len, batch_size=batch_size, beam_size=beam_size)
    rows = batch_size * beam_size
    tokens = jnp.full(rows, bos, jnp.int32)
    state = jax.tree.map(lambda leaf: jnp.repeat(leaf, beam_size, axis=0), state)
    log_prob_dtype, weights = inspect_step(step, tokens, state, memory, bos=bos, eos=eos, max_len=max_len)
    score_dtype = jnp.promote_types(log_prob_dtype, jnp.float32)  # a sum in half precision would rank at random
    start = {
        "time": jnp.zeros((), jnp.int32),
        "tokens": tokens.reshape(batch_size, beam_size),
        "state": state,
        "finished": jnp.zeros((batch_size, beam_size), bool),
        "lengths": jnp.zeros((batch_size, beam_size), jnp.int32),
        # All places hold the same beginning: only the first of them may be continued.
        "sums": jnp.full((batch_size, beam_size), -jnp.inf, score_dtype).at[:, 0].set(0),
        "ids": jnp.full((batch_size, beam_size, max_len), eos, jnp.int32),
        "token_scores": jnp.zeros((batch_size, beam_size, max_len), score_dtype),
        "weights": None if weights is None else weights.reshape(batch_size, beam_size, max_len, -1),
    }

    def advance(search):
        time, finished = search["time"], search["finished"]
        log_probs, state, weights = step(search["tokens"].reshape(rows), search["state"], memory)
        vocab_size = log_probs.shape[-1]
        log_probs = log_probs.reshape(batch_size, beam_size, vocab_size).astype(score_dtype)
        # A finished hypothesis has one continuation, eos again, which costs nothing.
        nothing = jnp.where(jnp.arange(vocab_size) == eos, 0.0, -jnp.inf).astype(score_dtype)
        log_probs = jnp.where(finished[..., None], nothing, log_probs)
        lengths = search["lengths"] + ~finished
        sums = search["sums"][..., None] + log_probs
        ranked = sums / (lengths[..., None].astype(score_dtype) ** length_penalty)
        _, best = jax.lax.top_k(ranked.reshape(batch_size, beam_size * vocab_size), beam_size)  # [B, beam]
        origin, tokens = best // vocab_size, (best % vocab_size).astype(jnp.int32)

        def follow(leaf: Array) -> Array:
            """The rows `[B, beam, ...]` that the chosen hypotheses continue."""
            return jnp.take_along_axis(leaf, origin.reshape(origin.shape + (1,) * (leaf.ndim - 2)), axis=1)

        was_finished = follow(finished)
        gained = jnp.take_along_axis(log_probs.reshape(batch_size, -1), best, axis=-1)
        if weights is not None:
            latest = follow(weights.reshape(batch_size, beam_size, -1))
            weights = follow(search["weights"]).at[:, :, time].set(jnp.where(was_finished[..., None], 0, latest))
        return {
            "time": time + 1,
            "tokens": tokens,
            "state": jax.tree.map(
                lambda leaf: follow(leaf.reshape(batch_size, beam_size, *leaf.shape[1:])).reshape(leaf.shape), state
            ),
            "finished": was_finished | (tokens == eos),
            "lengths": follow(lengths),
            "sums": jnp.take_along_axis(sums.reshape(batch_size, -1), best, axis=-1),
            "ids": follow(search["ids"]).at[:, :, time].set(tokens),
            "token_scores": follow(search["token_scores"]).at[:, :, time].set(gained),
            "weights": weights,
        }

    search = jax.lax.while_loop(lambda search: (search["time"] < max_len) & ~search["finished"].all(), advance, start)
    found = search["sums"] > -jnp.inf
    weights = search["weights"]
    return SearchResult(
        ids=jnp.where(found[..., None], search["ids"], eos),
        lengths=jnp.where(found, search["lengths"], 0),
        scores=(search["sums"] / search["lengths"].astype(score_dtype) ** length_penalty).astype(log_prob_dtype),
        token_scores=jnp.where(found[..., None], search["token_scores"], 0).astype(log_prob_dtype),
        weights=None if weights is None else jnp.where(found[..., None, None], weights, 0),
    )
