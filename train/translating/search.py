"""Search and explain: functions of padded ids, one compiled program each."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jax_attn import search as searches
from jax_attn.models import EncoderDecoder
from jax_attn.models.interface import AttentionMaps
from jax_attn.search import SearchResult, ensemble
from jax_attn.search.step import Memory, State, Step
from jax_attn.search.top_k import top_k
from train.config import SearchConfig
from train.data.vocabulary import BOS, EOS

Search = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], SearchResult]
"""search(sources [rows, S], source_lens [rows], numbers [rows], prefix [rows, P]) -> hypotheses.

Sampling draws by `numbers`, each sentence's number in its text, so that the batch does not change what is drawn. Each
hypothesis begins with its prefix, whose log p counts as 0.
"""


class Followed(NamedTuple):
    """What the models say at each step while they read given targets."""

    log_probs: Any
    """`[rows, L, k]`: log p of the k most probable tokens, the most probable first."""
    tokens: Any
    """`[rows, L, k]`: those tokens."""
    target_log_probs: Any
    """`[rows, L]`: log p of the targets."""
    weights: Any
    """`[rows, L, S]`: the attention weights, or None."""


Attend = Callable[[np.ndarray, np.ndarray, np.ndarray], AttentionMaps]
"""attend(sources [rows, S], source_lens [rows], targets [rows, L]) -> the weights of every layer and head.

`cross` and `target` have a row for each target: the step that predicts it. The columns of `target` are what that step
has read: `<bos>`, and the targets before.
"""

Follow = Callable[[np.ndarray, np.ndarray, np.ndarray], Followed]
"""follow(sources [rows, S], source_lens [rows], targets [rows, L])."""


def begin(
    models: Sequence[EncoderDecoder], params: Sequence[Any], sources: jax.Array, source_lens: jax.Array, max_len: int
) -> tuple[Step, State, Memory]:
    """Encode the sources. Return what a search needs: the step, the state before the first token, and the memory."""
    steps: list[Any] = [partial(model.apply, p, method="step") for model, p in zip(models, params, strict=True)]
    memories, states = [], []
    for model, p in zip(models, params, strict=True):
        memories.append(model.apply(p, sources, source_lens, method="encode"))
        states.append(model.apply(p, memories[-1], max_len, method="initial_state"))
    if len(models) == 1:
        return steps[0], states[0], memories[0]
    return ensemble(steps), tuple(states), tuple(memories)


@lru_cache(maxsize=8)
def make_search(
    models: tuple[EncoderDecoder, ...], config: SearchConfig, max_len: int, mesh: Mesh | None = None
) -> Callable[..., SearchResult]:
    """Return a jitted function (params of each model, sources, source_lens, numbers, prefix) -> hypotheses.

    Several models are an ensemble. `max_len` limits translations where the configuration does not. The parameters are
    an argument, so that other weights do not compile it again. On a mesh each device searches its rows, and ends when
    they have ended.
    """

    def search(
        params: Sequence[Any], sources: jax.Array, source_lens: jax.Array, numbers: jax.Array, prefix: jax.Array
    ) -> SearchResult:
        longest = config.max_len or max_len
        step, state, memory = begin(models, params, sources, source_lens, longest)
        function = getattr(searches, config.function)
        settings = config.of(function)
        if function is searches.sample_search:
            settings["key"] = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(config.seed), numbers)
        if function is searches.beam_search:
            settings["source_lens"] = source_lens  # those to cover
        settings |= {"bos": BOS, "eos": EOS, "max_len": longest, "batch_size": sources.shape[0]}
        settings |= {"prefix": prefix, "free_prefix": True}
        result: SearchResult = function(step, state, memory, **settings)
        return result

    if mesh is None:
        return jax.jit(search)
    rows = PartitionSpec(mesh.axis_names[0])
    in_specs = PartitionSpec(), rows, rows, rows, rows
    return jax.jit(jax.shard_map(search, mesh=mesh, in_specs=in_specs, out_specs=rows, check_vma=False))


@lru_cache(maxsize=8)
def make_follow(models: tuple[EncoderDecoder, ...], k: int) -> Callable[..., Followed]:
    """Return a jitted function (params of each model, sources, source_lens, targets), see `Followed`.

    It drives the same step as a search does, along given targets.
    """

    @jax.jit
    def follow(params: Sequence[Any], sources: jax.Array, source_lens: jax.Array, targets: jax.Array) -> Followed:
        step, state, memory = begin(models, params, sources, source_lens, targets.shape[1])

        def advance(carry: Any, target: jax.Array) -> Any:
            tokens, state = carry
            log_probs, state, weights = step(tokens, state, memory)
            found = jnp.take_along_axis(log_probs, target[:, None], axis=1)[:, 0]
            return (target, state), Followed(*top_k(log_probs, k), found, weights)

        start = jnp.full(targets.shape[0], BOS, targets.dtype)
        _, steps = jax.lax.scan(advance, (start, state), targets.T)
        return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), steps)

    return follow


@lru_cache(maxsize=8)
def make_attend(model: EncoderDecoder) -> Callable[..., AttentionMaps]:
    """Return a jitted function (params, sources, source_lens, targets), see `Attend`."""

    @jax.jit
    def attend(params: Any, sources: jax.Array, source_lens: jax.Array, targets: jax.Array) -> AttentionMaps:
        read = jnp.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=BOS)
        maps: Any = model.apply(params, sources, read, source_lens, method="attention_maps")
        return maps

    return attend
