"""The model of a configuration."""

from typing import Any

import jax.numpy as jnp

from jax_attn.models import EncoderDecoder, Seq2SeqAttentionDecoder, Seq2SeqEncoder
from train.config import ConfigError, ModelConfig

SHARED = ("embed_size", "num_layers", "dropout", "dropout_words", "dropout_embedding", "variational", "cell")
"""The settings that encoder and decoder both take."""


def build_model(config: ModelConfig, source_vocab_size: int, target_vocab_size: int) -> EncoderDecoder:
    """Build the encoder and the decoder; ConfigError if settings contradict each other."""
    dtype = None if config.dtype == "float32" else jnp.dtype(config.dtype)
    try:
        encoder = Seq2SeqEncoder(source_vocab_size, **encoder_settings(config), dtype=dtype)
        decoder = Seq2SeqAttentionDecoder(target_vocab_size, **decoder_settings(config), dtype=dtype)
        return EncoderDecoder(encoder, decoder, **model_settings(config))
    except ValueError as error:
        raise ConfigError(f"the model cannot be built: {error}") from error


def encoder_settings(config: ModelConfig) -> dict[str, Any]:
    """Return the encoder's arguments in either framework, but for the size of its vocabulary.

    By default the directions share the decoder's hidden units, so an odd number of them is a ConfigError.
    """
    directions = 2 if config.bidirectional else 1
    if config.encoder_hiddens is None and config.num_hiddens % directions:
        raise ConfigError(f"num_hiddens must be even for two directions; got {config.num_hiddens}")
    settings = {name: getattr(config, name) for name in (*SHARED, "bidirectional", "stop_at_length")}
    return settings | {"num_hiddens": config.encoder_hiddens or config.num_hiddens // directions}


def decoder_settings(config: ModelConfig) -> dict[str, Any]:
    """Return the decoder's arguments in either framework, but for the sizes of its vocabulary and of the encoder."""
    names = ("num_hiddens", "dropout_output", "attention", "num_heads", "query", "input_feeding", "bridge")
    settings = {name: getattr(config, name) for name in (*SHARED, *names)}
    return settings | {"tie_embeddings": config.tie_embeddings != "none", "use_bias": config.decoder_bias}


def model_settings(config: ModelConfig) -> dict[str, Any]:
    """Return the arguments of the whole model in either framework, but for its encoder and decoder."""
    return {"share_embedding": config.tie_embeddings == "all"}
