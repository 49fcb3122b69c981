"""Scores that a beam ranks hypotheses by: the log probability, with penalties for length and coverage.

    score = Σ log p / norm(length) + coverage_penalty · Σ_k log(min(Σ_t weights[t, k], 1))

Source: Wu et al., 2016, "Google's Neural Machine Translation System", section 7 (s(Y, X), lp and cp).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jax_attn.functional.checks import require_integer, require_lengths, require_shape
from jax_attn.search_options import LengthNorm

MIN_COVERAGE = 1e-9
"""The coverage of a position that got no attention: with log 0 all such hypotheses would have the score −inf."""


class Penalties(NamedTuple):
    """The penalties of one search."""

    length: float  # α, the exponent of the norm; 0 compares sums
    length_norm: LengthNorm
    coverage: float  # β; 0 is off and costs nothing
    covered: Bool[Array, "batch key"] | None  # the positions to attend to; None if the step returns no weights


def make_penalties(
    length_penalty: float,
    length_norm: LengthNorm,
    coverage_penalty: float,
    num_keys: int | None,
    batch_size: int,
    *,
    source_lens: Int[Array, "..."] | None,
) -> Penalties:
    """Return the penalties of a search; `num_keys` is K, or None if the step returns no weights.

    Raises:
        ValueError: a coverage penalty without weights, lengths that are not `[B]` or, outside of a jit, not in [0, K].
        TypeError: lengths that are not integers.
    """
    if coverage_penalty and num_keys is None:
        raise ValueError("coverage_penalty needs a step that returns weights; got None")
    if num_keys is None:
        return Penalties(length_penalty, length_norm, 0.0, None)
    if source_lens is None:
        source_lens = jnp.full(batch_size, num_keys)
    require_integer(source_lens=source_lens)
    require_shape([batch_size], source_lens=source_lens)
    require_lengths(num_keys, source_lens=source_lens)
    covered = jnp.arange(num_keys) < jnp.asarray(source_lens)[:, None]
    return Penalties(length_penalty, length_norm, coverage_penalty, covered)


def penalized(
    sums: Float[Array, "batch beam candidates"],
    lengths: Int[Array, "batch beam"],
    coverage: Float[Array, "batch beam key"] | None,
    penalties: Penalties,
) -> Float[Array, "batch beam candidates"]:
    """Compute the scores of candidates from their Σ log p, the length and the coverage of their hypotheses."""
    scores = sums
    if penalties.length:
        scores = scores / norm(lengths.astype(sums.dtype), penalties.length, penalties.length_norm)[..., None]
    if coverage is not None and penalties.covered is not None:  # neither is None if the penalty is on
        missing = missing_coverage(coverage, penalties.covered[:, None])
        scores = scores + penalties.coverage * missing[..., None]
    return scores


def norm(lengths: Float[Array, "*shape"], alpha: float, form: LengthNorm) -> Float[Array, "*shape"]:
    """Return the divisor of Σ log p for each length, which includes `eos`.

    "power"  length^α               α = 1 is the average
    "gnmt"   ((5 + length) / 6)^α   Wu et al., 2016, equation 14
    """
    return ((5 + lengths) / 6 if form == "gnmt" else lengths) ** alpha


def missing_coverage(
    coverage: Float[Array, "*batch key"], covered: Bool[Array, "*#batch #key"]
) -> Float[Array, "*batch"]:
    """Return Σ_k log(min(coverage[k], 1)) over the positions `covered`, where coverage[k] = Σ_t weights[t, k].

    It is 0 if every position got at least the attention of one token. Wu et al., 2016, equation 14.
    """
    logs = jnp.log(jnp.clip(coverage, MIN_COVERAGE, 1.0))
    return jnp.where(covered, logs, 0).sum(axis=-1)
