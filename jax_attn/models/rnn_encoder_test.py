import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import GRU, LSTM, EncoderKeepMasks, Seq2SeqEncoder
from jax_attn.conftest import random_params

TOKENS, LENS = jnp.array([[3, 1, 4, 1], [5, 9, 2, 6], [5, 3, 5, 8]]), jnp.array([4, 2, 0])


encoder = Seq2SeqEncoder(10, 8, 4)
params = random_params(encoder, TOKENS)
encode = jax.jit(encoder.apply)


@pytest.mark.parametrize(("cell", "rnn"), [("gru", GRU), ("lstm", LSTM)])
def test_it_is_its_recurrent_network_over_its_embeddings(cell, rnn):
    module = Seq2SeqEncoder(10, 8, 4, 2, cell=cell, bidirectional=True)
    params = random_params(module, TOKENS)["params"]
    embedded = params["embedding"]["embedding"][TOKENS]
    expected = jax.jit(rnn(4, 2, bidirectional=True).apply)({"params": params["rnn"]}, embedded, LENS)
    encoded = jax.jit(module.apply)({"params": params}, TOKENS, LENS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), tuple(encoded), expected)


def test_padding_is_run_through_only_when_asked():
    through = Seq2SeqEncoder(10, 8, 4, stop_at_length=False)
    np.testing.assert_array_equal(through.apply(params, TOKENS, LENS).state, encode(params, TOKENS).state)
    stopped, other_padding = encode(params, TOKENS, LENS), TOKENS.at[1, 2:].set(0)
    jax.tree.map(np.testing.assert_array_equal, stopped, encode(params, other_padding, LENS))
    assert np.abs(through.apply(params, other_padding, LENS).state - encode(params, TOKENS).state).max() > 0.01
    assert np.abs(stopped.state[0, 1] - encode(params, TOKENS).state[0, 1]).max() > 0.01


def test_dropout_is_that_of_the_recurrent_network():
    module = Seq2SeqEncoder(10, 8, 4, 2, dropout=0.5)
    params = random_params(module, TOKENS)
    nothing = jax.jit(module.apply)(params, TOKENS, keep_masks=EncoderKeepMasks(jnp.zeros((3, 1, 4, 4), bool))).outputs
    np.testing.assert_array_equal(nothing, jnp.broadcast_to(nothing[:1], nothing.shape))
    drop = jax.jit(lambda key: module.apply(params, TOKENS, deterministic=False, rngs={"dropout": key}).outputs)
    assert np.abs(drop(jax.random.key(1)) - drop(jax.random.key(2))).max() > 0.01


@pytest.mark.parametrize("steps", [1, 4])
def test_masks_are_drawn_for_each_rate_and_variational_ones_once_for_all_steps(steps):
    rates = {"dropout": 0.5, "dropout_words": 0.1, "dropout_embedding": 0.2, "variational": steps == 1}
    module = Seq2SeqEncoder(10, 8, 4, 2, bidirectional=True, **rates)
    masks = module.draw_keep_masks(jax.random.key(0), (3, 4))
    assert {mask.shape for mask in masks} == {(3, 1, steps, 8), (3, 4, 1), (3, steps, 8)}
    encoded = jax.jit(module.apply)(random_params(module, TOKENS), TOKENS, LENS, keep_masks=masks)
    assert np.isfinite(encoded.outputs).all()
    assert Seq2SeqEncoder(10, 8, 4, dropout=0.5).draw_keep_masks(jax.random.key(0), (3, 4)) == EncoderKeepMasks()
