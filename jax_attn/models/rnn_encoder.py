"""The recurrent encoder: from tokens to a vector for each position, and a final state."""

from dataclasses import field
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from jax_attn.functional.checks import require_ids, require_lengths, require_rank, require_shape
from jax_attn.modules.recurrent import RecurrentState, make_recurrent


class EncoderOutput(NamedTuple):
    """What the decoder gets from the encoder."""

    outputs: Float[Array, "*batch time hidden"]
    """The top layer's output at each position, its directions side by side."""
    state: RecurrentState
    """The final state of all layers, h (GRU) or (h, c) (LSTM), each `[layers · directions, *batch, H]`."""


class Seq2SeqEncoder(nn.Module):
    """Embedding, then a recurrent network.

    Args:
        vocab_size: N of the source.
        embed_size: features of an embedding, drawn from N(0, 1).
        num_hiddens: H, in each direction.
        num_layers: layers of the recurrent network.
        dropout: between its layers.
        cell: "gru" or "lstm".
        bidirectional: read each sentence from both ends (Bahdanau et al., 2015).
        stop_at_length: stop at each sentence's length. False runs through the padding, and the final state is the one
            after the padding: the book's code does so, and its checkpoints need it. Then only attention uses lengths.
        dtype, param_dtype: as in Flax.

    Source: https://d2l.ai/chapter_recurrent-modern/seq2seq.html
    """

    vocab_size: int
    embed_size: int
    num_hiddens: int
    num_layers: int = 1
    dropout: float = 0.0
    cell: str = field(default="gru", kw_only=True)
    bidirectional: bool = field(default=False, kw_only=True)
    stop_at_length: bool = field(default=True, kw_only=True)
    dtype: DTypeLike | None = field(default=None, kw_only=True)
    param_dtype: DTypeLike = field(default=jnp.float32, kw_only=True)

    def setup(self) -> None:
        self.embedding = nn.Embed(
            self.vocab_size,
            self.embed_size,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            embedding_init=nn.initializers.normal(1.0),
        )
        self.rnn = make_recurrent(
            self.cell,
            self.num_hiddens,
            self.num_layers,
            self.dropout,
            self.bidirectional,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
        )

    def __call__(
        self,
        tokens: Int[Array, "*batch time"],
        valid_lens: Int[Array, "*batch"] | None = None,
        *,
        deterministic: bool = True,
        keep_masks: Bool[Array, "between *batch time hidden"] | None = None,
    ) -> EncoderOutput:
        """Encode `[*batch, T]` ids; the other arguments are those of `LSTM.__call__`."""
        require_ids(self.vocab_size, tokens=tokens)
        require_rank(1, "[*batch, T]", tokens=tokens)
        if valid_lens is not None:  # checked even with stop_at_length=False: the attention gets the same lengths
            require_shape(tokens.shape[:-1], valid_lens=valid_lens)
            require_lengths(tokens.shape[-1], valid_lens=valid_lens)
        outputs, state = self.rnn(
            self.embedding(tokens),
            valid_lens if self.stop_at_length else None,
            deterministic=deterministic,
            keep_masks=keep_masks,
        )
        return EncoderOutput(outputs, state)
