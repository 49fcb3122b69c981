"""Make a model of its settings."""

from functools import partial
from typing import Any

import jax.numpy as jnp

from jax_attn.models.rnn_decoder import Seq2SeqAttentionDecoder
from jax_attn.models.rnn_encoder import Seq2SeqEncoder
from jax_attn.models.seq2seq import EncoderDecoder
from jax_attn.models.transformer import TransformerDecoder, TransformerEncoder
from jax_attn.settings import ModelConfig, RecurrentConfig, TransformerConfig


def build_model(config: ModelConfig, source_vocab_size: int, target_vocab_size: int, **options: Any) -> EncoderDecoder:
    """Make the encoder and the decoder of a record of settings.

        model = build_model(TransformerConfig(norm="pre"), 10_000, 10_000)

    Args:
        config: a `RecurrentConfig` or a `TransformerConfig` of `jax_attn.settings`.
        source_vocab_size, target_vocab_size: the sizes of the vocabularies.
        options: further arguments of encoder and decoder, such as `param_dtype`.

    Raises:
        ValueError: settings are out of their range, or contradict each other.
    """
    if wrong := config.wrong():
        raise ValueError("; ".join(wrong))
    encoder, decoder = parts_of(config)
    options = {"dtype": None if config.dtype == "float32" else jnp.dtype(config.dtype)} | options
    return EncoderDecoder(
        encoder(source_vocab_size, **options),
        decoder(target_vocab_size, **options),
        share_embedding=config.tie_embeddings in ("input", "all"),
    )


def parts_of(config: ModelConfig) -> tuple[partial[Any], partial[Any]]:
    """Return the encoder and the decoder of a family, without the sizes of the vocabularies and the dtype."""
    ties = config.tie_embeddings in ("output", "all")
    if isinstance(config, RecurrentConfig):
        size = config.encoder_hiddens or config.num_hiddens // config.directions
        decoder = _part(Seq2SeqAttentionDecoder, config, use_bias=config.decoder_bias, tie_embeddings=ties)
        return _part(Seq2SeqEncoder, config, num_hiddens=size), decoder
    if isinstance(config, TransformerConfig):
        layers = config.encoder_layers or config.num_layers
        return _part(TransformerEncoder, config, num_layers=layers), _part(
            TransformerDecoder, config, tie_embeddings=ties
        )
    raise TypeError(f"config must be the record of a family, see jax_attn.settings; got {type(config).__name__}")


def _part(module: Any, config: ModelConfig, **others: Any) -> partial[Any]:
    """Give a module the settings that it has fields for, and others that have another name or value in it."""
    same = {name: x for name, x in vars(config).items() if name in module.__dataclass_fields__ and name != "dtype"}
    return partial(module, **same | others)
