"""The position of a token as features."""

from typing import get_args

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from jax_attn.settings import Sinusoids


def sinusoidal_positions(
    length: int, num_features: int, dtype: DTypeLike = jnp.float32, *, form: Sinusoids = "interleaved"
) -> Float[Array, "{length} {num_features}"]:
    r"""Encode positions as sines and cosines of geometrically falling frequencies (Vaswani et al., 2017).

    .. math:: P_{t, 2i} = \sin(t / 10000^{2i/D}), \quad P_{t, 2i+1} = \cos(t / 10000^{2i/D})

    Args:
        length: T, the number of positions.
        num_features: D; an odd one ends with a sine.
        form: "interleaved" is the equation. "halves" has all sines in the first half and all cosines in the second, as
            Marian does. "opennmt" is "halves" with t + 1 and D − 2 instead of t and D, as in OpenNMT-tf and
            CTranslate2; "fairseq" the same with t + 2, as in M2M100 and NLLB.

    Returns:
        `[T, D]`, computed in float64 on the host: a float32 angle of 5000 is off by 2e-4.

    Raises:
        ValueError: `form` is unknown, `length` is negative, or `num_features` is less than 1; than 3 for "opennmt" and
            "fairseq", which also needs an even number.
    """
    if form not in get_args(Sinusoids):
        raise ValueError(f"form must be one of {get_args(Sinusoids)}; got {form!r}")
    shift = {"opennmt": 1, "fairseq": 2}.get(form, 0)
    least = 3 if shift else 1
    if length < 0 or num_features < least:
        raise ValueError(f"length and num_features must be at least 0 and {least}; got {length} and {num_features}")
    if form == "fairseq" and num_features % 2:
        raise ValueError(f"num_features must be even for fairseq; got {num_features}")
    frequencies = 10000.0 ** (-np.arange(0, num_features, 2) / (num_features - (2 if shift else 0)))
    angles = (np.arange(length)[:, None] + shift) * frequencies  # [T, ceil(D / 2)]
    # [T, ceil(D / 2), 2], or [T, 2, ceil(D / 2)]
    pairs = np.stack([np.sin(angles), np.cos(angles)], axis=-1 if form == "interleaved" else 1)
    return jnp.asarray(pairs.reshape(length, 2 * frequencies.size)[:, :num_features], dtype)
