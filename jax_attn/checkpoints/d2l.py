"""The translator with attention of the d2l.ai book, as its PyTorch code saves it, in three generations.

    module, params = load(read_safetensors("translator.safetensors"))
    logits, weights = module.apply(params, sources, targets, source_lens)

    generation                   1.0                    0.17                   2020
    cell                         GRU                    GRU                    LSTM
    the encoder's weights        encoder.rnn.rnn.*      encoder.rnn.*          encoder.rnn.*
    projection of the query      decoder.attention.W_q  decoder.attention.W_q  decoder.attention_cell.W_k
    projection of the keys       decoder.attention.W_k  decoder.attention.W_k  decoder.attention_cell.W_q
    from their sum to a score    decoder.attention.w_v  decoder.attention.w_v  decoder.attention_cell.v
    tanh before that             yes                    yes                    no
    the decoder's biases         yes                    yes                    as the keys say

and in all of them `encoder.embedding`, `decoder.embedding`, `decoder.rnn` and `decoder.dense`. Release 1.0 wraps
`nn.GRU` in a class of its own; 0.17, and the Chinese second edition with it, does not. The code of 2020 applies W_k to
the query and W_q to the keys, leaves the tanh out, and in its first form passes dropout in the place of `bias`: a rate
of 0 made an LSTM without biases. In all generations the encoder runs through the padding, its final state is where the
decoder starts, and a source of length 0 is attended to uniformly. The module returned does the same.

No key is ignored: the book's models have no buffers, so a key too many means another model.

What a file cannot tell: a square matrix looks the same transposed, as W_q, W_k and, with embeddings as wide as the
hidden state, others may be; nor does it say what the code did between the weights. The tests of this file hold the
logits equal to the book's code, so the loader itself transposes nothing wrongly; but a file that was made wrong, or by
code that was changed, loads and gives other logits. (In the code of 2020 the query's projection shows in none: without
the tanh it cancels in the softmax.) A model of one's own is for `jax_attn.weights.from_torch`. The rate of dropout is
not in a file either, and 0 here.

`jax_attn.weights.to_torch` gives the names that 0.17 has, so that a GRU trained here would be taken for one of the
book's and run through the padding; whoever trained it has its module, and needs `from_torch` alone.

Source: https://d2l.ai/chapter_attention-mechanisms-and-transformers/bahdanau-attention.html
"""

import re
from collections.abc import Mapping
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
    """What a generation of the book's code computes, and where it keeps what others keep elsewhere."""

    name: str
    cell: str
    use_tanh: bool
    encoder_rnn: str
    query_projection: str
    key_projection: str
    score: str

    @property
    def scopes(self) -> dict[str, str]:
        """Every place that holds weights: its name in the book's code, and ours."""
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
    """Every size of a model; where only the names of its weights matter, all but the first two may stay 1."""

    num_layers: int
    decoder_bias: bool
    source_vocab: int = 1
    source_embed: int = 1
    target_vocab: int = 1
    target_embed: int = 1
    num_hiddens: int = 1
    attention_hiddens: int = 1


class Checkpoint(NamedTuple):
    """What `identify` found out."""

    generation: Generation
    sizes: Sizes
    dtype: np.dtype
    """Of the parameters: the one that holds all of the file's."""

    def module(self) -> EncoderDecoder:
        """The same model, with what the book's code does differently switched on."""
        generation, sizes, dtype = self
        attention = AdditiveAttention(
            sizes.attention_hiddens, use_tanh=generation.use_tanh, empty_row="uniform", param_dtype=dtype
        )
        return EncoderDecoder(
            Seq2SeqEncoder(
                sizes.source_vocab,
                sizes.source_embed,
                sizes.num_hiddens,
                sizes.num_layers,
                cell=generation.cell,
                stop_at_length=False,
                param_dtype=dtype,
            ),
            Seq2SeqAttentionDecoder(
                sizes.target_vocab,
                sizes.target_embed,
                sizes.num_hiddens,
                sizes.num_layers,
                cell=generation.cell,
                attention=attention,
                use_bias=sizes.decoder_bias,
                param_dtype=dtype,
            ),
        )


def load(state_dict: Mapping[str, Any]) -> tuple[EncoderDecoder, dict[str, Any]]:
    """The model of a checkpoint and its parameters.

    Args:
        state_dict: names to arrays, or to CPU tensors, of the whole model (encoder and decoder).

    Returns:
        The module and `{"params": ...}`, in the dtype of the checkpoint.

    Raises:
        KeyError, ValueError, TypeError: as `identify`; and float64 weights while JAX computes in float32.
    """
    arrays = {name: to_numpy(tensor) for name, tensor in state_dict.items()}
    checkpoint = identify(arrays)
    narrowed = dtypes.canonicalize_dtype(checkpoint.dtype)
    if narrowed != checkpoint.dtype:
        raise TypeError(
            f"the checkpoint is {checkpoint.dtype}, which JAX would cut to {narrowed}; "
            'switch jax.config.update("jax_enable_x64", True) on, or convert the arrays first'
        )
    module = checkpoint.module()
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    like = jax.eval_shape(module.init, jax.random.key(0), tokens, tokens)
    scopes = checkpoint.generation.scopes
    renamed = {f"{scopes[_scope(name)]}.{name.rpartition('.')[2]}": array for name, array in arrays.items()}
    return module, from_torch(renamed, like)


def identify(state_dict: Mapping[str, Any]) -> Checkpoint:
    """Which generation a checkpoint is of, and every size, from the names and shapes of its weights alone.

    Raises:
        KeyError: keys that are missing, or that the model does not know, all of them; the message says which
            generation the keys resemble most.
        ValueError: shapes that do not fit together; each with its key, what it must be and what it is.
        TypeError: an array that is not floating.
    """
    arrays = {name: to_numpy(tensor) for name, tensor in state_dict.items()}
    generation = _nearest(arrays)
    layers = {match[1] for name in arrays if (match := re.search(r"\.weight_hh_l(\d+)$", name))}
    # Only the code of 2020 could do without, and there both forms exist.
    bias = generation.cell == "gru" or any(name.startswith("decoder.rnn.bias") for name in arrays)
    _require_keys(generation, arrays, set(layout(generation, Sizes(max(len(layers), 1), bias))))
    for name, array in arrays.items():
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(f"{name} must have a floating dtype; got {array.dtype}")
    sizes = _read_sizes(generation, arrays, len(layers), bias)
    _require_shapes(generation, sizes, arrays)
    dtype = reduce(jnp.promote_types, (array.dtype for array in arrays.values()))
    return Checkpoint(generation, sizes, np.dtype(dtype))


def layout(generation: Generation, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Every key of a checkpoint and its shape, in PyTorch's layout `[out, in]`."""
    hiddens, units = sizes.num_hiddens, sizes.attention_hiddens

    def recurrent(scope: str, input_size: int, bias: bool) -> dict[str, tuple[int, ...]]:
        gates = NUM_GATES[generation.cell] * hiddens
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in range(sizes.num_layers):
            shapes[f"{scope}.weight_ih_l{layer}"] = (gates, hiddens if layer else input_size)
            shapes[f"{scope}.weight_hh_l{layer}"] = (gates, hiddens)
            if bias:
                shapes |= {f"{scope}.bias_ih_l{layer}": (gates,), f"{scope}.bias_hh_l{layer}": (gates,)}
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
    """`encoder.rnn.weight_ih_l0` lies in `encoder.rnn`."""
    return name.rpartition(".")[0]


def _nearest(arrays: Mapping[str, np.ndarray]) -> Generation:
    """The generation that knows the places of the most keys."""

    def known(generation: Generation) -> int:
        return sum(_scope(name) in generation.scopes for name in arrays)

    nearest = max(GENERATIONS, key=known)
    if not known(nearest):
        raise KeyError(
            "no generation of the book's translator has any of these keys (all begin with encoder. or decoder.): "
            f"{sorted(arrays)}"
        )
    return nearest


def _require_keys(generation: Generation, arrays: Mapping[str, np.ndarray], expected: set[str]) -> None:
    missing, unknown = sorted(expected - set(arrays)), sorted(set(arrays) - expected)
    if not missing and not unknown:
        return
    message = (
        f"the keys resemble generation {generation.name} of the book's translator most, and do not fit it; "
        f"missing: {missing}; unknown: {unknown}"
    )
    for other in GENERATIONS:
        foreign = [name for name in unknown if _scope(name) in other.scopes and _scope(name) not in generation.scopes]
        if foreign:
            message += f"; generation {other.name} has {foreign}: a mixture cannot be loaded"
    raise KeyError(message)


def _read_sizes(generation: Generation, arrays: Mapping[str, np.ndarray], num_layers: int, bias: bool) -> Sizes:
    """Each size from one key; whether the others agree is checked afterwards."""
    source, target, recurrent, score = (arrays[name] for name in _size_keys(generation))
    for name in _size_keys(generation):
        if arrays[name].ndim != 2 or 0 in arrays[name].shape:
            raise ValueError(f"{name} must be a matrix that is not empty; got {shape_text(arrays[name].shape)}")
    _require_cell(generation, recurrent.shape)
    (source_vocab, source_embed), (target_vocab, target_embed) = source.shape, target.shape
    return Sizes(
        num_layers, bias, source_vocab, source_embed, target_vocab, target_embed, recurrent.shape[1], score.shape[1]
    )


def _size_keys(generation: Generation) -> tuple[str, str, str, str]:
    """Where the sizes are read: both embeddings [N, E], the recurrence [gates · H, H], the score [1, H]."""
    recurrent = f"{generation.encoder_rnn}.weight_hh_l0"
    return "encoder.embedding.weight", "decoder.embedding.weight", recurrent, f"{generation.score}.weight"


def _require_cell(generation: Generation, shape: tuple[int, ...]) -> None:
    """The number of gates, which tells a GRU from an LSTM."""
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
