"""Sampling: at each step a token drawn from the model's distribution, or from the likely part of it."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from jax_attn.functional.checks import require_float, require_shape, shape_text
from jax_attn.search.constraints import make_constraints
from jax_attn.search.decode_loop import walk
from jax_attn.search.step import SearchResult, Step, check_search, inspect_step
from jax_attn.search.top_k import likeliest


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
    num_samples: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_len: int = 0,
    no_repeat_ngram: int | None = None,
    prefix: Int[Array, "..."] | None = None,
    prefix_lens: Int[Array, "..."] | None = None,
) -> SearchResult:
    """Draw `num_samples` translations of each sentence, token by token, until all have ended, or for `max_len` tokens.

        token = argmax_n (log p(n) / temperature + g_n),   g_n standard Gumbel, n among the kept tokens

    which draws n with probability p(n)^(1/temperature), normalised. Tokens that the constraints forbid are never
    drawn. Then `top_k` keeps the k likeliest tokens, and `top_p`, of what `temperature` and `top_k` have made of the
    distribution, the fewest likeliest tokens that have the probability p together (the nucleus, which sorts the
    vocabulary unless `top_k` is given too). Of equally likely tokens the lower is kept.

    A sentence's samples depend on its key and on nothing else in the batch.

    Args:
        step: see `jax_attn.search.step.Step`.
        state: the state before the first token, every leaf leading with `batch_size`; repeated `num_samples` times.
        memory: handed to each step as it is, one entry for each sentence.
        bos, eos: the first token given to the step, and the token that ends a sentence.
        max_len: L, the most tokens of a sentence, `eos` included.
        batch_size: B.
        key: one key, from which each sentence gets its own by its place in the batch, or the sentences' own, `[B]`.
        noise: g `[B, num_samples, L, N]`, given instead of drawn, so that two frameworks can draw the same.
        num_samples: n, how many are drawn of each sentence, independently.
        temperature: below 1 the likely tokens become likelier still.
        top_k, top_p: see above; None keeps all.
        min_len, no_repeat_ngram, prefix, prefix_lens: as in `jax_attn.beam_search`.

    Returns:
        `num_samples` hypotheses a sentence, as they were drawn; scores and token scores are the model's own log p,
        whatever the temperature.

    Raises:
        ValueError: a size below 1, a temperature that is not finite and above 0, `top_k` below 1, `top_p` outside
            (0, 1], both or neither of `key` and `noise`, either of a wrong shape, and what `jax_attn.greedy_search`
            refuses.
        TypeError: a key that is not one of `jax.random.key`, noise that is not floating.

    Source: Holtzman et al., 2020, "The Curious Case of Neural Text Degeneration"; Fan et al., 2018, for top-k.
    """
    check_search(max_len=max_len, batch_size=batch_size, num_samples=num_samples)
    _check_distribution(temperature, top_k, top_p)
    rows = batch_size * num_samples
    tokens = jnp.full(rows, bos, jnp.int32)
    state = jax.tree.map(lambda leaf: jnp.repeat(leaf, num_samples, axis=0), state)
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
    if (key is None) == (noise is None):
        raise ValueError("either key or noise must be given, and not both")
    if noise is not None:
        require_float(noise=noise)
        require_shape([batch_size, num_samples, max_len, outputs.vocab_size], noise=noise)
        given = jnp.asarray(noise, outputs.score_dtype).reshape(rows, max_len, -1)
    else:
        keys = _keys_of_rows(key, batch_size, num_samples)

    def choose(log_probs: Array, time: Array) -> tuple[Array, Array]:
        gumbel = _draw(keys, time, log_probs) if noise is None else given[:, time]
        return draw_tokens(log_probs, gumbel, temperature=temperature, top_k=top_k, top_p=top_p)

    return walk(step, tokens, state, memory, choose, constraints, outputs, batch_size=batch_size, max_len=max_len)


def draw_tokens(
    log_probs: Float[Array, "rows vocab"],
    gumbel: Float[Array, "rows vocab"],
    *,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
) -> tuple[Float[Array, "rows"], Int[Array, "rows"]]:
    """A token of each row and its log probability, NaN if the row holds one; −inf where nothing can be drawn."""
    logits, tokens = log_probs / temperature, None
    if top_k is not None or top_p is not None:
        vocab_size = log_probs.shape[-1]
        logits, tokens = likeliest(logits, vocab_size if top_k is None else min(top_k, vocab_size))
        if top_p is not None:
            logits = jnp.where(nucleus(logits, top_p), logits, -jnp.inf)
        gumbel = jnp.take_along_axis(gumbel, tokens, axis=-1)
    highest, chosen = likeliest(logits + gumbel, 1)
    if tokens is not None:
        chosen = jnp.take_along_axis(tokens, chosen, axis=-1)
    gained = jnp.take_along_axis(log_probs, chosen, axis=-1)
    return jnp.where(jnp.isnan(highest), jnp.nan, gained)[:, 0], chosen[:, 0]


def nucleus(logits: Float[Array, "rows kept"], top_p: float) -> Bool[Array, "rows kept"]:
    """Of tokens sorted by likelihood, the fewest whose probability reaches `top_p`.

    n is kept if Σ_{m < n} p(m) < top_p,   p the softmax of the logits

    nucleus(log [[0.5, 0.25, 0.125, 0.125]], 0.75) = [[True, True, False, False]]
    """
    highest = logits.max(axis=-1, keepdims=True)
    exponents = jnp.exp(logits - jnp.where(highest == -jnp.inf, 0, highest))  # of a NaN all are: it is seen later
    before = jnp.cumsum(exponents, axis=-1) - exponents
    return ~(before >= top_p * exponents.sum(axis=-1, keepdims=True))


def _check_distribution(temperature: float, top_k: int | None, top_p: float | None) -> None:
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be finite and above 0; got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1; got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be in (0, 1]; got {top_p}")


def _keys_of_rows(key: Any, batch_size: int, num_samples: int) -> Key[Array, "rows"]:
    """A key for each of a sentence's samples `[B · num_samples]`, from the sentence's own."""
    if not jnp.issubdtype(jnp.result_type(key), jax.dtypes.prng_key):
        raise TypeError(f"key must be one of jax.random.key; got {jnp.result_type(key)}")
    if key.shape not in ((), (batch_size,)):
        raise ValueError(f"key must be [] or [{batch_size}]; got {shape_text(key.shape)}")
    if key.shape == ():
        key = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(batch_size))
    of_samples = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(key, jnp.arange(num_samples))
    return of_samples.reshape(batch_size * num_samples)


def _draw(keys: Key[Array, "rows"], time: Array, like: Array) -> Array:
    """Gumbel noise `[rows, N]` for one step, each row's from its own key."""
    at_time = jax.vmap(jax.random.fold_in, (0, None))(keys, time)
    return jax.vmap(lambda key: jax.random.gumbel(key, like.shape[1:], like.dtype))(at_time)
