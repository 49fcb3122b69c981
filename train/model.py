"""The model of a configuration."""

from typing import Any

from jax_attn.models import EncoderDecoder, Seq2SeqAttentionDecoder, Seq2SeqEncoder
from train.config import ConfigError, ModelConfig


def build_model(config: ModelConfig, source_vocab_size: int, target_vocab_size: int) -> EncoderDecoder:
    """Build the encoder and the decoder; ConfigError if settings contradict each other."""
    try:
        encoder = Seq2SeqEncoder(source_vocab_size, **encoder_settings(config))
        decoder = Seq2SeqAttentionDecoder(target_vocab_size, **decoder_settings(config))
    except ValueError as error:
        raise ConfigError(f"the model cannot be built: {error}") from error
    return EncoderDecoder(encoder, decoder)


def encoder_settings(config: ModelConfig) -> dict[str, Any]:
    """Return the encoder's arguments in either framework, but for the size of its vocabulary.

    The directions share the hidden units, so an odd number of them for two directions is a ConfigError.
    """
    directions = 2 if config.bidirectional else 1
    if config.num_hiddens % directions:
        raise ConfigError(f"num_hiddens must be even for two directions; got {config.num_hiddens}")
    names = ("embed_size", "num_layers", "dropout", "cell", "bidirectional", "stop_at_length")
    return {name: getattr(config, name) for name in names} | {"num_hiddens": config.num_hiddens // directions}


def decoder_settings(config: ModelConfig) -> dict[str, Any]:
    """Return the decoder's arguments in either framework, but for the sizes of its vocabulary and of the encoder."""
    names = ("embed_size", "num_hiddens", "num_layers", "dropout", "cell", "attention", "num_heads", "query")
    settings = {name: getattr(config, name) for name in (*names, "input_feeding", "bridge", "tie_embeddings")}
    return settings | {"use_bias": config.decoder_bias}
