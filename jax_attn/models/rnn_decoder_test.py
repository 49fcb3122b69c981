from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import (
    AdditiveAttention,
    DecoderKeepMasks,
    DotProductAttention,
    EncoderOutput,
    MultiHeadAttention,
    Seq2SeqAttentionDecoder,
)
from jax_attn.models.rnn_decoder import NoAttention

B, S, T, N, E, H = 2, 5, 3, 7, 6, 4
random = np.random.default_rng(0)
TARGETS, LENS = jnp.asarray(random.integers(0, N, (B, T))), jnp.array([5, 2])


def normal(*shape):
    return jnp.asarray(random.normal(size=shape), jnp.float32)


def encoder_output(cell="gru", layers=1, directions=1, seed=0):
    """What an encoder of H hidden units in all would hand over; NaN where a source has ended."""
    random = np.random.default_rng(seed)
    outputs = random.normal(size=(B, S, H))
    outputs[1, 2:] = np.nan
    shape = (layers * directions, B, H // directions)
    parts = tuple(jnp.asarray(random.normal(size=shape), jnp.float32) for _ in range({"gru": 1, "lstm": 2}[cell]))
    return EncoderOutput(jnp.asarray(outputs, jnp.float32), parts if cell == "lstm" else parts[0])


class Case:
    """A decoder with its parameters, none of them zero, its memory, and compiled calls."""

    def __init__(self, directions=1, **settings):
        self.module = Seq2SeqAttentionDecoder(N, settings.pop("embed_size", E), H, **settings)
        encoded = encoder_output(self.module.cell, self.module.num_layers, directions)
        shapes = jax.eval_shape(self.everything, encoded)
        self.variables = jax.tree.map(lambda leaf: 0.5 * normal(*leaf.shape), shapes)
        self.memory = jax.jit(self.prepare)(encoded, LENS)
        self.decode = jax.jit(self.module.apply)
        self.step = jax.jit(lambda *args: self.module.apply(*args, method="step"))

    def everything(self, encoded):
        def run(decoder):
            return decoder(TARGETS, decoder.prepare(encoded))

        return self.module.init(jax.random.key(0), method=run)

    def prepare(self, encoded, lens=None):
        return self.module.apply(self.variables, encoded, lens, method="prepare")

    def initial_state(self):
        return self.module.apply(self.variables, self.memory, method="initial_state")


case = cache(Case)
SETTINGS = {
    "the book": {},
    "lstm, two layers": {"cell": "lstm", "num_layers": 2},
    "luong": {"query": "new", "attention": "bilinear", "cell": "lstm"},
    "input feeding, two layers": {"query": "new", "input_feeding": True, "num_layers": 2, "attention": "scaled_dot"},
    "no attention": {"attention": "none", "use_bias": False},
    "no attention, new query": {"attention": "none", "query": "new", "input_feeding": True},
    "bridge and tied": {"bridge": True, "tie_embeddings": True, "embed_size": H, "cell": "lstm", "directions": 2},
    "a module": {"attention": AdditiveAttention(3, use_tanh=False)},
    "several heads": {"attention": MultiHeadAttention(8, 2)},
}
FEW = "the book", "input feeding, two layers", "no attention, new query", "several heads"


def by_default(*names):
    """Run with these settings by default; with the others when slow tests are asked for."""
    marks = {name: [] if name in names else [pytest.mark.slow] for name in SETTINGS}
    return pytest.mark.parametrize("settings", [pytest.param(SETTINGS[n], marks=marks[n], id=n) for n in SETTINGS])


def build(settings):
    return case(**settings)


def close(a, b, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **({"rtol": 1e-5, "atol": 1e-6} | tolerance)), a, b)


@by_default(*FEW)
def test_teacher_forcing_is_the_step_repeated(settings):
    c = build(settings)
    logits, weights = c.decode(c.variables, TARGETS, c.memory)
    state = c.initial_state()
    for t in range(T):
        log_probs, state, step_weights = c.step(c.variables, TARGETS[:, t], state, c.memory)
        close(log_probs, jax.nn.log_softmax(logits[:, t]))
        if weights is None:
            assert step_weights is None
        else:
            close(step_weights, weights[:, t])
    assert (weights is None) == (settings.get("attention") == "none")


def test_steps_go_on_from_a_state():
    c = build(SETTINGS["input feeding, two layers"])

    @jax.jit
    def in_two_parts(variables, state):
        first, state, first_weights = c.module.apply(variables, TARGETS[:, :1], state, c.memory, method="steps")
        second, _, second_weights = c.module.apply(variables, TARGETS[:, 1:], state, c.memory, method="steps")
        return jnp.concatenate([first, second], 1), jnp.concatenate([first_weights, second_weights], 1)

    close(in_two_parts(c.variables, c.initial_state()), c.decode(c.variables, TARGETS, c.memory))


@by_default(*FEW)
def test_a_beam_is_its_rows_side_by_side_over_one_memory(settings):
    c = build(settings)
    tokens = jnp.array([[1, 2, 3], [4, 5, 6]])
    state = jax.tree.map(
        lambda leaf: jnp.stack([leaf, 2 * leaf, leaf - 1], axis=1).reshape(6, -1), c.initial_state()
    )  # fmt: skip
    together = c.step(c.variables, tokens.reshape(6), state, c.memory)
    for i in range(3):
        alone = c.step(c.variables, tokens[:, i], jax.tree.map(lambda leaf, i=i: leaf[i::3], state), c.memory)
        close(jax.tree.map(lambda leaf, i=i: leaf[i::3], together), alone)


@by_default("input feeding, two layers", "several heads")
def test_padding_of_the_source_reaches_neither_result_nor_gradient(settings):
    c = build(settings)

    def total(variables, encoded):
        memory = c.module.apply(variables, encoded, LENS, method="prepare")
        logits, weights = c.module.apply(variables, TARGETS, memory)
        return jnp.sum(logits**2), (logits, weights)

    encoded = encoder_output(c.module.cell, c.module.num_layers, settings.get("directions", 1))
    run = jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True))
    poisoned = run(c.variables, encoded)
    jax.tree.map(
        np.testing.assert_array_equal,
        poisoned,
        run(c.variables, encoded._replace(outputs=jnp.nan_to_num(encoded.outputs))),
    )
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(poisoned))


def test_a_step_of_the_book_s_decoder_is_its_equations():
    c = case()
    p = c.variables["params"]
    assert set(p) == {"embedding", "attention", "rnn", "dense"}
    state = c.initial_state()
    np.testing.assert_array_equal(state.rnn[0], encoder_output().state[0])
    memory = c.memory.attention
    context, weights = c.module.attention.apply(
        {"params": p["attention"]}, state.rnn[0][:, None], memory, method="attend"
    )
    x = jnp.concatenate([context[:, 0], p["embedding"]["embedding"][TARGETS[:, 0]]], axis=-1)
    h, _ = _gru(p["rnn"], state.rnn[0], x)
    log_probs, new_state, step_weights = c.step(c.variables, TARGETS[:, 0], state, c.memory)
    close(log_probs, jax.nn.log_softmax(h @ p["dense"]["kernel"] + p["dense"]["bias"]))
    close((new_state.rnn[0], step_weights), (h, weights[:, 0]))


def test_a_step_with_the_new_query_and_input_feeding_is_its_equations():
    c = case(query="new", input_feeding=True, attention="dot")
    p = c.variables["params"]
    state = c.initial_state()._replace(feed=normal(B, H))
    h, _ = _gru(
        p["rnn"], state.rnn[0], jnp.concatenate([state.feed, p["embedding"]["embedding"][TARGETS[:, 0]]], axis=-1)
    )
    context, _ = DotProductAttention(scaled=False).apply({}, h[:, None], c.memory.attention, method="attend")
    feed = jnp.tanh(jnp.concatenate([context[:, 0], h], axis=-1) @ p["attentional"]["kernel"])
    log_probs, new_state, _ = c.step(c.variables, TARGETS[:, 0], state, c.memory)
    close(log_probs, jax.nn.log_softmax(feed @ p["dense"]["kernel"] + p["dense"]["bias"]))
    close((new_state.rnn[0], new_state.feed), (h, feed))
    np.testing.assert_array_equal(c.initial_state().feed, np.zeros((B, H)))


def _gru(p, h, x):
    from jax_attn import gru_step

    return gru_step(h, x @ p["kernel_ih_l0"] + p["bias_ih_l0"], p["kernel_hh_l0"], p["bias_hh_l0"])


def test_the_bridge_leads_from_both_directions_to_every_layer_and_ties_share_the_table():
    c = case(**SETTINGS["bridge and tied"])
    p, encoded = c.variables["params"], encoder_output("lstm", 1, 2)
    for name, part, initial in zip(("bridge_h", "bridge_c"), encoded.state, c.memory.initial, strict=True):
        both = jnp.concatenate([part[0], part[1]], axis=-1)
        close(initial[:, 0], jnp.tanh(both @ p[name]["kernel"] + p[name]["bias"]))
    assert "dense" not in p
    assert p["dense_bias"].shape == (N,)


def test_without_a_bridge_each_layer_gets_its_directions_side_by_side():
    module, encoded = Seq2SeqAttentionDecoder(N, E, H, 2, attention="none"), encoder_output("gru", 2, 2)
    memory = module.apply({}, encoded, method="prepare")
    for layer in range(2):
        expected = jnp.concatenate([encoded.state[2 * layer], encoded.state[2 * layer + 1]], axis=-1)
        np.testing.assert_array_equal(memory.initial[0][:, layer], expected)
    np.testing.assert_array_equal(memory.attention.values[:, 0], memory.initial[0][:, 1])  # the top layer
    assert isinstance(module.attention, NoAttention)


def test_without_biases_the_recurrent_network_has_none_and_keeps_its_dropout():
    # The fault of passing dropout instead of bias would do the contrary.
    without = Seq2SeqAttentionDecoder(N, E, H, 2, 0.5, use_bias=False)
    params = jax.eval_shape(
        lambda key: without.init(key, method=lambda d: d(TARGETS, d.prepare(encoder_output(layers=2)))),
        jax.random.key(0),
    )
    assert not [name for name in params["params"]["rnn"] if "bias" in name]
    params = case(num_layers=2, dropout=0.5).variables["params"]["rnn"]
    assert len([name for name in params if "bias" in name]) == 4


KEEP = {"keep everything": True, "keep nothing": False}


@pytest.mark.parametrize("keep", KEEP.values(), ids=KEEP)
def test_keep_masks_drop_the_attention_s_weights_and_what_goes_between_the_layers(keep):
    c, plain = case(num_layers=2, dropout=0.5), case(num_layers=2)
    masks = DecoderKeepMasks(jnp.full((B, 1, T, H), keep), jnp.full((B, T, S), keep))
    logits, weights = c.decode(c.variables, TARGETS, c.memory, keep_masks=masks)
    # By hand: kept at rate 1/2, context and the second layer's input double; dropped, both are zero.
    scale = 2.0 if keep else 0.0
    rnn = c.variables["params"]["rnn"]
    scaled = rnn | {
        "kernel_ih_l1": scale * rnn["kernel_ih_l1"],
        "kernel_ih_l0": jnp.concatenate([scale * rnn["kernel_ih_l0"][:-E], rnn["kernel_ih_l0"][-E:]]),
    }
    variables = {"params": c.variables["params"] | {"rnn": scaled}}
    close((logits, weights), plain.decode(variables, TARGETS, c.memory))


@pytest.mark.parametrize(("rate", "own"), [(0.0, 0.5), (0.5, 0.0)])
def test_an_attention_module_drops_by_its_own_rate(rate, own):
    c = case(dropout=rate, attention=DotProductAttention(own))
    drop = jax.jit(
        lambda key: c.module.apply(c.variables, TARGETS, c.memory, deterministic=False, rngs={"dropout": key})[0]
    )
    differs = np.abs(drop(jax.random.key(1)) - c.decode(c.variables, TARGETS, c.memory)[0]).max() > 1e-3
    assert differs == (own > 0)


def test_of_several_heads_the_weights_are_their_mean():
    c = case(attention=MultiHeadAttention(8, 2))
    state, variables = c.initial_state(), {"params": c.variables["params"]["attention"]}
    attend = jax.jit(partial(c.module.attention.apply, method="attend"))
    _, heads = attend(variables, state.rnn[0][:, None], c.memory.attention)
    close(c.step(c.variables, TARGETS[:, 0], state, c.memory)[2], (heads[:, 0, 0] + heads[:, 1, 0]) / 2)
