"""The recurrent encoder. Source: d2l.ai, "Sequence-to-Sequence Learning for Machine Translation"."""

from typing import NamedTuple

from torch import Tensor, nn

from torch_ref.modules.recurrent import GRU, LSTM, State

CELLS = {"gru": GRU, "lstm": LSTM}


class EncoderOutput(NamedTuple):
    outputs: Tensor  # [B, T, H * directions]
    state: State  # h [layers * directions, B, H], or (h, c)


class Seq2SeqEncoder(nn.Module):
    """outputs, state = rnn(embedding(tokens)).

    Shapes: tokens [B, T], valid_lens [B], keep_masks [layers - 1, B, T, H * directions] -> EncoderOutput.
    Example (d2l.ai): vocabulary 10, embed_size 8, num_hiddens 16, 2 layers, tokens [4, 7] -> outputs [4, 7, 16], state
    [2, 4, 16].
    stop_at_length=False runs through the padding, as the book does: the final state is then that of padding, and
    valid_lens matters only to the attention.
    """

    def __init__(
        self,
        vocab_size: int,
        embed_size: int,
        num_hiddens: int,
        num_layers: int = 1,
        dropout: float = 0.0,
        *,
        cell: str = "gru",
        bidirectional: bool = False,
        stop_at_length: bool = True,
    ) -> None:
        super().__init__()
        self.stop_at_length = stop_at_length
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = CELLS[cell](embed_size, num_hiddens, num_layers, dropout, bidirectional=bidirectional)

    def forward(
        self, tokens: Tensor, valid_lens: Tensor | None = None, *, keep_masks: Tensor | None = None
    ) -> EncoderOutput:
        lens = valid_lens if self.stop_at_length else None
        return EncoderOutput(*self.rnn(self.embedding(tokens.long()), lens, keep_masks=keep_masks))
