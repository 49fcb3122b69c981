"""What the modules refuse: wrong shapes, ranks, dtypes and settings, and values out of range."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import (
    GRU,
    LSTM,
    AdditiveAttention,
    BilinearAttention,
    DotProductAttention,
    Embeddings,
    GaussianAttention,
    MultiHeadAttention,
    PositionalEncoding,
)


def floats(*shape):
    return np.ones(shape, np.float32)


def ints(*shape):
    return np.ones(shape, np.int32)


def bools(*shape):
    return np.ones(shape, bool)


ATTENTIONS = {
    AdditiveAttention: {"num_hiddens": 4},
    DotProductAttention: {},
    BilinearAttention: {},
    GaussianAttention: {},
    MultiHeadAttention: {"num_hiddens": 4, "num_heads": 2},
}
INPUTS = {"queries": floats(2, 3, 4), "keys": floats(2, 5, 4), "values": floats(2, 5, 4)}


def initialise(kind):
    """A function of settings and inputs that builds the module and initialises it with the inputs."""

    def call(settings=None, **inputs):
        return kind(**settings or {}).init(jax.random.key(0), **inputs)

    return call


@pytest.mark.parametrize("kind", ATTENTIONS)
@pytest.mark.parametrize(
    "wrong",
    [
        [{"keys": floats(1, 5, 4)}, "queries", "[2, 3, 4]"],
        [{"queries": floats(1, 3, 4)}],
        [{"queries": floats(3, 4)}],
        [{"queries": floats(4)}],
        [{"values": floats(2, 4, 4)}],
        [{"queries": ints(2, 3, 4)}],
        [{"keys": ints(2, 5, 4)}],
        [{"values": ints(2, 5, 4)}],
        [{"valid_lens": ints(3)}],
        [{"valid_lens": bools(2)}],
        [{"mask": ints(2, 3, 5)}],
        [{"mask": bools(2, 3, 4)}],
        [{"keep_mask": bools(2, 3, 4)}],
    ],
)
def test_attention_refuses_wrong_inputs(refuses, kind, wrong):
    refuses(initialise(kind), INPUTS | {"settings": ATTENTIONS[kind]}, *wrong)


@pytest.mark.parametrize("kind", ATTENTIONS)
@pytest.mark.parametrize("wrong", [6, -1, np.nan])
def test_attention_refuses_lengths_out_of_range(refuses, kind, wrong):
    lens = np.array([wrong, 1], np.int32 if wrong == wrong else np.float32)
    arguments = INPUTS | {"settings": ATTENTIONS[kind]}
    refuses(initialise(kind), arguments, {"valid_lens": lens}, got=f"{wrong}", traced=False)


def wrong_settings():
    for kind in ATTENTIONS:
        for name, value in (("dropout", 1.0), ("dropout", -0.1), ("empty_row", "nan")):
            yield kind, name, value
    yield GaussianAttention, "sigma", 0.0


@pytest.mark.parametrize(("kind", "name", "value"), list(wrong_settings()))
def test_attention_refuses_wrong_settings(refuses, kind, name, value):
    refuses(initialise(kind), INPUTS, {"settings": ATTENTIONS[kind] | {name: value}}, name, str(value))


@pytest.mark.parametrize("num_heads", [0, 3])
def test_heads_that_do_not_divide_the_width_are_refused(refuses, num_heads):
    settings = {"num_hiddens": 4, "num_heads": num_heads}
    refuses(initialise(MultiHeadAttention), INPUTS, {"settings": settings}, "num_heads|num_hiddens", str(num_heads))


def test_inputs_of_another_size_than_the_weights_are_refused(own_checks):
    """In Flax's words."""
    module = AdditiveAttention(6)
    params = module.init(jax.random.key(0), floats(2, 3, 4), floats(2, 3, 5), floats(2, 3, 5))
    with pytest.raises(Exception, match="shape"):
        jax.eval_shape(module.apply, params, *[floats(2, 3, 5)] * 3)


# Recurrent networks


def apply_cell(kind):
    """A function of settings and inputs that applies the network to the inputs; its weights take 3 features."""

    def call(settings=None, **inputs):
        module = kind(**{"num_hiddens": 4, "num_layers": 2} | (settings or {}))
        return module.apply(module.init(jax.random.key(0), jnp.zeros((2, 5, 3))), **inputs)

    return call


def state(kind, array):
    return (array, array) if kind is LSTM else array


@pytest.mark.parametrize("kind", [LSTM, GRU])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("inputs", floats(3)),
        ("inputs", ints(2, 5, 3)),
        ("valid_lens", ints(3)),
        ("valid_lens", ints(2, 5)),
        ("valid_lens", bools(2)),
        ("initial_state", floats(2, 3, 4)),
        ("initial_state", floats(2, 1, 4)),
        ("initial_state", floats(2, 2, 5)),
        ("initial_state", floats(1, 2, 4)),
        ("initial_state", ints(2, 2, 4)),
        ("keep_masks", bools(1, 2, 4, 4)),
        ("keep_masks", bools(2, 2, 5, 4)),
        ("keep_masks", floats(1, 2, 5, 4)),
    ],
)
def test_networks_refuse_wrong_inputs(refuses, kind, name, value):
    value = state(kind, value) if name == "initial_state" else value
    refuses(apply_cell(kind), {"inputs": floats(2, 5, 3)}, {name: value})


@pytest.mark.parametrize("kind", [LSTM, GRU])
@pytest.mark.parametrize("wrong", [6, -1])
def test_networks_refuse_what_fits_neither_weights_nor_settings(refuses, kind, wrong):
    fitting, call = {"inputs": floats(2, 5, 3)}, apply_cell(kind)
    refuses(call, {}, {"inputs": floats(2, 5, 4)}, got="4")
    other_cell = GRU if kind is LSTM else LSTM
    refuses(call, fitting, {"initial_state": state(other_cell, floats(2, 2, 4))}, got="")
    one_layer = fitting | {"settings": {"num_layers": 1}}
    refuses(call, one_layer, {"keep_masks": bools(1, 2, 5, 4)})
    both_directions = fitting | {"settings": {"bidirectional": True}}
    refuses(call, both_directions, {"initial_state": state(kind, floats(2, 2, 4))})
    refuses(call, fitting, {"valid_lens": np.array([wrong, 1], np.int32)}, got=f"{wrong}", traced=False)


@pytest.mark.parametrize("kind", [LSTM, GRU])
@pytest.mark.parametrize(
    ("name", "value"), [("num_hiddens", 0), ("num_layers", 0), ("dropout", 1.0), ("dropout", -0.1)]
)
def test_networks_refuse_wrong_settings(refuses, kind, name, value):
    refuses(apply_cell(kind), {"inputs": floats(2, 5, 3)}, {"settings": {name: value}}, name, str(value))


# Embeddings


@pytest.mark.parametrize("tokens", [floats(2, 3), bools(2, 3)])
def test_tokens_that_are_no_integers_are_refused(refuses, tokens):
    refuses(initialise(Embeddings), {"settings": {"d_model": 4, "vocab_size": 7}}, {"tokens": tokens})


@pytest.mark.parametrize("wrong", [7, -1])
def test_tokens_outside_the_vocabulary_are_refused(refuses, wrong):
    tokens = np.array([1, wrong], np.int32)
    settings = {"settings": {"d_model": 4, "vocab_size": 7}}
    refuses(initialise(Embeddings), settings, {"tokens": tokens}, got=str(wrong), traced=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x", floats(2, 3, 5)),
        ("x", floats(4)),
        ("x", ints(2, 3, 4)),
        ("keep_mask", bools(3, 4)),
        ("keep_mask", ints(2, 3, 4)),
    ],
)
def test_positional_encoding_refuses_wrong_inputs(refuses, name, value):
    refuses(initialise(PositionalEncoding), {"x": floats(2, 3, 4), "settings": {"d_model": 4}}, {name: value})


@pytest.mark.parametrize(
    ("argument", "setting", "got"), [("x", {"max_len": 2}, "3"), ("dropout", {"dropout": 1.0}, "1.0")]
)
def test_positional_encoding_refuses_wrong_settings(refuses, argument, setting, got):
    refuses(
        initialise(PositionalEncoding), {"x": floats(2, 3, 4)}, {"settings": {"d_model": 4} | setting}, argument, got
    )
