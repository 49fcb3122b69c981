"""Embeddings of tokens and of their positions."""

from dataclasses import field

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from jax_attn.functional.checks import as_array, require_float, require_ids, require_rank, require_rate
from jax_attn.functional.dropout import drop
from jax_attn.functional.dropout import keep_mask as draw_keep_mask
from jax_attn.functional.positions import sinusoidal_positions


class Embeddings(nn.Module):
    r"""Embed a token. Entries are drawn with variance 1/D, and become as large as the positions added to them.

    .. math:: x_t = E[\mathrm{token}_t] \sqrt{D}

    Parameters: `embedding/embedding`, `[vocab_size, D]`.

    Args:
        d_model: D.
        vocab_size: N. Ids outside [0, N) raise a ValueError; under a jit they cannot be checked, and JAX returns NaN.

    Source: Vaswani et al., 2017, section 3.4.
    """

    d_model: int
    vocab_size: int
    dtype: DTypeLike | None = field(default=None, kw_only=True)
    param_dtype: DTypeLike = field(default=jnp.float32, kw_only=True)

    def setup(self) -> None:
        draw = nn.initializers.normal(self.d_model**-0.5)
        self.embedding = nn.Embed(self.vocab_size, self.d_model, self.dtype, self.param_dtype, draw)

    def __call__(self, tokens: Int[Array, "*batch"]) -> Float[Array, "*batch feature"]:
        """Embed tokens of any shape."""
        require_ids(self.vocab_size, tokens=tokens)
        return self.embedding(tokens) * self.d_model**0.5


class PositionalEncoding(nn.Module):
    """Compute dropout(x + P[:T]), with P from `sinusoidal_positions`. It has no parameters.

    Args:
        d_model: D, the features of x.
        dropout: the dropout rate.
        max_len: the longest T allowed.

    Source: https://d2l.ai/chapter_attention-mechanisms-and-transformers/self-attention-and-positional-encoding.html
    """

    d_model: int
    dropout: float = 0.0
    max_len: int = 5000

    def __post_init__(self) -> None:
        require_rate(dropout=self.dropout)
        super().__post_init__()

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "*batch time feature"],
        *,
        deterministic: bool = True,
        keep_mask: Bool[Array, "*batch time feature"] | None = None,
    ) -> Float[Array, "*batch time feature"]:
        """Add the positions to `[*batch, T, D]`.

        Raises:
            ValueError: D is not `d_model`, or T is greater than `max_len`.
        """
        x = as_array("x", x)
        require_float(x=x)
        require_rank(2, "[*batch, T, D]", x=x)
        length, num_features = x.shape[-2:]
        if num_features != self.d_model:
            raise ValueError(f"x must have d_model = {self.d_model} features; got {num_features} in {list(x.shape)}")
        if length > self.max_len:
            raise ValueError(f"x must have at most max_len = {self.max_len} positions; got {length} in {list(x.shape)}")
        x = x + sinusoidal_positions(length, num_features, x.dtype)
        if keep_mask is None and self.dropout > 0 and not deterministic:
            keep_mask = draw_keep_mask(self.make_rng("dropout"), self.dropout, x.shape)
        return drop(x, self.dropout, keep_mask)
