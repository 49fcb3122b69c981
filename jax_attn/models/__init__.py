"""Whole models, of modules."""

from jax_attn.models.build import build_model
from jax_attn.models.interface import KeepMasks
from jax_attn.models.rnn_decoder import DecoderKeepMasks, DecoderMemory, DecoderState, Seq2SeqAttentionDecoder
from jax_attn.models.rnn_encoder import EncoderKeepMasks, EncoderOutput, Seq2SeqEncoder
from jax_attn.models.seq2seq import EncoderDecoder
from jax_attn.models.transformer import (
    TransformerDecoder,
    TransformerEncoder,
    TransformerKeepMasks,
    TransformerState,
)

__all__ = [
    "DecoderKeepMasks",
    "DecoderMemory",
    "DecoderState",
    "EncoderDecoder",
    "EncoderKeepMasks",
    "EncoderOutput",
    "KeepMasks",
    "Seq2SeqAttentionDecoder",
    "Seq2SeqEncoder",
    "TransformerDecoder",
    "TransformerEncoder",
    "TransformerKeepMasks",
    "TransformerState",
    "build_model",
]
