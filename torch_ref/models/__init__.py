"""Models: encoders, decoders, and both in one."""

from torch_ref.models.rnn_decoder import DecoderKeepMasks, DecoderMemory, DecoderState, Seq2SeqAttentionDecoder
from torch_ref.models.rnn_encoder import EncoderOutput, Seq2SeqEncoder
from torch_ref.models.seq2seq import EncoderDecoder

__all__ = [
    "DecoderKeepMasks",
    "DecoderMemory",
    "DecoderState",
    "EncoderDecoder",
    "EncoderOutput",
    "Seq2SeqAttentionDecoder",
    "Seq2SeqEncoder",
]
