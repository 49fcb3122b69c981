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
    renormalize: bool = SearchOptions.renormalize,
    prefix: Int[Array, "..."] | None = None,
    prefix_lens: Int[Array, "..."] | None = None,
    free_prefix: bool = False,
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
        force_end: whether a sentence of `max_len` tokens ends with `eos`, whose log p counts as 0.
        min_len: the minimum number of tokens in a sentence, `eos` included.
        no_repeat_ngram: n: no n consecutive tokens occur twice in a sentence. None is off.
        renormalize: let the probabilities of the tokens that `min_len` and `no_repeat_ngram` allow sum to 1, as in
            transformers and CTranslate2.
        prefix: `[B, P]`, P ≤ L: the tokens that each sentence begins with, even against the other constraints.
        prefix_lens: `[B]`, the number of tokens in each prefix; None is P.
        free_prefix: whether the tokens of the prefix cost nothing: their log p counts as 0.

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
    last = max_len - 1 if force_end else None
    constraints = Constraints(eos, min_len, no_repeat_ngram, prefix, prefix_lens, last, renormalize, free_prefix)
    inputs = make_inputs(step, state, memory, bos, max_len, batch_size, constraints, beam_size)
    eos, num_keys = inputs.constraints.eos, inputs.outputs.num_keys
    penalties = make_penalties(
        length_penalty, length_norm, coverage_penalty, num_keys, batch_size, source_lens=source_lens
    )

    def is_live(found: tuple[Beam, Finished | None]) -> Array:
        return (found[0].time < max_len) & _is_live(found[0]).any()

    def advance(found: tuple[Beam, Finished | None]) -> tuple[Beam, Finished | None]:
        beam, finished = found
        if finished is None:
            return _keep_best(beam, _extend(beam, inputs, penalties, beam_size), eos), None
        candidates = _extend(beam, inputs, penalties, beam_size + 1)  # one of them may be eos
        return _keep_unfinished(beam, finished, candidates, inputs, penalties, stop)

    beam = _first_beam(inputs, penalties)
    beam, finished = jax.lax.while_loop(is_live, advance, (beam, None if stop == "all" else _none_finished(beam)))
    ids, token_scores, weights = _read_back(beam.history, finished)
    best = beam if finished is None else finished
    return make_result(ids, best.lengths, best.scores, token_scores, weights, eos=eos, dtype=inputs.outputs.dtype)


class History(NamedTuple):
    """The choices of each step. `_read_back` follows them at the end, which is cheaper than reordering at each step."""

    origins: Int[Array, "length batch beam"]  # whose place it continues; its own where no step was taken
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
    """The best finished hypotheses of each sentence, best first, where they leave the beam."""

    scores: Float[Array, "batch beam"]
    lengths: Int[Array, "batch beam"]
    origins: Int[Array, "batch beam"]  # the place in the beam before the last token
    tokens: Int[Array, "batch beam"]  # the last token
    token_scores: Float[Array, "batch beam"]  # log p of that token


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


def _first_beam(inputs: SearchInputs, penalties: Penalties) -> Beam:
    outputs, eos, max_len = inputs.outputs, inputs.constraints.eos, inputs.max_len
    shape, dtype = (inputs.batch_size, inputs.num_hypotheses), outputs.score_dtype
    places = jnp.broadcast_to(jnp.arange(shape[1]), (max_len, *shape))
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
            origins=places,
            tokens=jnp.full(places.shape, eos, jnp.int32),
            token_scores=jnp.zeros(places.shape, dtype),
            weights=outputs.zero_weights(*places.shape),
        ),
    )


def _is_live(beam: Beam) -> Bool[Array, "batch beam"]:
    """Return which hypotheses can be continued: not the finished ones, not those of score −inf or NaN."""
    return ~beam.finished & (beam.sums > -jnp.inf)


def _extend(beam: Beam, inputs: SearchInputs, penalties: Penalties, places: int) -> Candidates:
    """Take a step, and continue each hypothesis by its most probable tokens, which could fill so many places."""
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


def _none_finished(beam: Beam) -> Finished:
    none = jnp.zeros_like(beam.tokens)
    return Finished(jnp.full_like(beam.scores, -jnp.inf), none, none, none, jnp.zeros_like(beam.scores))


def _keep_unfinished(
    beam: Beam, finished: Finished, candidates: Candidates, inputs: SearchInputs, penalties: Penalties, stop: Stop
) -> tuple[Beam, Finished]:
    """Make the best candidates that do not end the next beam. Those that end leave it, if they are among the best."""
    batch_size, beam_size, width = candidates.sums.shape
    eos, length = inputs.constraints.eos, beam.time + 1
    ends = (candidates.tokens == eos) | (length == inputs.max_len)
    has_nan = jnp.isnan(candidates.sums).any(axis=(1, 2))[:, None]

    _, best = jax.lax.top_k(candidates.sums.reshape(batch_size, -1), beam_size)
    new_scores = jnp.where(ends, candidates.scores, -jnp.inf)
    lengths = jnp.broadcast_to(length, ends.shape)
    tokens, token_scores = candidates.tokens, candidates.token_scores
    scores, lengths, tokens, token_scores = (
        jnp.take_along_axis(x.reshape(batch_size, -1), best, axis=-1)
        for x in (new_scores, lengths, tokens, token_scores)
    )
    new = Finished(scores, lengths, best // width, tokens, token_scores)
    both = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), finished, new)
    _, kept = jax.lax.top_k(both.scores, beam_size)
    updated = jax.tree.map(lambda x: _take(x, kept), both)
    updated = updated._replace(scores=jnp.where(has_nan, jnp.nan, updated.scores))
    finished = jax.tree.map(lambda old, new: jnp.where(beam.finished, old, new), finished, updated)

    sums = jnp.where(ends, -jnp.inf, candidates.sums)
    going_on = _keep_best(beam, candidates._replace(sums=sums, scores=sums), eos)
    final = jnp.full((batch_size, 1), inputs.max_len if stop == "never" else length)
    hoped = penalized(going_on.sums[:, :1, None], final, None, penalties)[..., 0]
    has_room = (finished.scores == -jnp.inf).any(axis=1, keepdims=True)
    is_full = ~has_room & ((stop == "first") | (hoped <= finished.scores[:, -1:]))
    return going_on._replace(finished=beam.finished | has_nan | is_full), finished


def _take(x: Array, places: Array) -> Array:
    """Take the rows of `[B, beam, ...]` at `places` `[B, beam]`."""
    return jnp.take_along_axis(x, places.reshape(places.shape + (1,) * (x.ndim - 2)), axis=1)


def _read_back(history: History, finished: Finished | None) -> tuple[Array, Array, Array | None]:
    """Follow each hypothesis backwards: ids and token scores `[B, beam, L]`, weights `[B, beam, L, K]` or None.

    Those that left the beam are followed from the step at which they did.
    """

    def back(place: Array, at: tuple[Array, History]) -> tuple[Array, Any]:
        time, step = at
        origin, token, token_score = (_take(x, place) for x in (step.origins, step.tokens, step.token_scores))
        if finished is not None:
            is_last = time + 1 == finished.lengths
            origin = jnp.where(is_last, finished.origins, origin)
            token = jnp.where(is_last, finished.tokens, token)
            token_score = jnp.where(is_last, finished.token_scores, token_score)
        weights = None if step.weights is None else _take(step.weights, origin)
        return origin, (token, token_score, weights)

    length, _, beam_size = history.origins.shape
    last = jnp.broadcast_to(jnp.arange(beam_size), history.origins.shape[1:])
    _, found = jax.lax.scan(back, last, (jnp.arange(length), history), reverse=True)
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2), found)
