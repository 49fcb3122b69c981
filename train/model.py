"""The model of a configuration, in either framework: their classes have the same names and arguments."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from jax_attn import models
from jax_attn.models import EncoderDecoder
from train.model_config import ModelConfig
from train.setting import ConfigError


class Parts(NamedTuple):
    """The classes of a model, and their arguments but for the sizes of the vocabularies."""

    encoder: str
    encoder_settings: dict[str, Any]
    decoder: str
    decoder_settings: dict[str, Any]

    def build(self, library: Any, config: ModelConfig, source_size: int, target_size: int, **more: Any) -> Any:
        """Build the model from the classes of `jax_attn.models` or `torch_ref.models`."""
        return library.EncoderDecoder(
            getattr(library, self.encoder)(source_size, **self.encoder_settings, **more),
            getattr(library, self.decoder)(target_size, **self.decoder_settings, **more),
            share_embedding=config.tie_embeddings in ("input", "all"),
        )


def build_model(config: ModelConfig, source_vocab_size: int, target_vocab_size: int) -> EncoderDecoder:
    """Build the encoder and the decoder in JAX; ConfigError if settings contradict each other."""
    dtype = None if config.dtype == "float32" else jnp.dtype(config.dtype)
    try:
        return parts(config).build(models, config, source_vocab_size, target_vocab_size, dtype=dtype)
    except ValueError as error:
        raise ConfigError(f"the model cannot be built: {error}") from error


def parts(config: ModelConfig) -> Parts:
    """Return the parts of a model; ConfigError if settings contradict each other."""
    if wrong := config.wrong():
        raise ConfigError("; ".join(wrong))
    return _PARTS[config.family](config)


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
    return Parts("Seq2SeqEncoder", of_encoder, "Seq2SeqAttentionDecoder", of_decoder | _tie(config))


def _transformer(config: Any) -> Parts:
    sizes = ("embed_size", "num_hiddens", "num_layers", "num_heads")
    others = ("activation", "norm", "positions", "max_len", "scale_embedding", "use_bias", "source_end", "norm_epsilon")
    rates = ("dropout", "dropout_attention", "dropout_hidden")
    names = ("output_bias", "fixed_start", "never", "alignment_layer", "alignment_head")
    shared = _chosen(config, *sizes, *others, *rates)
    of_encoder = shared | {"num_layers": config.encoder_layers or config.num_layers}
    of_decoder = shared | _chosen(config, *names) | _tie(config)
    return Parts("TransformerEncoder", of_encoder, "TransformerDecoder", of_decoder)


def _chosen(config: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(config, name) for name in names}


def _tie(config: ModelConfig) -> dict[str, Any]:
    return {"tie_embeddings": config.tie_embeddings in ("output", "all")}


_PARTS: dict[str, Callable[[Any], Parts]] = {"recurrent": _recurrent, "transformer": _transformer}
