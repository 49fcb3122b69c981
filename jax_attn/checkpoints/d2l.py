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
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import dtypes

from jax_attn.models import EncoderDecoder, Seq2SeqAttentionDecoder, Seq2SeqEncoder
from jax_attn.modules import AdditiveAttention
from jax_attn.weights import from_torch, to_numpy


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


def load(state_dict: Mapping[str, Any]) -> tuple[EncoderDecoder, dict[str, Any]]:
    """Return the module and `{"params": ...}` in the dtype of the checkpoint.

    Args:
        state_dict: names to arrays, or to CPU tensors, of the whole model (encoder and decoder).

    Raises:
        KeyError: the keys are those of no generation, or some are missing or unknown; the message names them.
        ValueError: a shape does not fit, or an array holds NaN or infinite numbers.
        TypeError: an array is not floating, or is float64 while JAX is in float32.
    """
    arrays = {name: to_numpy(tensor) for name, tensor in state_dict.items()}
    generation = find_generation(arrays)
    for name, array in arrays.items():
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(f"{name} must have a floating dtype; got {array.dtype}")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite; it holds NaN or infinite numbers")
    dtype = np.dtype(reduce(jnp.promote_types, (array.dtype for array in arrays.values())))
    narrowed = dtypes.canonicalize_dtype(dtype)
    if narrowed != dtype:
        raise TypeError(
            f"the checkpoint is {dtype}, which JAX would cut to {narrowed}; "
            'call jax.config.update("jax_enable_x64", True), or convert the arrays first'
        )
    weights = {f"{generation.scopes[_scope(name)]}.{name.rpartition('.')[2]}": x for name, x in arrays.items()}
    module = build(generation, weights, dtype)
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    like = jax.eval_shape(module.init, jax.random.key(0), tokens, tokens)
    try:
        return module, from_torch(weights, like)
    except (KeyError, ValueError) as error:
        names = {ours: theirs for theirs, ours in generation.scopes.items()}
        raise type(error)(
            f"this is no translator of the book's generation {generation.name}: {error.args[0]} "
            f"(by the names of jax_attn; the file's are {names})"
        ) from error


def find_generation(names: Iterable[str]) -> Generation:
    """Return the generation that knows the most keys; KeyError if it does not know all of them."""
    names = sorted(names)
    nearest = max(GENERATIONS, key=lambda generation: sum(_scope(name) in generation.scopes for name in names))
    unknown = [name for name in names if _scope(name) not in nearest.scopes]
    if len(unknown) == len(names):
        known = "no generation of the book's translator has any of these keys (they begin with encoder. or decoder.)"
        raise KeyError(f"{known}: {names}")
    if unknown:
        raise KeyError(
            f"the keys resemble generation {nearest.name} of the book's translator most, but do not fit it; "
            f"unknown: {unknown}"
        )
    return nearest


def build(generation: Generation, weights: Mapping[str, np.ndarray], dtype: np.dtype) -> EncoderDecoder:
    """Build the Flax module that computes the same as the book's code, with the sizes of the weights.

    Args:
        weights: by our names.
        dtype: of the parameters, wide enough for every array.

    Raises:
        KeyError, ValueError: a weight that gives a size is missing, or no matrix.
    """
    matrices = [f"{name}.weight" for name in ("encoder.embedding", "decoder.embedding", "decoder.attention.w_v")]
    matrices.append("encoder.rnn.weight_hh_l0")
    for name in matrices:
        if name not in weights:
            raise KeyError(f"the checkpoint has no {name} (of generation {generation.name} of the book's translator)")
        if weights[name].ndim != 2 or 0 in weights[name].shape:
            raise ValueError(f"{name} must be a matrix that is not empty; got {list(weights[name].shape)}")
    source, target, score, recurrent = (weights[name].shape for name in matrices)
    attention = AdditiveAttention(score[1], use_tanh=generation.use_tanh, empty_row="uniform", param_dtype=dtype)
    shared: Any = {
        "num_hiddens": recurrent[1],
        "num_layers": len({match[1] for name in weights if (match := re.search(r"\.weight_hh_l(\d+)$", name))}),
        "cell": generation.cell,
        "param_dtype": dtype,
    }
    # Only the LSTM of 2020 may have no biases.
    use_bias = generation.cell == "gru" or any(name.startswith("decoder.rnn.bias") for name in weights)
    return EncoderDecoder(
        Seq2SeqEncoder(source[0], source[1], stop_at_length=False, **shared),
        Seq2SeqAttentionDecoder(target[0], target[1], attention=attention, use_bias=use_bias, **shared),
    )


def _scope(name: str) -> str:
    """Return the layer of a weight: `encoder.rnn` for `encoder.rnn.weight_ih_l0`."""
    return name.rpartition(".")[0]
