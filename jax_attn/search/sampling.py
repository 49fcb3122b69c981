"""Sampling: draw each token from the model's distribution, or from its most probable part."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from jax_attn.functional.checks import require_float, require_shape, shape_text
from jax_attn.search.constraints import Constraints
from jax_attn.search.decode_loop import decode_loop
from jax_attn.search.inputs import make_inputs, require_options
from jax_attn.search.step import SearchResult, Step
from jax_attn.search.top_k import top_k
from jax_attn.search_options import SearchOptions


def sample_search(
    step: Step,
    state: Any,
    memory: Any,
    *,
    bos: int,
    eos: int,
    max_len: int,
    batch_size: int,
    key: Key[Array, "..."] | None = None,
    noise: Float[Array, "..."] | None = None,
    num_samples: int = SearchOptions.num_samples,
    temperature: float = SearchOptions.temperature,
    top_k: int | None = SearchOptions.top_k,
    top_p: float | None = SearchOptions.top_p,
    force_end: bool = SearchOptions.force_end,
    min_len: int = SearchOptions.min_len,
    no_repeat_ngram: int | None = SearchOptions.no_repeat_ngram,
    renormalize: bool = SearchOptions.renormalize,
    prefix: Int[Array, "..."] | None = None,
    prefix_lens: Int[Array, "..."] | None = None,
    free_prefix: bool = False,
) -> SearchResult:
    r"""Draw `num_samples` hypotheses for each sentence, token by token, until all have ended or have `max_len` tokens.

    .. math:: \mathrm{token} = \mathrm{argmax}_n (\log p(n) / \mathrm{temperature} + g_n)

    with standard Gumbel g, and n among the kept tokens. This draws n with probability p(n)^(1/temperature), normalised.
    The options apply in this order:

        constraints   forbid tokens
        temperature   sharpens the distribution (below 1) or flattens it (above 1)
        top_k         keeps the k most probable tokens
        top_p         keeps the nucleus: the smallest set of most probable tokens whose probabilities sum to p

    Of equally probable tokens the one with the lower id is kept. The nucleus sorts the vocabulary unless `top_k` is
    given too.

    The samples of a sentence depend on its key, and on no other sentence in the batch.

    The other arguments are those of `beam_search`.

    Args:
        key: one key for the batch, from which each sentence gets its own by its position; or one for each sentence,
            `[B]`.
        noise: g `[B, num_samples, L, N]`, in place of a key, so that two frameworks can draw the same samples.
        num_samples: n, the number of independent samples for each sentence.
        temperature: see above; 1 is the model's distribution.
        top_k, top_p: see above; None keeps all tokens.

    Returns:
        `num_samples` hypotheses a sentence, in the order drawn. Scores and token scores are the log p of the model,
        without the temperature.

    Raises:
        ValueError, TypeError: as `jax_attn.beam_search`; both or neither of `key` and `noise`; a key that is not one
            of `jax.random.key`.

    Source: Holtzman et al., 2020, "The Curious Case of Neural Text Degeneration"; Fan et al., 2018, for top-k.
    """
    require_options(num_samples=num_samples, temperature=temperature, top_k=top_k, top_p=top_p)
    last = max_len - 1 if force_end else None
    constraints = Constraints(eos, min_len, no_repeat_ngram, prefix, prefix_lens, last, renormalize, free_prefix)
    inputs = make_inputs(step, state, memory, bos, max_len, batch_size, constraints, num_samples)
    if (key is None) == (noise is None):
        raise ValueError("either key or noise must be given, and not both")
    if noise is not None:
        require_float(noise=noise)
        require_shape([batch_size, num_samples, max_len, inputs.outputs.vocab_size], noise=noise)
        given = jnp.asarray(noise, inputs.outputs.score_dtype).reshape(batch_size * num_samples, max_len, -1)
    else:
        keys = _row_keys(key, batch_size, num_samples)

    def choose(log_probs: Array, time: Array) -> tuple[Array, Array]:
        gumbel = _draw_noise(keys, time, log_probs) if noise is None else given[:, time]
        return draw_tokens(log_probs, gumbel, temperature=temperature, k=top_k, p=top_p)

    return decode_loop(inputs, choose)


def draw_tokens(
    log_probs: Float[Array, "rows vocab"],
    gumbel: Float[Array, "rows vocab"],
    *,
    temperature: float,
    k: int | None,
    p: float | None,
) -> tuple[Float[Array, "rows"], Int[Array, "rows"]]:
    """Draw a token for each row, and return its log probability and the token.

    The log probability is NaN if the row contains a NaN, and −inf if the row has no possible token.
    """
    p = None if p == 1 else p  # 1 keeps every token: none may be lost to the rounding of sums
    logits, tokens = log_probs / temperature, None
    if k is not None or p is not None:
        vocab_size = log_probs.shape[-1]
        logits, tokens = top_k(logits, vocab_size if k is None else min(k, vocab_size))
        if p is not None:
            logits = jnp.where(nucleus(logits, p), logits, -jnp.inf)
        gumbel = jnp.take_along_axis(gumbel, tokens, axis=-1)
    highest, chosen = top_k(logits + gumbel, 1)
    if tokens is not None:
        chosen = jnp.take_along_axis(tokens, chosen, axis=-1)
    token_scores = jnp.take_along_axis(log_probs, chosen, axis=-1)
    return jnp.where(jnp.isnan(highest), jnp.nan, token_scores)[:, 0], chosen[:, 0]


def nucleus(logits: Float[Array, "rows kept"], top_p: float) -> Bool[Array, "rows kept"]:
    """Mark the smallest set of most probable tokens whose probabilities sum to at least `top_p`.

    The logits are sorted, largest first. Token n is kept if Σ_{m < n} p(m) < top_p, where p is their softmax.

    nucleus(log [[0.5, 0.25, 0.125, 0.125]], 0.75) = [[True, True, False, False]]
    """
    highest = logits.max(axis=-1, keepdims=True)
    exponents = jnp.exp(logits - jnp.where(highest == -jnp.inf, 0, highest))  # NaN: all are kept, see `draw_tokens`
    before = jnp.cumsum(exponents, axis=-1) - exponents
    return ~(before >= top_p * exponents.sum(axis=-1, keepdims=True))


def _row_keys(key: Any, batch_size: int, num_samples: int) -> Key[Array, "rows"]:
    """Derive a key for each sample `[B · num_samples]` from the key of its sentence."""
    if not jnp.issubdtype(jnp.result_type(key), jax.dtypes.prng_key):
        raise TypeError(f"key must be one of jax.random.key; got {jnp.result_type(key)}")
    if key.shape not in ((), (batch_size,)):
        raise ValueError(f"key must be [] or [{batch_size}]; got {shape_text(key.shape)}")
    if key.shape == ():
        key = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(batch_size))
    sample_keys = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(key, jnp.arange(num_samples))
    return sample_keys.reshape(batch_size * num_samples)


def _draw_noise(keys: Key[Array, "rows"], time: Array, like: Array) -> Array:
    """Draw Gumbel noise `[rows, N]` for one step, each row from its own key."""
    step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, time)
    return jax.vmap(lambda key: jax.random.gumbel(key, like.shape[1:], like.dtype))(step_keys)
