"""What the decoders of all families share: the output layer, and the logits of teacher forcing."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jax_attn.modules.dense import Dense


class BaseDecoder(nn.Module):
    """The base class of a `Decoder`, whose output layer is tied to its `embedding` or not.

    The subclass has the fields `vocab_size`, `tie_embeddings`, `dtype` and `param_dtype`, the method `features`, and in
    its `setup` the embedding and a call of `_setup_output`.
    """

    def _setup_output(self: Any, kernel_init: Any, use_bias: bool = True) -> None:
        """Make the output layer: `dense`, or if it is tied `dense_bias` alone."""
        if not self.tie_embeddings:
            self.dense = Dense(
                self.vocab_size, use_bias, dtype=self.dtype, param_dtype=self.param_dtype, kernel_init=kernel_init
            )
        elif use_bias:
            self.dense_bias = self.param("dense_bias", nn.initializers.zeros, (self.vocab_size,), self.param_dtype)
        else:
            self.dense_bias = None

    def __call__(
        self: Any,
        targets: Int[Array, "batch time"],
        memory: Any,
        *,
        deterministic: bool = True,
        keep_masks: Any = None,
        return_weights: bool = True,
    ) -> tuple[Float[Array, "batch time vocab"], Float[Array, "batch time source"] | None]:
        """Read the given tokens and predict the next token at each (teacher forcing).

        Args:
            targets: `[B, T]` ids, the first of them `<bos>`.
            memory: of the B sentences, from `prepare`.
            deterministic: False turns dropout on, which draws from the "dropout" stream.
            keep_masks: the entries that dropout keeps, given instead of drawn.
            return_weights: False returns None instead of the weights.

        Returns:
            Logits `[B, T, N]`, and the attention weights `[B, T, S]` that `step` returns one by one.
        """
        features, weights = self.features(
            targets, memory, deterministic=deterministic, keep_masks=keep_masks, return_weights=return_weights
        )
        return self._logits(features), weights

    def _logits(self: Any, features: Array) -> Array:
        if not self.tie_embeddings:
            return self.dense(features)
        logits = self.embedding.attend(features)
        return logits if self.dense_bias is None else logits + self.dense_bias.astype(logits.dtype)

    def output_layer(self: Any) -> tuple[Float[Array, "feature vocab"], Float[Array, "vocab"]]:
        """Return the output layer's kernel `[features, N]` and bias `[N]`, in the dtype of the computation."""
        if self.tie_embeddings:
            kernel, bias = self.embedding.embedding.T, self.dense_bias
        else:
            kernel, bias = (self.dense.variables["params"].get(name) for name in ("kernel", "bias"))
        bias = jnp.zeros(self.vocab_size, kernel.dtype) if bias is None else bias
        return (kernel, bias) if self.dtype is None else (kernel.astype(self.dtype), bias.astype(self.dtype))
