"""The translator with attention of the d2l.ai book, as its PyTorch code saves it, in three generations.

    module, params = load(read_safetensors("translator.safetensors"))
    logits, weights = module.apply(params, sources, targets, source_lens)

    generation                   1.0                    0.17                   2020
    cell                         GRU                    GRU                    LSTM
    encoder weights              encoder.rnn.rnn.*      encoder.rnn.*          encoder.rnn.*
    projection of the query      decoder.attention.W_q  decoder.attention.W_q  decoder.attention_cell.W_k
    projection of the keys       decoder.attention.W_k  decoder.attention.W_k  decoder.attention_cell.W_q
    projection to the score      decoder.attention.w_v  decoder.attention.w_v  decoder.attention_cell.v
    tanh before the score        yes                    yes                    no
    decoder biases               yes                    yes                    if the file has them

All generations also have `encoder.embedding`, `decoder.embedding`, `decoder.rnn` and `decoder.dense`. Every key must be
known, since an extra key means another model. The module behaves as the book's: the encoder reads the padding too, and
a source of length 0 gets uniform attention. The dropout rate is not in the file; here it is 0.

Load a model of your own with `jax_attn.weights.from_torch` instead: its file may have the names of release 0.17.

Source: https://d2l.ai/chapter_attention-mechanisms-and-transformers/bahdanau-attention.html
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jax import dtypes

from jax_attn.functional.checks import shape_text
from jax_attn.models import EncoderDecoder, Seq2SeqAttentionDecoder, Seq2SeqEncoder
from jax_attn.modules import AdditiveAttention
from jax_attn.weights import from_torch, to_numpy, torch_leaf


class Generation(NamedTuple):
    """A generation of the book's code: what it computes, and the names that differ between generations."""

    name: str
    cell: str
    use_tanh: bool
    encoder_rnn: str
    query_projection: str
    key_projection: str
    score: str

    @property
    def scopes(self) -> dict[str, str]:
        """The layers with weights, by their names in the book's code: our names."""
        return {
            "encoder.embedding": "encoder.embedding",
            self.encoder_rnn: "encoder.rnn",
            self.query_projection: "decoder.attention.W_q",
            self.key_projection: "decoder.attention.W_k",
            self.score: "decoder.attention.w_v",
            "decoder.embedding": "decoder.embedding",
            "decoder.rnn": "decoder.rnn",
            "decoder.dense": "decoder.dense",
        }


_ATTENTION = tuple(f"decoder.attention.{name}" for name in ("W_q", "W_k", "w_v"))
_EXCHANGED = tuple(f"decoder.attention_cell.{name}" for name in ("W_k", "W_q", "v"))

GENERATIONS = (
    Generation("1.0", "gru", True, "encoder.rnn.rnn", *_ATTENTION),
    Generation("0.17", "gru", True, "encoder.rnn", *_ATTENTION),
    Generation("2020", "lstm", False, "encoder.rnn", *_EXCHANGED),
)


class Sizes(NamedTuple):
    """The sizes of a model. The first two are enough to list the names of its weights."""

    num_layers: int
    decoder_bias: bool
    source_vocab: int = 1
    source_embed: int = 1
    target_vocab: int = 1
    target_embed: int = 1
    num_hiddens: int = 1
    attention_hiddens: int = 1


class Checkpoint(NamedTuple):
    """The model of a file."""

    generation: Generation
    sizes: Sizes
    dtype: np.dtype
    """The dtype of the parameters, wide enough for every array of the file."""

    def module(self) -> EncoderDecoder:
        """Build the Flax module that computes the same as the book's code."""
        generation, sizes, dtype = self
        attention = AdditiveAttention(
            sizes.attention_hiddens, use_tanh=generation.use_tanh, empty_row="uniform", param_dtype=dtype
        )
        shared: Any = {
            "num_hiddens": sizes.num_hiddens,
            "num_layers": sizes.num_layers,
            "cell": generation.cell,
            "param_dtype": dtype,
        }
        encoder = Seq2SeqEncoder(sizes.source_vocab, sizes.source_embed, stop_at_length=False, **shared)
        decoder = Seq2SeqAttentionDecoder(
            sizes.target_vocab, sizes.target_embed, attention=attention, use_bias=sizes.decoder_bias, **shared
        )
        return EncoderDecoder(encoder, decoder)

    def like(self) -> Any:
        """Return the parameters of the module, as shapes and dtypes."""
        tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
        return jax.eval_shape(self.module().init, jax.random.key(0), tokens, tokens)


def load(state_dict: Mapping[str, Any]) -> tuple[EncoderDecoder, dict[str, Any]]:
    """Return the module and `{"params": ...}` in the dtype of the checkpoint.

    Args:
        state_dict: names to arrays, or to CPU tensors, of the whole model (encoder and decoder).

    Raises:
        KeyError, ValueError, TypeError: as `identify`. TypeError also for float64 weights while JAX is in float32.
    """
    arrays = {name: to_numpy(tensor) for name, tensor in state_dict.items()}
    checkpoint = identify(arrays)
    narrowed = dtypes.canonicalize_dtype(checkpoint.dtype)
    if narrowed != checkpoint.dtype:
        raise TypeError(
            f"the checkpoint is {checkpoint.dtype}, which JAX would cut to {narrowed}; "
            'call jax.config.update("jax_enable_x64", True), or convert the arrays first'
        )
    scopes = checkpoint.generation.scopes
    renamed = {f"{scopes[_scope(name)]}.{name.rpartition('.')[2]}": array for name, array in arrays.items()}
    return checkpoint.module(), from_torch(renamed, checkpoint.like())


def identify(state_dict: Mapping[str, Any]) -> Checkpoint:
    """Find the generation and the sizes of a checkpoint from the names and shapes of its weights.

    Raises:
        KeyError: missing or unknown keys; the message lists all, and names the generation that the keys resemble most.
        ValueError: shapes that do not fit together; the message gives each key, its expected shape and its shape.
        TypeError: an array that is not floating.
    """
    arrays = {name: to_numpy(tensor) for name, tensor in state_dict.items()}
    generation = _nearest(arrays)
    layers = {match[1] for name in arrays if (match := re.search(r"\.weight_hh_l(\d+)$", name))}
    # Only the LSTM of 2020 may have no biases.
    bias = generation.cell == "gru" or any(name.startswith("decoder.rnn.bias") for name in arrays)
    _require_keys(generation, arrays, set(layout(generation, Sizes(max(len(layers), 1), bias))))
    for name, array in arrays.items():
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(f"{name} must have a floating dtype; got {array.dtype}")
        if not jnp.isfinite(array).all():
            raise ValueError(f"{name} must be finite; it holds NaN or infinite numbers")
    sizes = _read_sizes(generation, arrays, len(layers), bias)
    _require_shapes(generation, sizes, arrays)
    dtype = reduce(jnp.promote_types, (array.dtype for array in arrays.values()))
    return Checkpoint(generation, sizes, np.dtype(dtype))


@lru_cache
def layout(generation: Generation, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Return every key of a checkpoint and its shape, in PyTorch's layout `[out, in]`."""
    names = {ours: theirs for theirs, ours in generation.scopes.items()}
    shapes = {}
    for path, leaf in flatten_dict(Checkpoint(generation, sizes, np.dtype(np.float32)).like()["params"]).items():
        name, transposed = torch_leaf(path)
        key = f"{names[_scope(name)]}.{name.rpartition('.')[2]}"
        shapes[key] = leaf.shape[::-1] if transposed else leaf.shape
    return shapes


def _scope(name: str) -> str:
    """Return the layer of a weight: `encoder.rnn` for `encoder.rnn.weight_ih_l0`."""
    return name.rpartition(".")[0]


def _num_known(generation: Generation, names: Iterable[str]) -> int:
    """Count the names whose layer the generation has."""
    return sum(_scope(name) in generation.scopes for name in names)


def _nearest(arrays: Mapping[str, np.ndarray]) -> Generation:
    """Return the generation that knows the most keys."""
    nearest = max(GENERATIONS, key=lambda generation: _num_known(generation, arrays))
    if not _num_known(nearest, arrays):
        known = "no generation of the book's translator has any of these keys (they begin with encoder. or decoder.)"
        raise KeyError(f"{known}: {sorted(arrays)}")
    return nearest


def _require_keys(generation: Generation, arrays: Mapping[str, np.ndarray], expected: set[str]) -> None:
    missing, unknown = sorted(expected - set(arrays)), sorted(set(arrays) - expected)
    if missing or unknown:
        raise KeyError(
            f"the keys resemble generation {generation.name} of the book's translator most, but do not fit it; "
            f"missing: {missing}; unknown: {unknown}"
        )


def _read_sizes(generation: Generation, arrays: Mapping[str, np.ndarray], num_layers: int, bias: bool) -> Sizes:
    """Read each size from one key. `_require_shapes` checks the other keys."""
    source, target, recurrent, score = (arrays[name].shape for name in _size_keys(generation))
    for name in _size_keys(generation):
        if arrays[name].ndim != 2 or 0 in arrays[name].shape:
            raise ValueError(f"{name} must be a matrix that is not empty; got {shape_text(arrays[name].shape)}")
    return Sizes(num_layers, bias, source[0], source[1], target[0], target[1], recurrent[1], score[1])


def _size_keys(generation: Generation) -> tuple[str, str, str, str]:
    """Return the keys that give the sizes: embeddings [N, E] twice, recurrent [gates · H, H] and score [1, H]."""
    recurrent = f"{generation.encoder_rnn}.weight_hh_l0"
    return "encoder.embedding.weight", "decoder.embedding.weight", recurrent, f"{generation.score}.weight"


def _require_shapes(generation: Generation, sizes: Sizes, arrays: Mapping[str, np.ndarray]) -> None:
    wrong = [
        f"{name} must be {shape_text(expected)}; got {shape_text(arrays[name].shape)}"
        for name, expected in layout(generation, sizes).items()
        if arrays[name].shape != expected
    ]
    if wrong:
        stated = ", ".join(f"{name} {shape_text(arrays[name].shape)}" for name in _size_keys(generation))
        raise ValueError(f"{'; '.join(wrong)} (the sizes are those of {stated})")
