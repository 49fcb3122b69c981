"""Whole models, of modules."""

from jax_attn.models.rnn_decoder import DecoderKeepMasks, DecoderMemory, DecoderState, Seq2SeqAttentionDecoder
from jax_attn.models.rnn_encoder import EncoderOutput, Seq2SeqEncoder
from jax_attn.models.seq2seq import EncoderDecoder

__all__ = [
    "DecoderKeepMasks",
    "DecoderMemory",
    "DecoderState",
    "EncoderDecoder",
    "EncoderOutput",
    "Seq2SeqAttentionDecoder",
    "Seq2SeqEncoder",
]
