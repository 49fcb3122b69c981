"""Models: encoders, decoders, and both in one."""

from torch_ref.models.rnn_decoder import DecoderKeepMasks, DecoderMemory, DecoderState, Seq2SeqAttentionDecoder
from torch_ref.models.rnn_encoder import EncoderKeepMasks, EncoderOutput, Seq2SeqEncoder
from torch_ref.models.seq2seq import EncoderDecoder, KeepMasks
from torch_ref.models.transformer import TransformerDecoder, TransformerEncoder, TransformerKeepMasks

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
]
