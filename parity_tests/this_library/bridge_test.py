"""Every module of jax_attn in a Flax NNX model, through `nnx.bridge.ToNNX`: the same numbers as in Linen."""

import inspect
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jax_attn
from jax_attn import EncoderDecoder, Seq2SeqAttentionDecoder, Seq2SeqEncoder, TransformerDecoder, TransformerEncoder

RNG = np.random.default_rng(0)
X, KEYS = jnp.asarray(RNG.normal(size=(2, 3, 4))), jnp.asarray(RNG.normal(size=(2, 5, 4)))
IDS, LENS = jnp.array([[3, 4, 2], [1, 2, 0]]), jnp.array([3, 2])
ATTENDED = (X, KEYS, KEYS, jnp.array([5, 2]))
SIZES = {"vocab_size": 7, "embed_size": 4, "num_hiddens": 8, "num_layers": 1, "num_heads": 2}
RECURRENT = EncoderDecoder(Seq2SeqEncoder(7, 4, 6), Seq2SeqAttentionDecoder(7, 4, 6))
TRANSFORMER = EncoderDecoder(TransformerEncoder(**SIZES), TransformerDecoder(**SIZES))
CASES: dict[str, tuple[nn.Module, tuple[Any, ...]]] = {
    "AdditiveAttention": (jax_attn.AdditiveAttention(6), ATTENDED),
    "DotProductAttention": (jax_attn.DotProductAttention(), ATTENDED),
    "BilinearAttention": (jax_attn.BilinearAttention(), ATTENDED),
    "CosineAttention": (jax_attn.CosineAttention(), ATTENDED),
    "GaussianAttention": (jax_attn.GaussianAttention(), ATTENDED),
    "MultiHeadAttention": (jax_attn.MultiHeadAttention(4, 2), ATTENDED),
    "LSTM": (jax_attn.LSTM(6), (X, LENS)),
    "GRU": (jax_attn.GRU(6), (X, LENS)),
    "Embeddings": (jax_attn.Embeddings(4, 7), (IDS,)),
    "FeedForward": (jax_attn.FeedForward(8, 4), (X,)),
    "PositionalEncoding": (jax_attn.PositionalEncoding(4), (X,)),
    "Seq2SeqEncoder": (Seq2SeqEncoder(7, 4, 6), (IDS, LENS)),
    "TransformerEncoder": (TransformerEncoder(**SIZES), (IDS, LENS)),
    "EncoderDecoder": (RECURRENT, (IDS, IDS, LENS)),
    "EncoderDecoder of Transformers": (TRANSFORMER, (IDS, IDS, LENS)),
}
"""A decoder is called by its model."""
QUICK = ("Embeddings", "GRU")
"""The cases among the default tests, one of each kind; `jax_attn/modules/attention_test.py` has attention in NNX."""


def test_every_public_module_is_here() -> None:
    public = {x for x in vars(jax_attn).values() if inspect.isclass(x) and issubclass(x, nn.Module)}
    tested = {type(part) for module, _ in CASES.values() for part in (module, *vars(module).values())}
    assert public - {jax_attn.Attention} <= tested


def total(results: Any) -> Any:
    """Sum the floating results, each number with a weight of its own."""
    floating = [x for x in jax.tree.leaves(results) if jnp.issubdtype(x.dtype, jnp.floating)]
    return sum((x * jnp.cos(jnp.arange(x.size)).reshape(x.shape)).sum() for x in floating)


def close(found: Any, expected: Any) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), found, expected)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in CASES]
)
def test_a_module_is_split_merged_compiled_differentiated_and_mapped_in_nnx(name: str) -> None:
    module, inputs = CASES[name]
    graph, state = nnx.split(nnx.bridge.ToNNX(module, rngs=nnx.Rngs(0)).lazy_init(*inputs))
    bridged = nnx.merge(graph, state)
    weights = nnx.to_pure_dict(nnx.state(bridged, nnx.Param))
    expected = jax.jit(module.apply)({"params": weights}, *inputs)
    close(nnx.jit(lambda model, *given: model(*given))(bridged, *inputs), expected)
    graph, params, others = nnx.split(bridged, nnx.Param, ...)
    found = jax.jit(jax.grad(lambda p, *given: total(nnx.merge(graph, p, others, copy=True)(*given))))(params, *inputs)
    gradients = jax.jit(jax.grad(lambda params, *given: total(module.apply({"params": params}, *given))))
    close(nnx.to_pure_dict(found), gradients(weights, *inputs))
    twice = jax.tree.map(lambda x: jnp.stack([x, x]), inputs)
    mapped = nnx.jit(nnx.vmap(lambda model, *given: model(*given), in_axes=(None, *(0 for _ in inputs))))
    close(jax.tree.map(lambda x: x[1], mapped(bridged, *twice)), expected)
