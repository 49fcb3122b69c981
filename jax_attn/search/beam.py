"""Beam search: at each step the best few continuations of the best few beginnings."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from jax_attn.search.constraints import constrain, make_constraints
from jax_attn.search.penalties import LengthNorm, make_penalties, penalized
from jax_attn.search.step import SearchResult, Step, check_search, inspect_step, make_result
from jax_attn.search.top_k import likeliest


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
    length_norm: LengthNorm = "power",
    coverage_penalty: float = 0.0,
    source_lens: Int[Array, "..."] | None = None,
    min_len: int = 0,
    no_repeat_ngram: int | None = None,
    prefix: Int[Array, "..."] | None = None,
    prefix_lens: Int[Array, "..."] | None = None,
) -> SearchResult:
    """Keep the `beam_size` best hypotheses of each sentence, finished ones among them, until all have ended.

        score = Σ log p / norm(length) + coverage_penalty · Σ_k log(min(Σ_t weights[t, k], 1))

    Hypotheses are ranked by their scores, `eos` counted in the length; of equal ones the continuation of the better
    hypothesis comes first, then the likelier token, then the smaller. One that has emitted `eos` keeps its score and
    its claim to a place; one that reaches `max_len` without `eos` is ranked as it stands. A beam of 1 is greedy search.

    Args:
        step: see `jax_attn.search.step.Step`.
        state: the state before the first token, every leaf leading with `batch_size`; repeated `beam_size` times here.
        memory: handed to each step as it is, one entry for each sentence.
        bos, eos: the first token given to the step, and the token that ends a sentence.
        max_len: L, the most tokens of a sentence, `eos` included.
        batch_size: B.
        beam_size: n, how many hypotheses are kept and returned. Places that cannot be filled, because fewer sentences
            exist than places, score −inf and have length 0.
        length_penalty: α; 0 compares sums.
        length_norm: "power" divides by length^α, so that α = 1 averages; "gnmt" by ((5 + length) / 6)^α.
        coverage_penalty: β; 0 is off. Steps then have to return weights.
        source_lens: `[B]`, how many of the K positions ought to be covered; None is all of them.
        min_len: the fewest tokens of a sentence, `eos` included.
        no_repeat_ngram: n, if no n tokens in a row may occur twice in a sentence.
        prefix: `[B, P]`, P ≤ L: the tokens that each sentence begins with, whatever the other constraints say.
        prefix_lens: `[B]`, how many of them count; None counts all.

    Returns:
        `beam_size` hypotheses a sentence, best first.

    Raises:
        ValueError: a size below 1, an id outside the vocabulary, state or log probabilities of a wrong shape, and what
            `constraints.make_constraints` and `penalties.make_penalties` refuse.

    Source: Wu et al., 2016, "Google's Neural Machine Translation System", section 7.
    """
    check_search(max_len=max_len, batch_size=batch_size, beam_size=beam_size)
    rows = batch_size * beam_size
    tokens = jnp.full(rows, bos, jnp.int32)
    state = jax.tree.map(lambda leaf: jnp.repeat(leaf, beam_size, axis=0), state)
    outputs = inspect_step(step, tokens, state, memory, bos=bos, eos=eos)
    constraints = make_constraints(
        eos=eos,
        min_len=min_len,
        no_repeat_ngram=no_repeat_ngram,
        prefix=prefix,
        prefix_lens=prefix_lens,
        max_len=max_len,
        batch_size=batch_size,
        vocab_size=outputs.vocab_size,
    )
    penalties = make_penalties(
        length_penalty=length_penalty,
        length_norm=length_norm,
        coverage_penalty=coverage_penalty,
        source_lens=source_lens,
        num_keys=outputs.num_keys,
        batch_size=batch_size,
    )
    dtype = outputs.score_dtype
    width = min(beam_size, outputs.vocab_size)  # no hypothesis can fill more places than these
    places = jnp.broadcast_to(jnp.arange(beam_size), (max_len, batch_size, beam_size))

    def by_beam(x: Array) -> Array:
        return x.reshape(batch_size, beam_size, *x.shape[1:])

    start = {
        "time": jnp.zeros((), jnp.int32),
        "tokens": by_beam(tokens),
        "state": state,
        "finished": jnp.zeros((batch_size, beam_size), bool),
        "lengths": jnp.zeros((batch_size, beam_size), jnp.int32),
        # All places hold the same beginning: only the first of them may be continued.
        "sums": jnp.full((batch_size, beam_size), -jnp.inf, dtype).at[:, 0].set(0),
        "scores": jnp.full((batch_size, beam_size), -jnp.inf, dtype),
        "ids": None if no_repeat_ngram is None else jnp.full((batch_size, beam_size, max_len), eos, jnp.int32),
        "coverage": jnp.zeros((batch_size, beam_size, outputs.num_keys), dtype) if coverage_penalty else None,
        # What each step did, to be read backwards at the end: cheaper than reordering all that was said at each step.
        "origins": places,
        "chosen": jnp.full(places.shape, eos, jnp.int32),
        "gained": jnp.zeros(places.shape, dtype),
        "weights": outputs.room_for_weights(max_len),
    }

    def is_live(search):
        return ~search["finished"] & (search["sums"] > -jnp.inf)  # false of NaN: what is broken stays so

    def advance(search):
        time, live, coverage = search["time"], is_live(search), search["coverage"]
        log_probs, state, weights = step(search["tokens"].reshape(rows), search["state"], memory)
        ids = None if search["ids"] is None else search["ids"].reshape(rows, max_len)
        log_probs = constrain(log_probs.astype(dtype), ids, time, constraints)
        # The best of a beam are among the best of each hypothesis, which are found without its score.
        gained, tokens = (by_beam(x) for x in likeliest(log_probs, width))  # [B, beam, width]
        # A hypothesis that is not continued stands for itself: eos again, which costs nothing.
        itself = jnp.where(jnp.arange(width) == 0, 0.0, -jnp.inf).astype(dtype)
        gained, tokens = jnp.where(live[..., None], gained, itself), jnp.where(live[..., None], tokens, eos)
        lengths, sums = search["lengths"] + live, search["sums"][..., None] + gained
        if coverage is not None:
            coverage = coverage + jnp.where(live[..., None], by_beam(weights), 0)
        candidates = penalized(sums, lengths, coverage, penalties)
        # top_k puts a NaN anywhere: one among the candidates leaves no order among them.
        broken = jnp.isnan(candidates).any(axis=(1, 2))[:, None]
        _, best = jax.lax.top_k(candidates.reshape(batch_size, beam_size * width), beam_size)  # [B, beam]
        origin = best // width

        def chosen(x: Array) -> Array:
            """Of the candidates `[B, beam, width]`, the best ones `[B, beam]`."""
            return jnp.take_along_axis(x.reshape(batch_size, -1), best, axis=-1)

        tokens = chosen(tokens)
        if ids is not None:
            ids = _follow(search["ids"], origin).at[:, :, time].set(tokens)
        return {
            "time": time + 1,
            "tokens": tokens,
            "state": jax.tree.map(lambda leaf: _follow(by_beam(leaf), origin).reshape(leaf.shape), state),
            "finished": _follow(search["finished"], origin) | (tokens == eos),
            "lengths": _follow(lengths, origin),
            "sums": jnp.where(broken, jnp.nan, chosen(sums)),
            "scores": jnp.where(broken, jnp.nan, chosen(candidates)),
            "ids": ids,
            "coverage": None if coverage is None else _follow(coverage, origin),
            "origins": search["origins"].at[time].set(origin),
            "chosen": search["chosen"].at[time].set(tokens),
            "gained": search["gained"].at[time].set(chosen(gained)),
            "weights": None if weights is None else search["weights"].at[time].set(weights),
        }

    search = jax.lax.while_loop(lambda search: (search["time"] < max_len) & is_live(search).any(), advance, start)
    ids, token_scores, weights = _read_back(search["origins"], search["chosen"], search["gained"], search["weights"])
    return make_result(ids, search["lengths"], search["scores"], token_scores, weights, eos=eos, dtype=outputs.dtype)


def _follow(x: Array, origin: Array) -> Array:
    """The rows of `[B, beam, ...]` that stand at `origin` `[B, beam]`."""
    return jnp.take_along_axis(x, origin.reshape(origin.shape + (1,) * (x.ndim - 2)), axis=1)


def _read_back(
    origins: Array, chosen: Array, gained: Array, weights: Array | None
) -> tuple[Array, Array, Array | None]:
    """From each place at the end back to the beginning, by the place that each step continued.

    Args:
        origins: `[L, B, beam]`, the place that each place continued; itself where no step was taken.
        chosen, gained: `[L, B, beam]`, the tokens and their log p, under the place a step led to.
        weights: `[L, B · beam, K]` or None, under the place it came from.

    Returns:
        ids and token scores `[B, beam, L]`, weights `[B, beam, L, K]`.
    """
    if weights is not None:
        weights = weights.reshape(*origins.shape, -1)

    def back(place: Array, noted: Any) -> tuple[Array, Any]:
        origin, chosen, gained, weights = noted
        came_from = _follow(origin, place)
        said = (_follow(chosen, place), _follow(gained, place))
        return came_from, (*said, None if weights is None else _follow(weights, came_from))

    last = jnp.broadcast_to(jnp.arange(origins.shape[-1]), origins.shape[1:])
    _, said = jax.lax.scan(back, last, (origins, chosen, gained, weights), reverse=True)
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2), said)
