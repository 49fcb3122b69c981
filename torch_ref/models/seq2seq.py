"""Encoder and decoder in one. Source: d2l.ai, "The Encoder-Decoder Architecture"."""

from torch import Tensor, nn

from torch_ref.models.rnn_decoder import DecoderMemory, DecoderState, Seq2SeqAttentionDecoder
from torch_ref.models.rnn_encoder import Seq2SeqEncoder


class EncoderDecoder(nn.Module):
    """logits, weights = decoder(tgt, decoder.prepare(encoder(src))).

    Shapes: src [B, S], tgt [B, T] (the decoder's input, <bos> first), src_valid_lens [B] -> logits [B, T, N],
    weights [B, T, S] or None. A search needs encode, initial_state and step.
    """

    def __init__(self, encoder: Seq2SeqEncoder, decoder: Seq2SeqAttentionDecoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, src: Tensor, tgt: Tensor, src_valid_lens: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return self.decoder(tgt, self.encode(src, src_valid_lens))

    def encode(self, src: Tensor, src_valid_lens: Tensor | None = None) -> DecoderMemory:
        return self.decoder.prepare(self.encoder(src, src_valid_lens), src_valid_lens)

    def initial_state(self, memory: DecoderMemory) -> DecoderState:
        return self.decoder.initial_state(memory)

    def step(
        self, tokens: Tensor, state: DecoderState, memory: DecoderMemory
    ) -> tuple[Tensor, DecoderState, Tensor | None]:
        return self.decoder.step(tokens, state, memory)
