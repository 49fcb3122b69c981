"""Search and explain with models of `jax_attn`: functions of padded ids, one compiled program each."""

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
"""search(sources [rows, S], source_lens [rows], numbers [rows]) -> hypotheses.

Sampling draws by `numbers`, each sentence's number in its text, so that the batch does not change what is drawn.
"""

Candidates = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[Any, Any]]
"""candidates(sources [rows, S], source_lens [rows], targets [rows, L]) -> (log p [rows, L, k], tokens [rows, L, k]).

The k most probable tokens at each step while the targets are read, the most probable first.
"""


def begin(
    models: Sequence[EncoderDecoder], params: Sequence[Any], sources: jax.Array, source_lens: jax.Array
) -> tuple[Step, State, Memory]:
    """Encode the sources. Return what a search needs: the step, the state before the first token, and the memory."""
    steps: list[Any] = [partial(model.apply, p, method="step") for model, p in zip(models, params, strict=True)]
    memories, states = [], []
    for model, p in zip(models, params, strict=True):
        memories.append(model.apply(p, sources, source_lens, method="encode"))
        states.append(model.apply(p, memories[-1], method="initial_state"))
    if len(models) == 1:
        return steps[0], states[0], memories[0]
    return ensemble(steps), tuple(states), tuple(memories)


@lru_cache(maxsize=8)
def make_search(models: tuple[EncoderDecoder, ...], config: SearchConfig, max_len: int) -> Callable[..., SearchResult]:
    """Return a jitted function (params of each model, sources, source_lens, numbers) -> hypotheses.

    Several models are an ensemble. `max_len` limits translations where the configuration does not. The parameters are
    an argument, so that other weights do not compile it again.
    """

    @jax.jit
    def search(params: Sequence[Any], sources: jax.Array, source_lens: jax.Array, numbers: jax.Array) -> SearchResult:
        step, state, memory = begin(models, params, sources, source_lens)
        name, settings = search_settings(config)
        if name == "sample_search":
            settings["key"] = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(config.seed), numbers)
        if name == "beam_search":
            settings["source_lens"] = source_lens
        settings |= {"bos": BOS, "eos": EOS, "max_len": config.max_len or max_len, "batch_size": sources.shape[0]}
        return getattr(searches, name)(step, state, memory, **settings)

    return search


@lru_cache(maxsize=8)
def make_candidates(models: tuple[EncoderDecoder, ...], k: int) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Return a jitted function (params of each model, sources, source_lens, targets), see `Candidates`.

    It drives the same step as a search does, along given targets.
    """

    @jax.jit
    def candidates(
        params: Sequence[Any], sources: jax.Array, source_lens: jax.Array, targets: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        step, state, memory = begin(models, params, sources, source_lens)

        def advance(carry: Any, target: jax.Array) -> Any:
            tokens, state = carry
            log_probs, state, _ = step(tokens, state, memory)
            return (target, state), top_k(log_probs, k)

        start = jnp.full(targets.shape[0], BOS, targets.dtype)
        _, (log_probs, tokens) = jax.lax.scan(advance, (start, state), targets.T)
        return jnp.swapaxes(log_probs, 0, 1), jnp.swapaxes(tokens, 0, 1)

    return candidates
