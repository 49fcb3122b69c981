"""Encoder and decoder in one. Source: d2l.ai, "The Encoder-Decoder Architecture"."""

from typing import Any, NamedTuple

from torch import Tensor, nn


class KeepMasks(NamedTuple):
    """Explicit dropout in the whole model."""

    encoder: Any = None
    decoder: Any = None


class EncoderDecoder(nn.Module):
    """logits, weights = decoder(tgt, decoder.prepare(encoder(src))).

    Shapes: src [B, S], tgt [B, T] (the decoder's input, <bos> first), src_valid_lens [B] -> logits [B, T, N],
    weights [B, T, S] or None. A search needs encode, initial_state and step.
    share_embedding: the encoder reads the decoder's embedding and has none of its own (Press and Wolf 2017, three-way
    tying, with the decoder's tie_embeddings).
    """

    def __init__(self, encoder: Any, decoder: Any, *, share_embedding: bool = False) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.share_embedding = share_embedding
        if share_embedding:
            encoder.embedding = None  # so the state dict holds the one matrix once

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_valid_lens: Tensor | None = None,
        *,
        keep_masks: KeepMasks | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        of_encoder, of_decoder = keep_masks or (None, None)
        return self.decoder(tgt, self.encode(src, src_valid_lens, keep_masks=of_encoder), keep_masks=of_decoder)

    def encode(self, src: Tensor, src_valid_lens: Tensor | None = None, *, keep_masks: Any = None) -> Any:
        embedding = self.decoder.embedding if self.share_embedding else None
        encoded = self.encoder(src, src_valid_lens, keep_masks=keep_masks, embedding=embedding)
        return self.decoder.prepare(encoded, src_valid_lens)

    def attention_maps(self, src: Tensor, tgt: Tensor, src_valid_lens: Tensor | None = None) -> tuple[Any, ...]:
        """The weights of every layer and head, None where there are none: cross [B, layers, heads, T, S], of the source
        [B, layers, heads, S, S], of the target [B, layers, heads, T, T]; and the layer of cross that a step returns."""
        embedding = self.decoder.embedding if self.share_embedding else None
        of_source = self.encoder.attention_maps(src, src_valid_lens, embedding=embedding)
        cross, of_target, layer = self.decoder.attention_maps(tgt, self.encode(src, src_valid_lens))
        return cross, of_source, of_target, layer

    def initial_state(self, memory: Any, max_len: int | None = None) -> Any:
        return self.decoder.initial_state(memory, max_len)

    def step(self, tokens: Tensor, state: Any, memory: Any) -> tuple[Tensor, Any, Tensor | None]:
        return self.decoder.step(tokens, state, memory)
