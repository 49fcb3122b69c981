"""From padded ids to hypotheses: a model, or several as one, given to the search that is asked for."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_attn import search as searches
from jax_attn.models import EncoderDecoder
from jax_attn.search import SearchResult, ensemble
from jax_attn.search.step import Memory, State, Step
from jax_attn.search.top_k import top_k
from train.config import SearchConfig, search_settings
from train.data.vocabulary import BOS, EOS

Search = Callable[[np.ndarray, np.ndarray, np.ndarray], SearchResult]
"""search(sources [rows, S], source_lens [rows], numbers [rows]) -> hypotheses, always called with as many rows.

A sentence's number in its text is what sampling draws by, so that its draws do not depend on who is beside it.
"""

Candidates = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""candidates(sources [rows, S], source_lens [rows], targets [rows, L]) -> (log p [rows, L, k], tokens [rows, L, k]).

The k likeliest tokens at each step while the targets are read, likeliest first.
"""


def begin(
    models: Sequence[EncoderDecoder], params: Sequence[Any], sources: jax.Array, source_lens: jax.Array
) -> tuple[Step, State, Memory]:
    """What a search is given: the step, the state before the first token, and the memory of the sources."""
    memories = [model.apply(p, sources, source_lens, method="encode") for model, p in zip(models, params, strict=True)]
    states = [
        model.apply(p, memory, method="initial_state")
        for model, p, memory in zip(models, params, memories, strict=True)
    ]
    steps: list[Any] = [partial(model.apply, p, method="step") for model, p in zip(models, params, strict=True)]
    if len(steps) == 1:
        return steps[0], states[0], memories[0]
    return ensemble(steps), tuple(states), tuple(memories)


@lru_cache(maxsize=8)
def make_search(models: tuple[EncoderDecoder, ...], config: SearchConfig, max_len: int) -> Callable[..., SearchResult]:
    """A function (params of each model, sources, source_lens, numbers) -> hypotheses.

    `max_len` is the longest translation where the configuration names none. Several models are an ensemble. It is
    compiled once for all parameters, and once for all that ask for the same search.
    """

    def search(params: Sequence[Any], sources: jax.Array, source_lens: jax.Array, numbers: jax.Array) -> SearchResult:
        found = begin(models, params, sources, source_lens)
        ends = {"bos": BOS, "eos": EOS, "max_len": config.max_len or max_len, "batch_size": sources.shape[0]}
        name, settings = search_settings(config)
        if name == "sample_search":
            settings["key"] = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(config.seed), numbers)
        if name == "beam_search":
            settings["source_lens"] = source_lens
        return getattr(searches, name)(*found, **ends, **settings)

    return jax.jit(search)


@lru_cache(maxsize=8)
def make_candidates(models: tuple[EncoderDecoder, ...], k: int) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """A function (params of each model, sources, source_lens, targets) -> see `Candidates`.

    The step that search drives, driven along given targets instead.
    """

    def candidates(
        params: Sequence[Any], sources: jax.Array, source_lens: jax.Array, targets: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        step, state, memory = begin(models, params, sources, source_lens)

        def advance(carry: Any, given: jax.Array) -> Any:
            tokens, state = carry
            log_probs, state, _ = step(tokens, state, memory)
            return (given, state), top_k(log_probs, k)

        start = jnp.full(targets.shape[0], BOS, targets.dtype)
        _, found = jax.lax.scan(advance, (start, state), targets.T)
        log_probs, tokens = (jnp.swapaxes(x, 0, 1) for x in found)
        return log_probs, tokens

    return jax.jit(candidates)
