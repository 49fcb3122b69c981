"""The model that a configuration describes."""

from jax_attn.models import EncoderDecoder, Seq2SeqAttentionDecoder, Seq2SeqEncoder
from train.config import ConfigError, ModelConfig


def build_model(config: ModelConfig, source_vocab_size: int, target_vocab_size: int) -> EncoderDecoder:
    """Encoder and decoder of one width: the encoder's directions share the decoder's hidden units among them.

    Raises:
        ConfigError: settings that contradict each other.
    """
    directions = 2 if config.bidirectional else 1
    if config.num_hiddens % directions:
        raise ConfigError(f"num_hiddens must be even for two directions; got {config.num_hiddens}")
    try:
        encoder = Seq2SeqEncoder(
            source_vocab_size,
            config.embed_size,
            config.num_hiddens // directions,
            config.num_layers,
            config.dropout,
            cell=config.cell,
            bidirectional=config.bidirectional,
            stop_at_length=config.stop_at_length,
        )
        decoder = Seq2SeqAttentionDecoder(
            target_vocab_size,
            config.embed_size,
            config.num_hiddens,
            config.num_layers,
            config.dropout,
            cell=config.cell,
            attention=config.attention,
            query=config.query,
            input_feeding=config.input_feeding,
            bridge=config.bridge,
            tie_embeddings=config.tie_embeddings,
            use_bias=config.decoder_bias,
        )
    except ValueError as error:
        raise ConfigError(f"the model cannot be built: {error}") from error
    return EncoderDecoder(encoder, decoder)
