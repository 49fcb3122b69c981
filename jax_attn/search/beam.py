"""Beam search: keep the few best hypotheses of each sentence at each step."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jax_attn.search.constraints import Constraints, constrain
from jax_attn.search.inputs import SearchInputs, make_inputs, require_options
from jax_attn.search.penalties import Penalties, make_penalties, penalized
from jax_attn.search.step import SearchResult, State, Step, make_result, map_state
from jax_attn.search.top_k import top_k
from jax_attn.search_options import LengthNorm, SearchOptions, Stop


def beam_search(
    step: Step,
    state: Any,
    memory: Any,
    *,
    bos: int,
    eos: int,
    max_len: int,
    batch_size: int,
    beam_size: int = SearchOptions.beam_size,
    length_penalty: float = SearchOptions.length_penalty,
    length_norm: LengthNorm = SearchOptions.length_norm,
    coverage_penalty: float = SearchOptions.coverage_penalty,
    source_lens: Int[Array, "..."] | None = None,
    stop: Stop = SearchOptions.stop,
    force_end: bool = SearchOptions.force_end,
    min_len: int = SearchOptions.min_len,
    no_repeat_ngram: int | None = SearchOptions.no_repeat_ngram,
    prefix: Int[Array, "..."] | None = None,
    prefix_lens: Int[Array, "..."] | None = None,
) -> SearchResult:
    r"""Keep the `beam_size` best hypotheses of each sentence, finished ones included, until all have finished.

    .. math::
        \mathrm{score} = \frac{\sum_t \log p_t}{\mathrm{norm}(\mathrm{length})} + β \sum_k \log \min(\sum_t w_{tk}, 1)

    Hypotheses are ranked by their scores, and `eos` counts in the length. Of equal scores, the continuation of the
    better hypothesis comes first, then the more probable token, then the lower id. A hypothesis that has emitted `eos`
    keeps its score and stays in the beam while no better one replaces it. A hypothesis that reaches `max_len` without
    `eos` is ranked as it is. A beam of 1 is greedy search.

    Args:
        step: see `jax_attn.search.step.Step`.
        state: the state before the first token, every leaf leading with `batch_size`; it is repeated `beam_size` times.
        memory: passed to each step unchanged, one entry for each sentence.
        bos: the first token given to the step.
        eos: the token that ends a sentence.
        max_len: L, the maximum number of tokens in a sentence, `eos` included.
        batch_size: B.
        beam_size: n, the number of hypotheses that are kept and returned. If fewer sentences exist than that, the
            remaining places have score −inf and length 0.
        length_penalty: α; 0 compares the sums.
        length_norm: "power" divides by length^α, so that α = 1 averages; "gnmt" by ((5 + length) / 6)^α.
        coverage_penalty: β; 0 is off. The step must then return weights.
        source_lens: `[B]`, the number of the K positions that should be covered; None is all.
        stop: "all" as above. With the others finished hypotheses leave the beam, which ranks by Σ log p alone; the
            `beam_size` best of them by score are the result. "first" ends with the first `beam_size` of them; "likely"
            goes on while the best unfinished one, at its present length, has a better score than the worst of them;
            "never" takes `max_len` for its length.
        force_end: whether a sentence of `max_len` tokens ends with `eos`, at no cost.
        min_len: the minimum number of tokens in a sentence, `eos` included.
        no_repeat_ngram: n: no n consecutive tokens occur twice in a sentence. None is off.
        prefix: `[B, P]`, P ≤ L: the tokens that each sentence begins with, even against the other constraints.
        prefix_lens: `[B]`, the number of tokens in each prefix; None is P.

    Returns:
        `beam_size` hypotheses a sentence, best first.

    Raises:
        ValueError, TypeError: an option out of range; a shape or dtype that does not fit, of an argument or of what
            the step returns.

    Source: Wu et al., 2016, "Google's Neural Machine Translation System", section 7.
    """
    require_options(
        beam_size=beam_size,
        length_penalty=length_penalty,
        length_norm=length_norm,
        coverage_penalty=coverage_penalty,
        stop=stop,
    )
    constraints = Constraints(eos, min_len, no_repeat_ngram, prefix, prefix_lens, max_len - 1 if force_end else None)
    inputs = make_inputs(step, state, memory, bos, max_len, batch_size, constraints, beam_size)
    num_keys = inputs.outputs.num_keys
    penalties = make_penalties(
        length_penalty, length_norm, coverage_penalty, num_keys, batch_size, source_lens=source_lens
    )

    def is_live(carry: tuple[Beam, Finished | None]) -> Array:
        return (carry[0].time < max_len) & _is_live(carry[0]).any()

    def advance(carry: tuple[Beam, Finished | None]) -> tuple[Beam, Finished | None]:
        beam, finished = carry
        if finished is None:
            return _keep_best(beam, _extend(beam, inputs, penalties, beam_size), eos), None
        return _keep_unfinished(
            beam, finished, _extend(beam, inputs, penalties, 2 * beam_size), stop, inputs, penalties
        )

    beam = _first_beam(inputs, penalties, places=beam_size if stop == "all" else 2 * beam_size)
    scores, dtype = beam.scores, inputs.outputs.dtype
    start = None if stop == "all" else Finished(scores, beam.lengths, jnp.zeros(batch_size, bool))
    beam, finished = jax.lax.while_loop(is_live, advance, (beam, start))
    found: Any = _read_back(beam.history)
    if finished is None:
        return make_result(found[0], beam.lengths, beam.scores, *found[1:], eos=eos, dtype=dtype)
    found = jax.tree.map(lambda x: x[:, beam_size:], found)
    return make_result(found[0], finished.lengths, finished.scores, *found[1:], eos=eos, dtype=dtype)


class History(NamedTuple):
    """The choices of each step. `_read_back` follows them at the end, which is cheaper than reordering at each step."""

    origins: Int[
        Array, "length batch beam"
    ]  # the place of the hypothesis continued; its own place if no step was taken
    tokens: Int[Array, "length batch beam"]  # the token appended
    token_scores: Float[Array, "length batch beam"]  # log p of that token
    weights: Float[Array, "length batch beam key"] | None  # the weights of the step, at the places before it


class Beam(NamedTuple):
    """The best hypotheses of each sentence after `time` steps, best first."""

    time: Int[Array, ""]
    tokens: Int[Array, "batch beam"]  # the last of each hypothesis
    state: State
    finished: Bool[Array, "batch beam"]  # has emitted `eos`
    lengths: Int[Array, "batch beam"]
    sums: Float[Array, "batch beam"]  # Σ log p; −inf where there is no hypothesis
    scores: Float[Array, "batch beam"]  # the sums with their penalties
    ids: Int[Array, "batch beam length"] | None  # all tokens, if a constraint reads them
    coverage: Float[Array, "batch beam key"] | None  # Σ_t weights[t], if the score needs it
    history: History


class Finished(NamedTuple):
    """The best finished hypotheses of each sentence, best first, where they leave the beam.

    In the history they have the places after those of the beam.
    """

    scores: Float[Array, "batch beam"]
    lengths: Int[Array, "batch beam"]
    full: Bool[Array, "batch"]  # whether the sentence takes no more


class Candidates(NamedTuple):
    """The continuations of each hypothesis by its `width` most probable tokens, and its step's state and weights."""

    tokens: Int[Array, "batch beam width"]
    token_scores: Float[Array, "batch beam width"]
    sums: Float[Array, "batch beam width"]
    scores: Float[Array, "batch beam width"]
    lengths: Int[Array, "batch beam"]
    coverage: Float[Array, "batch beam key"] | None
    state: State
    weights: Float[Array, "batch beam key"] | None


def _first_beam(inputs: SearchInputs, penalties: Penalties, places: int) -> Beam:
    """Return the beam before the first token, with so many places in its history."""
    outputs, eos, max_len = inputs.outputs, inputs.constraints.eos, inputs.max_len
    shape, dtype = (inputs.batch_size, inputs.num_hypotheses), outputs.score_dtype
    origins = jnp.broadcast_to(jnp.arange(places, dtype=jnp.int32), (max_len, shape[0], places))
    return Beam(
        time=jnp.zeros((), jnp.int32),
        tokens=inputs.by_sentence(inputs.tokens),
        state=inputs.state,
        finished=jnp.zeros(shape, bool),
        lengths=jnp.zeros(shape, jnp.int32),
        # All places hold the same empty hypothesis: only the first may be continued.
        sums=jnp.full(shape, -jnp.inf, dtype).at[:, 0].set(0),
        scores=jnp.full(shape, -jnp.inf, dtype),
        ids=jnp.full((*shape, max_len), eos, jnp.int32) if inputs.constraints.read_ids else None,
        coverage=jnp.zeros((*shape, outputs.num_keys or 0), dtype) if penalties.coverage else None,
        history=History(
            origins=origins,
            tokens=jnp.full(origins.shape, eos, jnp.int32),
            token_scores=jnp.zeros(origins.shape, dtype),
            weights=outputs.zero_weights(max_len, *shape),
        ),
    )


def _is_live(beam: Beam) -> Bool[Array, "batch beam"]:
    """Return which hypotheses can be continued: not the finished ones, not those of score −inf or NaN."""
    return ~beam.finished & (beam.sums > -jnp.inf)


def _extend(beam: Beam, inputs: SearchInputs, penalties: Penalties, places: int) -> Candidates:
    """Take a step, and continue each hypothesis by the most probable tokens that could fill so many places."""
    rows, dtype, live = inputs.tokens.shape[0], beam.sums.dtype, _is_live(beam)
    log_probs, state, weights = inputs.step(beam.tokens.reshape(rows), beam.state, inputs.memory)
    ids = None if beam.ids is None else beam.ids.reshape(rows, -1)
    log_probs = constrain(log_probs.astype(dtype), ids, beam.time, inputs.constraints)
    # A hypothesis cannot fill more places than there are, so that its `width` best tokens are enough.
    width = min(places, log_probs.shape[-1])
    token_scores, tokens = map(inputs.by_sentence, top_k(log_probs, width))
    weights = None if weights is None else inputs.by_sentence(weights)
    # A hypothesis that is not continued is its own only candidate: another eos, which costs nothing.
    unchanged = jnp.where(jnp.arange(width) == 0, 0.0, -jnp.inf).astype(dtype)
    token_scores = jnp.where(live[..., None], token_scores, unchanged)
    tokens = jnp.where(live[..., None], tokens, inputs.constraints.eos)
    lengths, sums, coverage = beam.lengths + live, beam.sums[..., None] + token_scores, beam.coverage
    if coverage is not None and weights is not None:  # neither is None if coverage counts
        coverage = coverage + jnp.where(live[..., None], weights, 0)
    scores = penalized(sums, lengths, coverage, penalties)
    return Candidates(tokens, token_scores, sums, scores, lengths, coverage, state, weights)


def _keep_best(beam: Beam, candidates: Candidates, eos: int) -> Beam:
    """Make the best candidates of each sentence the next beam."""
    batch_size, beam_size, width = candidates.scores.shape
    _, best = jax.lax.top_k(candidates.scores.reshape(batch_size, -1), beam_size)  # [B, beam]
    origins = best // width
    # top_k sorts a NaN anywhere: a sentence with a NaN among its candidates has no order.
    has_nan = jnp.isnan(candidates.scores).any(axis=(1, 2))[:, None]

    def chosen(x: Array) -> Array:
        """Take the best candidates `[B, beam]` of `[B, beam, width]`."""
        return jnp.take_along_axis(x.reshape(batch_size, -1), best, axis=-1)

    def reorder(rows: Array) -> Array:
        return _take(rows.reshape(batch_size, beam_size, *rows.shape[1:]), origins).reshape(rows.shape)

    tokens = chosen(candidates.tokens)
    latest = History(origins, tokens, chosen(candidates.token_scores), candidates.weights)
    return Beam(
        time=beam.time + 1,
        tokens=tokens,
        state=map_state(reorder, candidates.state),
        finished=_take(beam.finished, origins) | (tokens == eos),
        lengths=_take(candidates.lengths, origins),
        sums=jnp.where(has_nan, jnp.nan, chosen(candidates.sums)),
        scores=jnp.where(has_nan, jnp.nan, chosen(candidates.scores)),
        ids=None if beam.ids is None else _take(beam.ids, origins).at[:, :, beam.time].set(tokens),
        coverage=None if candidates.coverage is None else _take(candidates.coverage, origins),
        history=jax.tree.map(lambda steps, step: steps.at[beam.time].set(step), beam.history, latest),
    )


def _keep_unfinished(
    beam: Beam, finished: Finished, candidates: Candidates, stop: Stop, inputs: SearchInputs, penalties: Penalties
) -> tuple[Beam, Finished]:
    """Make the best candidates that do not end the next beam; those among the best `beam_size` that end leave it."""
    batch_size, beam_size, width = candidates.sums.shape
    eos, length = inputs.constraints.eos, beam.time + 1
    num_best = min(2 * beam_size, beam_size * width)
    flat = jax.tree.map(
        lambda x: x.reshape(batch_size, -1), (candidates.tokens, candidates.token_scores, candidates.scores)
    )
    sums, best = jax.lax.top_k(candidates.sums.reshape(batch_size, -1), num_best)
    tokens, token_scores, scores = (jnp.take_along_axis(x, best, axis=-1) for x in flat)
    origins, ends = best // width, (tokens == eos) | (length == inputs.max_len)
    has_nan = jnp.isnan(candidates.sums).any(axis=(1, 2))[:, None]

    # Of the finished ones: the old, and the new among the best candidates, until the sentence takes no more.
    is_new = ends & (jnp.arange(num_best) < beam_size) & ~finished.full[:, None]
    of_all = jnp.concatenate([finished.scores, jnp.where(is_new, scores, -jnp.inf)], axis=1)
    kept_scores, kept = jax.lax.top_k(of_all, beam_size)
    kept_scores = jnp.where(has_nan, jnp.nan, kept_scores)

    def of_finished(old: Array, new: Array) -> Array:
        return jnp.take_along_axis(jnp.concatenate([old, new], axis=1), kept, axis=1)

    own = jnp.broadcast_to(jnp.arange(beam_size, 2 * beam_size, dtype=origins.dtype), origins[:, :beam_size].shape)
    lengths = of_finished(finished.lengths, jnp.full_like(tokens, length))

    going_on = jnp.argsort(ends, axis=1, stable=True)[:, :beam_size]
    live_sums = jnp.where(_take(ends, going_on), -jnp.inf, _take(sums, going_on))
    live, live_tokens = _take(origins, going_on), _take(tokens, going_on)

    has_room = ~(kept_scores > -jnp.inf).all(axis=1)
    final = jnp.full((batch_size, 1), inputs.max_len if stop == "never" else length)
    hoped = penalized(live_sums[:, :1, None], final, None, penalties._replace(coverage=0.0))[:, 0, 0]
    full = finished.full | has_nan[:, 0] | (~has_room & ((stop == "first") | (hoped <= kept_scores[:, -1])))

    def reorder(rows: Array) -> Array:
        return _take(rows.reshape(batch_size, beam_size, *rows.shape[1:]), live).reshape(rows.shape)

    latest = History(
        jnp.concatenate([live, of_finished(own, origins)], axis=1),
        jnp.concatenate([live_tokens, of_finished(jnp.full_like(live_tokens, eos), tokens)], axis=1),
        jnp.concatenate(
            [_take(token_scores, going_on), of_finished(jnp.zeros_like(of_all[:, :beam_size]), token_scores)], axis=1
        ),
        candidates.weights,
    )
    now = Beam(
        time=length,
        tokens=live_tokens,
        state=map_state(reorder, candidates.state),
        finished=jnp.broadcast_to(full[:, None], live.shape),
        lengths=_take(candidates.lengths, live),
        sums=live_sums,
        scores=live_sums,
        ids=None if beam.ids is None else _take(beam.ids, live).at[:, :, beam.time].set(live_tokens),
        coverage=None if candidates.coverage is None else _take(candidates.coverage, live),
        history=jax.tree.map(lambda steps, step: steps.at[beam.time].set(step), beam.history, latest),
    )
    return now, Finished(kept_scores, lengths, full)


def _take(x: Array, places: Array) -> Array:
    """Take the rows of `[B, beam, ...]` at `places` `[B, beam]`."""
    return jnp.take_along_axis(x, places.reshape(places.shape + (1,) * (x.ndim - 2)), axis=1)


def _read_back(history: History) -> tuple[Array, Array, Array | None]:
    """Follow each hypothesis backwards: ids and token scores `[B, beam, L]`, weights `[B, beam, L, K]` or None."""

    def back(place: Array, step: History) -> tuple[Array, Any]:
        origin = _take(step.origins, place)
        # A finished hypothesis outside the beam attends no more: any row will do.
        weights = None if step.weights is None else _take(step.weights, origin % step.weights.shape[1])
        return origin, (_take(step.tokens, place), _take(step.token_scores, place), weights)

    places = jnp.arange(history.origins.shape[-1], dtype=history.origins.dtype)
    last = jnp.broadcast_to(places, history.origins.shape[1:])
    _, found = jax.lax.scan(back, last, history, reverse=True)
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2), found)
