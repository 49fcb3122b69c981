"""Constraints on the tokens of a hypothesis, shared by every search.

A forbidden token gets the log probability −inf. The others keep theirs, so that scores stay those of the model, or
their probabilities sum to 1 again.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jax_attn.functional.checks import require_ids, require_integer, require_lengths, require_shape, shape_text


class Constraints(NamedTuple):
    """The options of `beam_search` that constrain the tokens. A constraint that is off costs nothing."""

    eos: int
    min_len: int
    no_repeat_ngram: int | None
    prefix: Array | None
    prefix_lens: Array | None
    last: int | None = None
    """The time of the token that must be `eos`; None is off."""
    renormalize: bool = False
    """Let the probabilities that `min_len` and `no_repeat_ngram` leave sum to 1."""
    free_prefix: bool = False
    """Let the log p of the prefix's tokens be 0."""

    @property
    def read_ids(self) -> bool:
        """Whether `constrain` reads the earlier tokens. Beam search keeps them in order only then."""
        return self.no_repeat_ngram is not None


def checked_constraints(constraints: Constraints, max_len: int, batch_size: int, vocab_size: int) -> Constraints:
    """Check the constraints that no range of `SearchOptions` covers, and fill in `prefix_lens`.

    Raises:
        ValueError: `min_len` above `max_len`, a wrong shape, lengths without a prefix. Outside of a jit also ids
            outside [0, N) and lengths outside [0, P].
        TypeError: a prefix or lengths that are not integers.
    """
    min_len, prefix, prefix_lens = constraints.min_len, constraints.prefix, constraints.prefix_lens
    if min_len > max_len:
        raise ValueError(f"min_len must be at most {max_len}, which is max_len; got {min_len}")
    if prefix is None:
        if prefix_lens is not None:
            raise ValueError("prefix_lens needs a prefix; got None")
        return constraints
    require_integer(prefix=prefix)
    shape = jnp.shape(prefix)
    if len(shape) != 2 or shape[0] != batch_size or shape[1] > max_len:
        raise ValueError(f"prefix must be [{batch_size}, at most max_len = {max_len}]; got {shape_text(shape)}")
    require_ids(vocab_size, prefix=prefix)
    if prefix_lens is None:
        prefix_lens = jnp.full(batch_size, shape[1], jnp.int32)
    require_integer(prefix_lens=prefix_lens)
    require_shape([batch_size], prefix_lens=prefix_lens)
    require_lengths(shape[1], prefix_lens=prefix_lens)
    if shape[1] == 0:
        return constraints._replace(prefix=None, prefix_lens=None)
    return constraints._replace(prefix=jnp.asarray(prefix), prefix_lens=jnp.asarray(prefix_lens))


def constrain(
    log_probs: Float[Array, "rows vocab"],
    ids: Int[Array, "rows length"] | None,
    time: Int[Array, ""],
    constraints: Constraints,
) -> Float[Array, "rows vocab"]:
    """Set `log_probs` to −inf for every token that may not follow `ids[:, :time]`.

    The prefix goes before the other constraints: it may end a sentence early or repeat itself. Its tokens count for the
    constraints on later tokens. The hypotheses of a sentence are adjacent rows. `ids` may be None unless
    `constraints.read_ids`.
    """
    allowed = log_probs
    if constraints.min_len > 1:
        allowed = forbid_end(allowed, time, constraints.eos, constraints.min_len)
    if constraints.no_repeat_ngram is not None:
        assert ids is not None, "Constraints.read_ids must be True"
        allowed = forbid_repeats(allowed, ids, time, constraints.no_repeat_ngram)
    if constraints.renormalize and allowed is not log_probs:  # else they sum to 1 as they come
        allowed = normalize(allowed)
    if constraints.last is not None:
        ends = jnp.arange(log_probs.shape[-1]) == constraints.eos
        allowed = jnp.where(time == constraints.last, jnp.where(ends, 0.0, -jnp.inf).astype(allowed.dtype), allowed)
    if constraints.prefix is not None and constraints.prefix_lens is not None:
        known = jnp.zeros_like(log_probs) if constraints.free_prefix else log_probs
        forced = force_prefix(known, time, constraints.prefix)
        is_forced = jnp.repeat(time < constraints.prefix_lens, log_probs.shape[0] // constraints.prefix.shape[0])
        allowed = jnp.where(is_forced[:, None], forced, allowed)
    return allowed


def normalize(log_probs: Float[Array, "*rows vocab"]) -> Float[Array, "*rows vocab"]:
    """Let the probabilities of each row sum to 1; a row without a possible token stays −inf."""
    total = jax.nn.logsumexp(log_probs, axis=-1, keepdims=True)
    return log_probs - jnp.where(total == -jnp.inf, 0, total)


def forbid_end(
    log_probs: Float[Array, "rows vocab"], time: Int[Array, ""], eos: int, min_len: int
) -> Float[Array, "rows vocab"]:
    """Set `eos` to −inf while the sentence would end with fewer than `min_len` tokens: time + 1 < min_len."""
    ends = jnp.arange(log_probs.shape[-1]) == eos
    return jnp.where(ends & (time + 1 < min_len), -jnp.inf, log_probs)


def forbid_repeats(
    log_probs: Float[Array, "rows vocab"], ids: Int[Array, "rows length"], time: Int[Array, ""], n: int
) -> Float[Array, "rows vocab"]:
    """Set every token to −inf that would complete an n-gram which `ids[:, :time]` already contains.

        token ids[i + n − 1] is forbidden if ids[i : i + n − 1] = ids[time − n + 1 : time] and i + n ≤ time

    At n = 2, after a b a, the token b is forbidden; at n = 1, a and b are. Each row is compared with itself, shifted,
    in O(n·L) time and O(L) memory.

    Source: Paulus et al., 2018, "A Deep Reinforced Model for Abstractive Summarization", section 2.5.
    """
    rows, length = ids.shape
    starts = jnp.arange(length - n + 1)  # where each n-gram begins that fits; nowhere if n > L
    repeats = jnp.broadcast_to(starts + n <= time, (rows, starts.size))
    for offset in range(n - 1):
        # Unused before n − 1 tokens, where `repeats` is False.
        latest = jnp.take(ids, time - n + 1 + offset, axis=1, mode="clip")
        repeats &= ids[:, offset : offset + starts.size] == latest[:, None]
    forbidden = jnp.where(repeats, ids[:, n - 1 :], log_probs.shape[-1])  # an id outside the vocabulary is dropped
    return log_probs.at[jnp.arange(rows)[:, None], forbidden].set(-jnp.inf, mode="drop")


def force_prefix(
    log_probs: Float[Array, "rows vocab"], time: Int[Array, ""], prefix: Int[Array, "batch prefix"]
) -> Float[Array, "rows vocab"]:
    """Set every token to −inf except the prefix's token at `time`."""
    forced = jnp.take(prefix, time, axis=1, mode="clip")  # unused past the end of the prefix
    forced = jnp.repeat(forced, log_probs.shape[0] // prefix.shape[0])
    return jnp.where(jnp.arange(log_probs.shape[-1]) == forced[:, None], log_probs, -jnp.inf)
