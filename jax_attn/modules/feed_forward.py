"""The feed-forward network of a Transformer: the same two layers at each position."""

from collections.abc import Callable
from dataclasses import field
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float

from jax_attn.functional.checks import require_rate
from jax_attn.functional.dropout import drop
from jax_attn.functional.dropout import keep_mask as draw_keep_mask
from jax_attn.modules.dense import Dense

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
}
"""Every activation by its name; "gelu" is the exact one, as in PyTorch."""


class FeedForward(nn.Module):
    r"""Two dense layers with an activation between them (Vaswani et al., 2017, section 3.3).

    .. math:: \mathrm{dense}_2(\mathrm{dropout}(f(\mathrm{dense}_1(x))))

    Parameters: `dense1`, `dense2`, drawn as by Xavier.

    Args:
        num_hiddens: features between the two layers.
        num_outputs: features of the result.
        dropout: the rate of the features between the layers.
        activation: f, a name in `ACTIVATIONS`.
        use_bias: whether the layers have biases.
        dtype, param_dtype: as in Flax.

    Source: https://d2l.ai/chapter_attention-mechanisms-and-transformers/transformer.html
    """

    num_hiddens: int
    num_outputs: int
    dropout: float = 0.0
    activation: str = field(default="relu", kw_only=True)
    use_bias: bool = field(default=True, kw_only=True)
    dtype: DTypeLike | None = field(default=None, kw_only=True)
    param_dtype: DTypeLike = field(default=jnp.float32, kw_only=True)

    def __post_init__(self) -> None:
        require_rate(dropout=self.dropout)
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {tuple(ACTIVATIONS)}; got {self.activation!r}")
        super().__post_init__()

    def setup(self) -> None:
        def dense(features: int) -> Dense:
            xavier = nn.initializers.xavier_uniform()
            return Dense(features, self.use_bias, self.dtype, self.param_dtype, kernel_init=xavier)

        self.dense1, self.dense2 = dense(self.num_hiddens), dense(self.num_outputs)

    def __call__(
        self,
        x: Float[Array, "*batch feature"],
        *,
        deterministic: bool = True,
        keep_mask: Bool[Array, "*batch hidden"] | None = None,
    ) -> Float[Array, "*batch output"]:
        """Compute the network of `[*batch, D]`.

        Args:
            x: `[*batch, D]`.
            deterministic: False turns dropout on, which draws from the "dropout" stream.
            keep_mask: `[*batch, num_hiddens]`, the entries that dropout keeps, given instead of drawn.
        """
        hidden = ACTIVATIONS[self.activation](self.dense1(x))
        if keep_mask is None and self.dropout > 0 and not deterministic:
            keep_mask = draw_keep_mask(self.make_rng("dropout"), self.dropout, hidden.shape)
        return self.dense2(drop(hidden, self.dropout, keep_mask))
