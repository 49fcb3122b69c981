"""What a hypothesis may and must say, whatever its probability: shared by every search.

A token that is not allowed has log probability −inf. The others keep theirs: scores stay those of the model.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jax_attn.functional.checks import require_ids, require_integer, require_lengths, require_shape, shape_text


class Constraints(NamedTuple):
    """The constraints of one search over B sentences; what is off costs nothing."""

    eos: int
    min_len: int
    """The fewest tokens of a hypothesis, `eos` included."""
    no_repeat_ngram: int | None
    """n: no n tokens in a row occur twice in a hypothesis."""
    prefix: Int[Array, "batch prefix"] | None
    """The tokens that a sentence's hypotheses begin with, right-padded."""
    prefix_lens: Int[Array, "batch"] | None
    """How many of them count."""


def make_constraints(
    *,
    eos: int,
    min_len: int,
    no_repeat_ngram: int | None,
    prefix: Int[Array, "..."] | None,
    prefix_lens: Int[Array, "..."] | None,
    max_len: int,
    batch_size: int,
    vocab_size: int,
) -> Constraints:
    """Check the options of a search.

    Raises:
        ValueError: `min_len` outside [0, max_len], `no_repeat_ngram` below 1, a prefix that is not `[B, at most L]`,
            lengths that are not `[B]` or come without a prefix; ids outside [0, N) and lengths outside [0, P] where
            they can be seen.
        TypeError: a prefix or lengths that are not integers.
    """
    if not 0 <= min_len <= max_len:
        raise ValueError(f"min_len must be in [0, {max_len}], up to max_len; got {min_len}")
    if no_repeat_ngram is not None and no_repeat_ngram < 1:
        raise ValueError(f"no_repeat_ngram must be at least 1; got {no_repeat_ngram}")
    if prefix is None:
        if prefix_lens is not None:
            raise ValueError("prefix_lens needs a prefix; got None")
        return Constraints(eos, min_len, no_repeat_ngram, None, None)
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
        return Constraints(eos, min_len, no_repeat_ngram, None, None)
    return Constraints(eos, min_len, no_repeat_ngram, jnp.asarray(prefix), jnp.asarray(prefix_lens))


def constrain(
    log_probs: Float[Array, "rows vocab"],
    ids: Int[Array, "rows length"] | None,
    time: Int[Array, ""],
    constraints: Constraints,
) -> Float[Array, "rows vocab"]:
    """`log_probs` with −inf for every token that may not follow `ids[:, :time]`.

    A forced token is allowed whatever the other constraints say: a prefix may end a sentence early or repeat itself,
    and what it says counts as said. `rows` are the B sentences' hypotheses, those of a sentence side by side; `ids` are
    asked for where n-grams are.
    """
    allowed = log_probs
    if constraints.min_len > 1:
        allowed = forbid_end(allowed, time, constraints.eos, constraints.min_len)
    if constraints.no_repeat_ngram is not None and ids is not None:
        allowed = forbid_repeats(allowed, ids, time, constraints.no_repeat_ngram)
    if constraints.prefix is not None and constraints.prefix_lens is not None:
        forced = force_prefix(log_probs, time, constraints.prefix)
        still = jnp.repeat(time < constraints.prefix_lens, log_probs.shape[0] // constraints.prefix.shape[0])
        allowed = jnp.where(still[:, None], forced, allowed)
    return allowed


def forbid_end(
    log_probs: Float[Array, "rows vocab"], time: Int[Array, ""], eos: int, min_len: int
) -> Float[Array, "rows vocab"]:
    """−inf for `eos` where it would leave fewer than `min_len` tokens: while time + 1 < min_len."""
    ends = jnp.arange(log_probs.shape[-1]) == eos
    return jnp.where(ends & (time + 1 < min_len), -jnp.inf, log_probs)


def forbid_repeats(
    log_probs: Float[Array, "rows vocab"], ids: Int[Array, "rows length"], time: Int[Array, ""], n: int
) -> Float[Array, "rows vocab"]:
    """−inf for every token that would complete n tokens in a row that `ids[:, :time]` holds already.

        token ids[i + n − 1] is forbidden if ids[i : i + n − 1] = ids[time − n + 1 : time] and i + n ≤ time

    At n = 2, after a b a, the token b is forbidden; at n = 1 a and b are. Each row is compared with itself, shifted:
    O(n·L), and O(L) memory.

    Source: Paulus et al., 2018, "A Deep Reinforced Model for Abstractive Summarization", section 2.5.
    """
    rows, length = ids.shape
    starts = jnp.arange(length - n + 1)  # of every n-gram that has room; none where n > L
    repeats = jnp.broadcast_to(starts + n <= time, (rows, starts.size))
    for offset in range(n - 1):
        latest = jnp.take(ids, time - n + 1 + offset, axis=1, mode="clip")  # before n − 1 tokens `repeats` is False
        repeats &= ids[:, offset : offset + starts.size] == latest[:, None]
    forbidden = jnp.where(repeats, ids[:, n - 1 :], log_probs.shape[-1])  # beyond the vocabulary: dropped
    return log_probs.at[jnp.arange(rows)[:, None], forbidden].set(-jnp.inf, mode="drop")


def force_prefix(
    log_probs: Float[Array, "rows vocab"], time: Int[Array, ""], prefix: Int[Array, "batch prefix"]
) -> Float[Array, "rows vocab"]:
    """−inf for all but the prefix's token at `time`, which keeps its log probability."""
    forced = jnp.take(prefix, time, axis=1, mode="clip")  # past the prefix's end nobody asks
    forced = jnp.repeat(forced, log_probs.shape[0] // prefix.shape[0])
    return jnp.where(jnp.arange(log_probs.shape[-1]) == forced[:, None], log_probs, -jnp.inf)
