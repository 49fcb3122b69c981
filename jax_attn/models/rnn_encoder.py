"""The recurrent encoder: from tokens to a vector for each position, and a final state."""

from dataclasses import field
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from jax_attn.functional.checks import require_ids, require_lengths, require_rank, require_rate, require_shape
from jax_attn.functional.dropout import draw_keep_masks, drop, require_keep_masks
from jax_attn.modules.recurrent import RecurrentState, make_recurrent


class EncoderOutput(NamedTuple):
    """What the decoder gets from the encoder."""

    outputs: Float[Array, "*batch time hidden"]
    """The top layer's output at each position, its directions side by side."""
    state: RecurrentState
    """The final state of all layers, h (GRU) or (h, c) (LSTM), each `[layers · directions, *batch, H]`."""


class EncoderKeepMasks(NamedTuple):
    """The entries that the encoder's dropout keeps. Variational dropout has 1 instead of T."""

    layers: Bool[Array, "*batch between #time hidden"] | None = None
    words: Bool[Array, "*batch time 1"] | None = None
    embedding: Bool[Array, "*batch #time feature"] | None = None


class Seq2SeqEncoder(nn.Module):
    """Embedding, then a recurrent network.

    Args:
        vocab_size: N of the source.
        embed_size: features of an embedding, drawn from N(0, 1).
        num_hiddens: H, in each direction.
        num_layers: layers of the recurrent network.
        dropout: the rate between its layers.
        dropout_words: the rate of whole tokens, whose embeddings become zero; drawn for each position.
        dropout_embedding: the rate of the embeddings' entries.
        variational: drop the same entries between layers and of the embeddings at all positions of a sentence (Gal &
            Ghahramani, 2016).
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
    dropout_words: float = field(default=0.0, kw_only=True)
    dropout_embedding: float = field(default=0.0, kw_only=True)
    variational: bool = field(default=False, kw_only=True)
    cell: str = field(default="gru", kw_only=True)
    bidirectional: bool = field(default=False, kw_only=True)
    stop_at_length: bool = field(default=True, kw_only=True)
    dtype: DTypeLike | None = field(default=None, kw_only=True)
    param_dtype: DTypeLike = field(default=jnp.float32, kw_only=True)

    def __post_init__(self) -> None:
        require_rate(dropout_words=self.dropout_words, dropout_embedding=self.dropout_embedding)
        super().__post_init__()

    def setup(self) -> None:
        dtypes: Any = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        draw = nn.initializers.normal(1.0)
        self.embedding = nn.Embed(self.vocab_size, self.embed_size, embedding_init=draw, **dtypes)
        sizes = self.num_hiddens, self.num_layers
        self.rnn = make_recurrent(self.cell, *sizes, self.dropout, self.bidirectional, **dtypes)

    def __call__(
        self,
        tokens: Int[Array, "*batch time"],
        valid_lens: Int[Array, "*batch"] | None = None,
        *,
        deterministic: bool = True,
        keep_masks: EncoderKeepMasks | None = None,
        embedding: nn.Module | None = None,
    ) -> EncoderOutput:
        """Encode `[*batch, T]` ids.

        Args:
            tokens, valid_lens: `[*batch, T]` ids and `[*batch]` lengths.
            deterministic: False turns dropout on, which draws from the "dropout" stream.
            keep_masks: the entries that dropout keeps, given instead of drawn.
            embedding: used instead of the encoder's own, which then has no parameters.
        """
        require_ids(self.vocab_size, tokens=tokens)
        require_rank(1, "[*batch, T]", tokens=tokens)
        if valid_lens is not None:  # checked even with stop_at_length=False: the attention gets the same lengths
            require_lengths(tokens.shape[-1], valid_lens=valid_lens)
            require_shape(tokens.shape[:-1], valid_lens=valid_lens)
        if keep_masks is not None:
            require_keep_masks(keep_masks, self._keep_mask_shapes(tokens.shape))
        else:
            drops = not deterministic and any(self._rates)
            keep_masks = self.draw_keep_masks(self.make_rng("dropout"), tokens.shape) if drops else EncoderKeepMasks()
        embedded = (self.embedding if embedding is None else embedding)(tokens)
        embedded = drop(embedded, self.dropout_words, keep_masks.words)
        embedded = drop(embedded, self.dropout_embedding, keep_masks.embedding)
        lens = valid_lens if self.stop_at_length else None
        return EncoderOutput(*self.rnn(embedded, lens, keep_masks=keep_masks.layers))

    def attention_maps(self, *_: Any, **__: Any) -> None:
        """Return None: a recurrent encoder does not attend."""

    @nn.nowrap
    def draw_keep_masks(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> EncoderKeepMasks:
        """Draw the masks of `[*batch, T]` tokens. Parameters are not needed."""
        return EncoderKeepMasks(*draw_keep_masks(key, self._rates, self._keep_mask_shapes(shape)))

    @nn.nowrap
    def _keep_mask_shapes(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the shape of each of the `EncoderKeepMasks`."""
        *batch, time = shape
        steps = 1 if self.variational else time
        hidden = self.num_hiddens * (2 if self.bidirectional else 1)
        shapes = ((self.num_layers - 1, steps, hidden), (time, 1), (steps, self.embed_size))
        return [(*batch, *shape) for shape in shapes]

    @property
    def _rates(self) -> tuple[float, ...]:
        """The rate of each of the `EncoderKeepMasks`."""
        return self.dropout if self.num_layers > 1 else 0.0, self.dropout_words, self.dropout_embedding
