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

All generations also have `encoder.embedding`, `decoder.embedding`, `decoder.rnn` and `decoder.dense`. Release 1.0 wraps
`nn.GRU` in a class of its own. The code of 2020 applies W_k to the query and W_q to the keys; its first form passes
dropout in the place of `bias`, so that a rate of 0 makes an LSTM without biases.

In all generations the encoder reads the padding too, the decoder starts from the encoder's final state, and a source of
length 0 gets uniform attention. The module returned does the same.

Every key must be known: the models of the book have no buffers, so an extra key means another model. A file does not
show everything. A transposed square matrix has the same shape, a file made by changed code loads and gives other
logits, and the dropout rate is not in the file (here it is 0).

Load a model of your own with `jax_attn.weights.from_torch` instead. `jax_attn.weights.to_torch` gives the names of
release 0.17, so that this loader would take a GRU trained here for a model of the book and read the padding too.

Source: https://d2l.ai/chapter_attention-mechanisms-and-transformers/bahdanau-attention.html
"""

import re
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import dtypes

from jax_attn.functional.checks import shape_text
from jax_attn.models import EncoderDecoder, Seq2SeqAttentionDecoder, Seq2SeqEncoder
from jax_attn.modules import AdditiveAttention
from jax_attn.weights import from_torch, to_numpy

NUM_GATES = {"gru": 3, "lstm": 4}


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


def recognise(state_dict: Mapping[str, Any]) -> bool:
    """Return whether any key is one of the book's translator."""
    return any(_num_known(generation, state_dict) for generation in GENERATIONS)


def describe(state_dict: Mapping[str, Any]) -> str:
    """Return the generation and the sizes in words; it raises what `identify` raises."""
    generation, sizes, dtype = identify(state_dict)
    biases = "with" if sizes.decoder_bias else "without"
    tanh = "with" if generation.use_tanh else "without"
    return f"""\
The d2l.ai book's translator with attention, generation {generation.name}: jax_attn.models.EncoderDecoder in {dtype}
  source     {sizes.source_vocab} words, embeddings of {sizes.source_embed}
  target     {sizes.target_vocab} words, embeddings of {sizes.target_embed}
  network    {generation.cell.upper()}, layers: {sizes.num_layers}, hidden units: {sizes.num_hiddens}; \
the decoder's {biases} biases
  attention  additive, hidden units: {sizes.attention_hiddens}, {tanh} tanh"""


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
    module = checkpoint.module()
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    like = jax.eval_shape(module.init, jax.random.key(0), tokens, tokens)
    scopes = checkpoint.generation.scopes
    renamed = {f"{scopes[_scope(name)]}.{name.rpartition('.')[2]}": array for name, array in arrays.items()}
    return module, from_torch(renamed, like)


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


def layout(generation: Generation, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Return every key of a checkpoint and its shape, in PyTorch's layout `[out, in]`."""
    hiddens, units = sizes.num_hiddens, sizes.attention_hiddens

    def recurrent(scope: str, input_size: int, bias: bool) -> dict[str, tuple[int, ...]]:
        gates = NUM_GATES[generation.cell] * hiddens
        shapes: dict[str, tuple[int, ...]] = {}
        for i in range(sizes.num_layers):
            inputs = hiddens if i else input_size
            shapes |= {f"{scope}.weight_ih_l{i}": (gates, inputs), f"{scope}.weight_hh_l{i}": (gates, hiddens)}
            if bias:
                shapes |= {f"{scope}.bias_ih_l{i}": (gates,), f"{scope}.bias_hh_l{i}": (gates,)}
        return shapes

    return {
        "encoder.embedding.weight": (sizes.source_vocab, sizes.source_embed),
        **recurrent(generation.encoder_rnn, sizes.source_embed, bias=True),
        f"{generation.query_projection}.weight": (units, hiddens),
        f"{generation.key_projection}.weight": (units, hiddens),
        f"{generation.score}.weight": (1, units),
        "decoder.embedding.weight": (sizes.target_vocab, sizes.target_embed),
        **recurrent("decoder.rnn", hiddens + sizes.target_embed, sizes.decoder_bias),  # [context; embedding]
        "decoder.dense.weight": (sizes.target_vocab, hiddens),
        "decoder.dense.bias": (sizes.target_vocab,),
    }


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
    if not missing and not unknown:
        return
    message = (
        f"the keys resemble generation {generation.name} of the book's translator most, but do not fit it; "
        f"missing: {missing}; unknown: {unknown}"
    )
    for other in GENERATIONS:
        foreign = [name for name in unknown if _scope(name) in other.scopes and _scope(name) not in generation.scopes]
        if foreign:
            message += f"; generation {other.name} has {foreign}: a mixture cannot be loaded"
    raise KeyError(message)


def _read_sizes(generation: Generation, arrays: Mapping[str, np.ndarray], num_layers: int, bias: bool) -> Sizes:
    """Read each size from one key. `_require_shapes` checks the other keys."""
    source, target, recurrent, score = (arrays[name].shape for name in _size_keys(generation))
    for name in _size_keys(generation):
        if arrays[name].ndim != 2 or 0 in arrays[name].shape:
            raise ValueError(f"{name} must be a matrix that is not empty; got {shape_text(arrays[name].shape)}")
    _require_cell(generation, recurrent)
    return Sizes(num_layers, bias, source[0], source[1], target[0], target[1], recurrent[1], score[1])


def _size_keys(generation: Generation) -> tuple[str, str, str, str]:
    """Return the keys that give the sizes: embeddings [N, E] twice, recurrent [gates · H, H] and score [1, H]."""
    recurrent = f"{generation.encoder_rnn}.weight_hh_l0"
    return "encoder.embedding.weight", "decoder.embedding.weight", recurrent, f"{generation.score}.weight"


def _require_cell(generation: Generation, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless the number of gates is that of the generation's cell."""
    gates, (rows, hiddens) = NUM_GATES[generation.cell], shape
    if rows == gates * hiddens:
        return
    found = [cell.upper() for cell, count in NUM_GATES.items() if rows == count * hiddens]
    raise ValueError(
        f"{generation.encoder_rnn}.weight_hh_l0 must be [{gates}·H, H] for the {generation.cell.upper()} of generation "
        f"{generation.name}; got {shape_text(shape)}" + "".join(f", the shape of {cell} weights" for cell in found)
    )


def _require_shapes(generation: Generation, sizes: Sizes, arrays: Mapping[str, np.ndarray]) -> None:
    wrong = [
        f"{name} must be {shape_text(expected)}; got {shape_text(arrays[name].shape)}"
        for name, expected in layout(generation, sizes).items()
        if arrays[name].shape != expected
    ]
    if wrong:
        stated = ", ".join(f"{name} {shape_text(arrays[name].shape)}" for name in _size_keys(generation))
        raise ValueError(f"{'; '.join(wrong)} (the sizes are those of {stated})")
