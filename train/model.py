"""The model of a configuration."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp

from jax_attn.models import (
    EncoderDecoder,
    Seq2SeqAttentionDecoder,
    Seq2SeqEncoder,
    TransformerDecoder,
    TransformerEncoder,
)
from train.model_config import ModelConfig
from train.setting import ConfigError

Parts = tuple[Callable[..., Any], Callable[..., Any]]
"""The encoder and the decoder without the sizes of the vocabularies."""


def build_model(config: ModelConfig, source_vocab_size: int, target_vocab_size: int, **options: Any) -> EncoderDecoder:
    """Build the encoder and the decoder; ConfigError if settings contradict each other.

    Args:
        config: the settings of the model.
        source_vocab_size, target_vocab_size: the sizes of the vocabularies.
        options: further arguments of the encoder and of the decoder.
    """
    if wrong := config.wrong():
        raise ConfigError("; ".join(wrong))
    encoder, decoder = PARTS[config.family](config)
    options = {"dtype": None if config.dtype == "float32" else jnp.dtype(config.dtype)} | options
    try:
        return EncoderDecoder(
            encoder(source_vocab_size, **options),
            decoder(target_vocab_size, **options),
            share_embedding=config.tie_embeddings in ("input", "all"),
        )
    except ValueError as error:
        raise ConfigError(f"the model cannot be built: {error}") from error


def _recurrent(config: Any) -> Parts:
    """By default the directions share the decoder's hidden units, so an odd number of them is a ConfigError."""
    directions = 2 if config.bidirectional else 1
    if config.encoder_hiddens is None and config.num_hiddens % directions:
        raise ConfigError(f"num_hiddens must be even for two directions; got {config.num_hiddens}")
    shared = ("embed_size", "num_layers", "dropout", "dropout_words", "dropout_embedding", "variational", "cell")
    of_encoder = _chosen(config, *shared, "bidirectional", "stop_at_length")
    of_encoder["num_hiddens"] = config.encoder_hiddens or config.num_hiddens // directions
    names = ("num_hiddens", "dropout_output", "attention", "num_heads", "query", "input_feeding", "bridge")
    of_decoder = _chosen(config, *shared, *names) | {"use_bias": config.decoder_bias}
    return partial(Seq2SeqEncoder, **of_encoder), partial(Seq2SeqAttentionDecoder, **of_decoder, **_tie(config))


def _transformer(config: Any) -> Parts:
    sizes = ("embed_size", "num_hiddens", "num_layers", "num_heads")
    others = ("activation", "norm", "positions", "max_len", "scale_embedding", "use_bias", "norm_epsilon")
    rates = ("dropout", "dropout_attention", "dropout_hidden")
    names = ("output_bias", "fixed_start", "never", "renormalize", "alignment_layer", "alignment_head")
    shared = _chosen(config, *sizes, *others, *rates)
    of_encoder = shared | {"num_layers": config.encoder_layers or config.num_layers}
    of_decoder = shared | _chosen(config, *names) | _tie(config)
    return partial(TransformerEncoder, **of_encoder), partial(TransformerDecoder, **of_decoder)


def _chosen(config: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(config, name) for name in names}


def _tie(config: ModelConfig) -> dict[str, Any]:
    return {"tie_embeddings": config.tie_embeddings in ("output", "all")}


PARTS: dict[str, Callable[[Any], Parts]] = {"recurrent": _recurrent, "transformer": _transformer}
