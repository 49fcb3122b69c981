"""The recurrent encoder. Source: d2l.ai, "Sequence-to-Sequence Learning for Machine Translation"."""

from typing import Any, NamedTuple

from torch import Tensor, nn

from torch_ref.functional.dropout import draw_keep_masks, drop
from torch_ref.modules.recurrent import GRU, LSTM, State

CELLS = {"gru": GRU, "lstm": LSTM}


class EncoderOutput(NamedTuple):
    outputs: Tensor  # [B, T, H * directions]
    state: State  # h [layers * directions, B, H], or (h, c)


class EncoderKeepMasks(NamedTuple):
    """Explicit dropout. Variational dropout has 1 instead of the T marked by #."""

    layers: Tensor | None = None  # bool [B, L - 1, #T, H * directions]
    words: Tensor | None = None  # bool [B, T, 1]
    embedding: Tensor | None = None  # bool [B, #T, E]


class Seq2SeqEncoder(nn.Module):
    """outputs, state = rnn(embedding(tokens)).

    Shapes: tokens [B, T], valid_lens [B] -> EncoderOutput.
    Example (d2l.ai): vocabulary 10, embed_size 8, num_hiddens 16, 2 layers, tokens [4, 7] -> outputs [4, 7, 16], state
    [2, 4, 16].
    stop_at_length=False runs through the padding, as the book does: the final state is then that of padding, and
    valid_lens matters only to the attention.
    dropout acts between the layers, dropout_words on whole embeddings, dropout_embedding on their entries. variational
    drops the same entries at all positions. A given `embedding` is used instead of the encoder's own.
    """

    def __init__(
        self,
        vocab_size: int,
        embed_size: int,
        num_hiddens: int,
        num_layers: int = 1,
        dropout: float = 0.0,
        *,
        dropout_words: float = 0.0,
        dropout_embedding: float = 0.0,
        variational: bool = False,
        cell: str = "gru",
        bidirectional: bool = False,
        stop_at_length: bool = True,
    ) -> None:
        super().__init__()
        self.stop_at_length = stop_at_length
        self.dropout_words, self.dropout_embedding, self.variational = dropout_words, dropout_embedding, variational
        self.embedding: Any = nn.Embedding(vocab_size, embed_size)
        self.rnn = CELLS[cell](embed_size, num_hiddens, num_layers, dropout, bidirectional=bidirectional)

    def forward(
        self,
        tokens: Tensor,
        valid_lens: Tensor | None = None,
        *,
        keep_masks: EncoderKeepMasks | None = None,
        embedding: nn.Embedding | None = None,
    ) -> EncoderOutput:
        keep = keep_masks or (self._draw_keep_masks(tokens) if self.training else EncoderKeepMasks())
        embedded = (embedding or self.embedding)(tokens.long())
        embedded = drop(embedded, self.dropout_words, keep.words)
        embedded = drop(embedded, self.dropout_embedding, keep.embedding)
        lens = valid_lens if self.stop_at_length else None
        return EncoderOutput(*self.rnn(embedded, lens, keep_masks=keep.layers))

    def attention_maps(self, *_: Any, **__: Any) -> None:
        """A recurrent encoder does not attend."""

    def _draw_keep_masks(self, tokens: Tensor) -> EncoderKeepMasks:
        """Draw what nn.GRU and nn.LSTM do not draw themselves in training."""
        batch, time = tokens.shape
        steps, between = 1 if self.variational else time, self.rnn.num_layers - 1
        hidden = self.rnn.hidden_size * self.rnn.num_directions
        shapes = ((batch, between, steps, hidden), (batch, time, 1), (batch, steps, self.rnn.input_size))
        rates = (self.rnn.dropout if self.variational else 0.0, self.dropout_words, self.dropout_embedding)
        return EncoderKeepMasks(*draw_keep_masks(shapes, rates, tokens.device))
