"""The model that a configuration describes."""

from typing import Any

from jax_attn import AdditiveAttention, BilinearAttention, MultiHeadAttention
from jax_attn.models import EncoderDecoder, Seq2SeqAttentionDecoder, Seq2SeqEncoder
from jax_attn.modules.attention import Attention
from train.config import ConfigError, ModelConfig


def build_model(config: ModelConfig, source_vocab_size: int, target_vocab_size: int) -> EncoderDecoder:
    """Encoder and decoder of one width: the encoder's directions share the decoder's hidden units among them.

    Raises:
        ConfigError: settings that contradict each other.
    """
    of_encoder = encoder_settings(config)
    of_decoder = decoder_settings(config) | {"attention": _attention(config)}
    try:
        encoder = Seq2SeqEncoder(source_vocab_size, **of_encoder)
        decoder = Seq2SeqAttentionDecoder(target_vocab_size, **of_decoder)
    except ValueError as error:
        raise ConfigError(f"the model cannot be built: {error}") from error
    return EncoderDecoder(encoder, decoder)


def _attention(config: ModelConfig) -> Attention | str:
    """The name of an attention that the decoder knows by it, or the module of one that it does not."""
    if config.attention == "multi_head":
        return MultiHeadAttention(config.num_hiddens, config.num_heads, config.dropout)
    if config.attention == "scaled_bilinear":
        return BilinearAttention(config.dropout, scaled=True)
    if config.attention == "sum":
        return AdditiveAttention(config.num_hiddens, config.dropout, use_tanh=False)
    return config.attention


def encoder_settings(config: ModelConfig) -> dict[str, Any]:
    """What the encoder of either framework is built from, besides its vocabulary.

    Raises:
        ConfigError: an odd number of hidden units for two directions.
    """
    directions = 2 if config.bidirectional else 1
    if config.num_hiddens % directions:
        raise ConfigError(f"num_hiddens must be even for two directions; got {config.num_hiddens}")
    return {
        "embed_size": config.embed_size,
        "num_hiddens": config.num_hiddens // directions,
        "num_layers": config.num_layers,
        "dropout": config.dropout,
        "cell": config.cell,
        "bidirectional": config.bidirectional,
        "stop_at_length": config.stop_at_length,
    }


def decoder_settings(config: ModelConfig) -> dict[str, Any]:
    """What the decoder of either framework is built from, besides its vocabulary and the encoder's size."""
    return {
        "embed_size": config.embed_size,
        "num_hiddens": config.num_hiddens,
        "num_layers": config.num_layers,
        "dropout": config.dropout,
        "cell": config.cell,
        "attention": config.attention,
        "query": config.query,
        "input_feeding": config.input_feeding,
        "bridge": config.bridge,
        "tie_embeddings": config.tie_embeddings,
        "use_bias": config.decoder_bias,
    }
