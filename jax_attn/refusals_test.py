"""Wrong arguments raise TypeError or ValueError. The message names the argument, what it must be and what it is."""

import re
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_attn as ja
from jax_attn import beam_search, ensemble, greedy_search, sample_search

pytestmark = pytest.mark.usefixtures("own_checks")
B, T, H, N = 2, 5, 4, 7  # batch, source positions, hidden units, vocabulary


def floats(*shape):
    return np.ones(shape, np.float32)


def ints(*shape):
    return np.ones(shape, np.int32)


def bools(*shape):
    return np.ones(shape, bool)


def refuses(function, arguments, wrong, argument=None, got=None, traced=True):
    """Check that `function(**arguments, **wrong)` raises, and says "`argument` must be ...; got ...".

    By default `argument` is the first name in `wrong`, and what it got is the dtype (of a TypeError), the shape (of a
    ValueError), or the value of what is no array. Arrays are traced, as under a jit, unless `traced` is False.
    """
    given = {**arguments, **wrong}
    arrays = {name: value for name, value in given.items() if holds_arrays(value)}
    settings = {name: value for name, value in given.items() if name not in arrays}

    def call(arrays):
        return function(**settings, **arrays)

    with pytest.raises((TypeError, ValueError)) as caught:
        jax.eval_shape(call, arrays) if traced else call(jax.tree.map(jnp.asarray, arrays))
    name, value = next(iter(wrong.items()))
    if got is None:
        got = str(value)
        if holds_arrays(value):
            array = jax.tree.leaves(value)[0]
            got = str(array.dtype) if caught.type is TypeError else str(list(array.shape))
    pattern = rf"\b(?:{argument or name})\b.*(?:must|needs) .*; got .*{re.escape(got)}"
    assert re.search(pattern, str(caught.value), re.DOTALL), str(caught.value)


def holds_arrays(value):
    return any(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(value))


def each(function, arguments, **wrong):
    """Cases from names of arguments to lists of wrong values."""
    return [(function, arguments, {name: value}) for name, values in wrong.items() for value in values]


def case(function, arguments, wrong, argument=None, got=None):
    return [(function, arguments, wrong, argument, got)]


# Functions

SCORES = {"scores": floats(2, 3, 4)}
PAIR = {"queries": floats(2, 3, 4), "keys": floats(2, 5, 4)}
PARAMETERS = {ja.bilinear_score: {"weight": floats(4, 4)}, ja.additive_score: {"w_v": floats(4)}}
LENS, MASKS = [ints(3), ints(2, 4), bools(2)], [ints(2, 3, 4), bools(2, 3, 5), bools(1, 2, 3, 4)]


def masks_and_softmaxes():
    yield from each(ja.length_mask, {"size": 3}, valid_lens=[bools(2)])
    yield from each(ja.length_mask, {"valid_lens": ints(2)}, size=[-1])
    yield from case(ja.attention_mask, {"valid_lens": ints(2)}, {"shape": (4,)}, "scores", "[4]")
    yield from each(ja.attention_mask, {"shape": (2, 3, 4)}, valid_lens=LENS, mask=MASKS)
    yield from each(ja.sequence_mask, {"X": floats(2, 3)}, valid_lens=[ints(3), bools(2)])
    yield from case(ja.sequence_mask, {"X": floats(2, 3)}, {"valid_lens": ints(2, 3)}, "X")
    for softmax in (ja.masked_softmax, ja.masked_log_softmax):
        yield from each(softmax, SCORES, valid_lens=[*LENS, ints(2, 3, 4)], mask=MASKS, empty_row=["nan"])
        yield from each(softmax, {}, scores=[ints(2, 3, 4), floats(4)])


def scores():
    for score in (ja.dot_score, ja.scaled_dot_score, ja.gaussian_score, ja.bilinear_score, ja.additive_score):
        fitting = PAIR | PARAMETERS.get(score, {})
        keys = [floats(3, 5, 4), floats(1, 5, 4), floats(5, 4), ints(2, 5, 4)]
        keys += [floats(2, 5, 6)] if score is not ja.bilinear_score else []
        yield from each(score, fitting, keys=keys, queries=[ints(2, 3, 4)])
        yield from case(score, fitting, {"queries": floats(4), "keys": floats(4)})
    yield from each(ja.bilinear_score, {"queries": floats(2, 3), "keys": floats(5, 4)}, weight=[floats(4, 3)])
    yield from each(ja.additive_score, PAIR, w_v=[floats(1, 4), floats(3)])
    for score, name in ((ja.gaussian_score, "sigma"), (ja.cosine_score, "temperature")):
        yield from each(score, PAIR, **{name: [0.0, -1.0, np.nan, np.float32(-1), jnp.float32(-1)]})
        yield from case(score, PAIR, {name: 1j}, got="complex")
        yield from case(score, PAIR, {name: True}, got="bool")


def attention():
    fitting = {"scores": floats(2, 3, 5), "values": floats(2, 5, 4), "dropout_rate": 0.5}
    yield from each(ja.attend, fitting, values=[floats(2, 4, 4), floats(1, 5, 4), floats(5, 4), ints(2, 5, 4)])
    yield from each(ja.attend, fitting, keep_mask=[floats(2, 3, 5), bools(2, 3, 4)])
    fitting = {"query": floats(2, 3, 4), "key": floats(2, 5, 4), "value": floats(2, 5, 6)}
    yield from each(ja.attention, fitting, value=[floats(2, 4, 6)], query=[ints(2, 3, 4)], mask=[ints(2, 3, 5)])
    yield from case(ja.attention, fitting, {"key": floats(2, 5, 3)}, "keys?", "3")
    yield from case(ja.attention, fitting, {"query": floats(1, 3, 4)}, "key", "[2]")
    fitting = PAIR | {"values": floats(2, 5, 6), "score": ja.dot_score}
    wrong = {"values": [floats(2, 4, 6)], "queries": [ints(2, 3, 4)], "mask": [ints(2, 3, 5), bools(2, 3, 4)]}
    wrong |= {"valid_lens": [ints(2, 4)], "keep_mask": [bools(2, 3, 4)], "empty_row": ["nan"], "block_size": [0]}
    yield from each(ja.blockwise_attention, fitting, **wrong)
    for size in (1.5, np.nan):
        yield from case(ja.blockwise_attention, fitting, {"block_size": size}, got="float")
    yield from case(ja.blockwise_attention, fitting, {"parameters": (ints(4),)}, "parameters", "int32")
    yield from case(ja.blockwise_attention, fitting, {"queries": floats(1, 3, 4)}, "keys", "[2]")
    for score in (ja.dot_score, ja.scaled_dot_score):
        for features in (1, 5):
            wrong = {"keys": floats(2, 5, features), "score": score}
            yield from case(ja.blockwise_attention, fitting, wrong, got=str(features))
    empty = {"queries": floats(2, 3, 0), "keys": floats(2, 5, 0)}
    yield from case(ja.scaled_dot_score, {}, empty)
    yield from case(ja.blockwise_attention, fitting, empty | {"score": ja.scaled_dot_score})
    fitting = {"x": floats(2, 3), "keep_mask": bools(2, 3), "rate": 0.5}
    yield from each(ja.dropout, fitting, rate=[1.0, -0.1], x=[ints(2, 3)], keep_mask=[bools(3), ints(2, 3)])


def recurrent_step(step, gates):
    return lambda carry, projected: step(carry, projected, floats(3, gates * 3))


def recurrence():
    for step, gates, parts in ((ja.lstm_step, 4, 2), (ja.gru_step, 3, 1)):
        carry, other = (((floats(rows, 3),) * 2) if parts == 2 else floats(rows, 3) for rows in (2, 3))
        fitting = {"carry": carry, "projected": floats(2, gates * 3), "kernel_hh": floats(3, gates * 3)}
        wrong = {"projected": [floats(2, gates * 4), floats(1, gates * 3), ints(2, gates * 3)]}
        wrong |= {"kernel_hh": [floats(4, gates * 3)], "bias_hh": [floats(1), ints(gates * 3)]}
        yield from each(step, fitting, **wrong)
        fitting = {"step": recurrent_step(step, gates), "carry": carry, "inputs": floats(2, 5, gates * 3)}
        wrong = {"inputs": [floats(gates * 3)], "valid_lens": [ints(3), ints(2, 5), bools(2)]}
        yield from each(ja.unroll, fitting, **wrong)
        yield from case(ja.unroll, fitting, {"inputs": floats(2, 5, gates * 4)}, "projected", str([2, gates * 4]))
        yield from case(ja.unroll, fitting, {"carry": other}, "projected", str([2, gates * 3]))
    fitting = {"projected": floats(2, 12), "kernel_hh": floats(3, 12)}
    yield from case(ja.lstm_step, fitting, {"carry": (floats(2, 3), floats(1, 3))}, "c", "[1, 3]")


def losses_and_positions():
    fitting = {"logits": floats(2, 3, 4), "labels": ints(2, 3)}
    wrong = {"valid_lens": [ints(3), ints(2, 3), bools(2)], "mask": [ints(2, 3), bools(2, 4)]}
    wrong |= {"labels": [ints(2, 4), floats(2, 3)], "logits": [ints(2, 3, 4)]}
    yield from each(ja.masked_cross_entropy, fitting, **wrong, reduction=["mean"], label_smoothing=[1.5])
    yield from case(ja.masked_cross_entropy, {}, {"logits": floats(4), "labels": ints()})
    fitting = {"features": floats(2, 3, 5), "kernel": floats(5, 4), "bias": floats(4), "labels": ints(2, 3)}
    fitting |= {"weights": floats(2, 3)}
    wrong = {"features": [ints(2, 3, 5)], "kernel": [floats(4, 5)], "weights": [floats(2, 4), ints(2, 3)]}
    wrong |= {"labels": [ints(2, 4), floats(2, 3)], "label_smoothing": [1.5]}
    yield from each(ja.projected_cross_entropy, fitting, **wrong)
    yield from case(ja.projected_cross_entropy, fitting, {"bias": floats(5)}, "kernel", "[5, 4]")
    yield from each(ja.sinusoidal_positions, {"length": 3, "num_features": 4}, length=[-1], num_features=[0])


# Modules


def initialise(kind):
    """A function of settings and inputs that builds the module and initialises it with the inputs."""

    def call(settings=None, **inputs):
        return kind(**settings or {}).init(jax.random.key(0), **inputs)

    return call


def with_settings(call, arguments, settings, **wrong):
    """Cases from names of settings to lists of wrong values."""
    for name, values in wrong.items():
        for value in values:
            yield call, arguments, {"settings": settings | {name: value}}, name, str(value)


ATTENTIONS = {
    ja.AdditiveAttention: {"num_hiddens": 4},
    ja.DotProductAttention: {},
    ja.BilinearAttention: {},
    ja.GaussianAttention: {},
    ja.MultiHeadAttention: {"num_hiddens": 4, "num_heads": 2},
}
INPUTS = {"queries": floats(2, 3, 4), "keys": floats(2, 5, 4), "values": floats(2, 5, 4)}


def attention_modules():
    for kind, settings in ATTENTIONS.items():
        call, fitting = initialise(kind), INPUTS | {"settings": settings}
        wrong = {"queries": [floats(1, 3, 4), floats(3, 4), floats(4), ints(2, 3, 4)], "keys": [ints(2, 5, 4)]}
        wrong |= {"values": [floats(2, 4, 4), ints(2, 5, 4)], "valid_lens": [ints(3), bools(2)]}
        yield from each(call, fitting, **wrong, mask=[ints(2, 3, 5), bools(2, 3, 4)], keep_mask=[bools(2, 3, 4)])
        yield from case(call, fitting, {"keys": floats(1, 5, 4)}, "queries", "[2, 3, 4]")
        yield from with_settings(call, INPUTS, settings, dropout=[1.0, -0.1], empty_row=["nan"], form=["flash"])
    yield from with_settings(initialise(ja.GaussianAttention), INPUTS, {}, sigma=[0.0])
    for heads in (0, 3):
        settings = {"settings": {"num_hiddens": 4, "num_heads": heads}}
        yield from case(initialise(ja.MultiHeadAttention), INPUTS, settings, "num_heads|num_hiddens", str(heads))


def apply_cell(kind):
    """A function of settings and inputs that applies the network to the inputs; its weights take 3 features."""

    def call(settings=None, **inputs):
        module = kind(**{"num_hiddens": 4, "num_layers": 2} | (settings or {}))
        return module.apply(module.init(jax.random.key(0), jnp.zeros((2, 5, 3))), **inputs)

    return call


def networks():
    fitting = {"inputs": floats(2, 5, 3)}
    for kind in (ja.LSTM, ja.GRU):
        call = apply_cell(kind)

        def state(array, lstm=kind is ja.LSTM):
            return (array, array) if lstm else array

        states = [floats(2, 3, 4), floats(2, 1, 4), floats(2, 2, 5), floats(1, 2, 4), ints(2, 2, 4)]
        wrong = {"inputs": [floats(3), ints(2, 5, 3)], "valid_lens": [ints(3), ints(2, 5), bools(2)]}
        wrong |= {"keep_masks": [bools(2, 1, 4, 4), bools(2, 2, 5, 4), floats(2, 1, 5, 4)]}
        yield from each(call, fitting, **wrong, initial_state=map(state, states))
        yield from case(call, {}, {"inputs": floats(2, 5, 4)}, got="4")
        other_cell = state(floats(2, 2, 4), lstm=kind is not ja.LSTM)
        yield from case(call, fitting, {"initial_state": other_cell}, got="")
        yield from each(call, fitting | {"settings": {"num_layers": 1}}, keep_masks=[bools(2, 1, 5, 4)])
        both = fitting | {"settings": {"bidirectional": True}}
        yield from each(call, both, initial_state=[state(floats(2, 2, 4))])
        yield from with_settings(call, fitting, {}, num_hiddens=[0], num_layers=[0], dropout=[1.0, -0.1])


def embeddings():
    fitting = {"settings": {"d_model": 4, "vocab_size": 7}}
    yield from each(initialise(ja.Embeddings), fitting, tokens=[floats(2, 3), bools(2, 3)])
    call, fitting = initialise(ja.PositionalEncoding), {"x": floats(2, 3, 4), "settings": {"d_model": 4}}
    wrong_masks = [bools(3, 4), ints(2, 3, 4)]
    yield from each(call, fitting, x=[floats(2, 3, 5), floats(4), ints(2, 3, 4)], keep_mask=wrong_masks)
    yield from case(call, fitting, {"settings": {"d_model": 4, "max_len": 2}}, "x", "3")
    yield from with_settings(call, fitting, {"d_model": 4}, dropout=[1.0])


# Models

SIZES = {"vocab_size": N, "embed_size": 3, "num_hiddens": H, "num_layers": 2}


def encode(settings=None, *, tokens, valid_lens=None, keep_masks=None):
    return ja.Seq2SeqEncoder(**SIZES | (settings or {})).init(
        jax.random.key(0), tokens, valid_lens, keep_masks=ja.EncoderKeepMasks(keep_masks)
    )


def decode(
    settings=None, *, outputs, state, targets, valid_lens=None, mask=None, layers=None, attention=None, tokens=None
):
    """Prepare the memory, then take one step if there are tokens for it, else decode the targets."""

    def run(module):
        memory = module.prepare(ja.EncoderOutput(outputs, state), valid_lens, mask)
        if tokens is not None:
            return module.step(tokens, module.initial_state(memory), memory)
        return module(targets, memory, keep_masks=ja.DecoderKeepMasks(layers, attention))

    return ja.Seq2SeqAttentionDecoder(**SIZES | (settings or {})).init(jax.random.key(0), method=run)


def translate(encoder=None, *, sources, targets, source_lens=None):
    module = ja.EncoderDecoder(ja.Seq2SeqEncoder(**SIZES | (encoder or {})), ja.Seq2SeqAttentionDecoder(**SIZES))
    return module.init(jax.random.key(0), sources, targets, source_lens)


def encoded(layers=2, features=H, parts=1, batch=B):
    """What an encoder of one direction returns."""
    state = (floats(layers, batch, features),) * parts
    return {"outputs": floats(B, T, features), "state": state if parts == 2 else state[0]}


TOKENS, ENCODED = {"tokens": ints(B, T)}, {**encoded(), "targets": ints(B, 3)}
SENTENCES = {"sources": ints(B, T), "targets": ints(B, 3)}
THROUGH = TOKENS | {"settings": {"stop_at_length": False}}


def models():
    wrong = {"tokens": [ints(), floats(B, T), bools(B, T)], "valid_lens": [ints(3), ints(B, T), bools(B)]}
    yield from each(encode, TOKENS, **wrong, keep_masks=[bools(B, 2, T, H), floats(B, 1, T, H)])
    yield from each(encode, THROUGH, valid_lens=[ints(3), bools(B)])
    for call, fitting, settings in (
        (encode, TOKENS, {}),
        (decode, ENCODED, {}),
        (decode, ENCODED, {"attention": "none"}),
    ):
        wrong = {"cell": ["rnn"], "num_layers": [0], "num_hiddens": [0], "dropout": [1.0, -0.5]}
        yield from with_settings(call, fitting, settings, **wrong)
    yield from case(decode, ENCODED, {"settings": {"input_feeding": True}}, "input_feeding", "previous")
    yield from case(decode, ENCODED, {"settings": {"tie_embeddings": True}}, "tie_embeddings", "3 and 4")
    yield from with_settings(decode, ENCODED, {}, attention=["concat"], query=["next"])
    wrong = {"outputs": [floats(T, H), ints(B, T, H)], "state": [floats(B, H)]}
    wrong |= {"valid_lens": [ints(3), ints(B, 1), bools(B)], "tokens": [ints(3), ints(B, 1), floats(B)]}
    wrong |= {"mask": [ints(B, 1, T), bools(B, 1, T + 1), bools(B, 3, T)]}
    wrong |= {"targets": [ints(B), ints(B, 3, 1), ints(3, 3), floats(B, 3)]}
    yield from each(decode, ENCODED, **wrong)
    for features in (H - 1, H + 1):
        yield from case(decode, ENCODED, {"outputs": floats(B, T, features)}, "state", "[2, 2, 4]")
    yield from case(decode, ENCODED, encoded(batch=3), "state", "[2, 3, 4]")
    for layers in (bools(B, 1, 4, H), bools(B, 2, 3, H), floats(B, 1, 3, H)):
        yield from case(decode, ENCODED, {"layers": layers}, "keep_masks")
    for attention in (bools(B, 3, T + 1), ints(B, 3, T)):
        yield from case(decode, ENCODED, {"attention": attention}, "keep_masks")
    yield from case(translate, SENTENCES, {"sources": ints(T)}, "outputs|sources", "]")
    yield from case(translate, SENTENCES, {"sources": floats(B, T)}, "tokens|sources")
    for lens in (ints(3), bools(B)):
        yield from case(translate, SENTENCES, {"source_lens": lens}, "valid_lens|source_lens")
    yield from each(translate, SENTENCES, targets=[ints(3, 3), floats(B, 3)])


# Search

SEARCH = {"state": floats(3, 2), "table": floats(6), "bos": 1, "eos": 2, "max_len": 5, "batch_size": 3}
NOISE = {"noise": floats(3, 1, 5, 6)}


def over_a_table(search):
    """The search of a model whose next token depends on nothing; `axes` are those of the step's log_probs."""

    def call(*, state, table, axes=2, attends=True, **options):
        def step(tokens, state, memory):
            rows = tokens[:, None] * 0 + table
            weights = rows[:, :4].astype(jnp.float32) if attends else None
            return {1: rows[0], 2: rows, 3: rows[None]}[axes], state, weights

        return search(step, state, None, **options)

    return call


def searches():
    for search in (greedy_search, beam_search, sample_search):
        call, fitting = over_a_table(search), SEARCH | (NOISE if search is sample_search else {})
        wrong = {"batch_size": [0], "max_len": [0], "bos": [6, -1], "eos": [6, -1], "min_len": [6, -1]}
        wrong |= {"no_repeat_ngram": [0], "prefix": [ints(3, 6), ints(2, 4), ints(3), floats(3, 4)]}
        yield from each(call, fitting, **wrong)
        for name in ("bos", "eos", "max_len", "batch_size", "min_len", "no_repeat_ngram"):
            yield from case(call, fitting, {name: 2.0}, got="float")
        yield from each(call, fitting | {"prefix": ints(3, 4)}, prefix_lens=[ints(2), floats(3)])
        yield from case(call, fitting, {"prefix_lens": ints(3)}, None, "None")
        yield from case(call, fitting, {"state": floats(4, 2)}, "state", ", 2]")
        yield from case(call, fitting, {"state": floats()}, "state", "]")
        yield from case(call, fitting, {"axes": 1}, "step", "[6]")
        yield from case(call, fitting, {"axes": 3}, "step", ", 6]")
        yield from case(call, fitting, {"table": ints(6)}, "step", "int32")
    call = over_a_table(beam_search)
    wrong = {"beam_size": [0], "length_penalty": [-1.0, np.nan], "coverage_penalty": [np.inf], "length_norm": ["mean"]}
    yield from each(call, SEARCH, **wrong, source_lens=[ints(2)])
    yield from case(call, SEARCH, {"coverage_penalty": 0.1, "attends": False}, None, "None")
    call = over_a_table(sample_search)
    wrong = {"num_samples": [0], "temperature": [0.0, -1.0, np.nan, np.inf], "top_k": [0], "top_p": [0.0, 1.1]}
    yield from each(call, SEARCH | NOISE, **wrong, noise=[ints(3, 1, 5, 6)])
    yield from case(call, SEARCH | NOISE, {"temperature": 1j}, got="complex")
    yield from case(call, SEARCH | NOISE, {"num_samples": 2}, "noise", "[3, 1, 5, 6]")
    yield from case(call, SEARCH, {"key": jax.random.PRNGKey(0)}, "key", "uint32")
    yield from case(call, SEARCH, {"key": jax.random.split(jax.random.key(0), 2)}, "key", "[2]")
    yield from case(ensemble, {}, {"steps": ()}, None, "0")


SOURCES = (masks_and_softmaxes, scores, attention, recurrence, losses_and_positions, attention_modules, networks)
SOURCES += (embeddings, models, searches)


@pytest.mark.parametrize("source", SOURCES)
def test_wrong_arguments_are_refused(source):
    for refused in source():
        refuses(*refused)


@pytest.mark.parametrize("sizes", [(-1,), (2, -1)])
def test_a_negative_number_of_positions_is_refused(sizes):
    with pytest.raises((TypeError, ValueError), match=r"nonnegative|at least 0"):
        ja.causal_mask(*sizes)


def test_key_and_noise_are_given_one_at_a_time():
    for wrong in ({}, NOISE | {"key": jax.random.key(0)}):
        with pytest.raises(ValueError, match="either key or noise must be given, and not both"):
            over_a_table(sample_search)(**SEARCH, **wrong)


def test_inputs_of_another_size_than_the_weights_are_refused_in_flax_s_words():
    module = ja.AdditiveAttention(6)
    params = jax.eval_shape(module.init, jax.random.key(0), floats(2, 3, 4), floats(2, 3, 5), floats(2, 3, 5))
    with pytest.raises(Exception, match="shape"):
        jax.eval_shape(module.apply, params, *[floats(2, 3, 5)] * 3)


@pytest.mark.parametrize(
    ("call", "settings", "given", "message"),
    [
        (decode, {}, encoded(layers=1), "layers.*got 1 and 2"),
        (decode, {}, encoded(layers=3), "layers.*got 3 and 2"),
        (decode, {"bridge": True}, encoded(layers=1), "layers.*got 1 and 2"),
        (decode, {}, encoded(parts=2), "cell='gru'.*must have 1 part.*got 2"),
        (decode, {"cell": "lstm"}, encoded(), "cell='lstm'.*must have 2 parts; got 1"),
        (decode, {}, encoded(features=H + 1), "5 features.*num_hiddens.*4.*bridge=True"),
        (decode, {}, {"tokens": ints(2 * B)}, "4.*2"),
        (translate, {"num_layers": 1}, {}, "layers.*got 1 and 2"),
        (translate, {"cell": "lstm"}, {}, "cell='gru'.*got 2"),
        (translate, {"num_hiddens": H + 1}, {}, "5 features.*bridge=True"),
        (translate, {"bidirectional": True}, {}, "8 features.*bridge=True"),
    ],
)
def test_an_encoder_or_a_state_that_does_not_fit_is_refused(call, settings, given, message):
    with pytest.raises((TypeError, ValueError), match=message):
        jax.eval_shape(partial(call, settings), **(ENCODED if call is decode else SENTENCES) | given)


# Values, which are seen outside of a jit only

OUT_OF_RANGE: list[tuple[Callable, dict, str, int, int]] = [  # call, arguments, name, size, the first wrong number
    (ja.length_mask, {"size": 5}, "valid_lens", 2, 6),
    (ja.attention_mask, {"shape": (2, 3, 5)}, "valid_lens", 2, 6),
    (ja.sequence_mask, {"X": floats(2, 5)}, "valid_lens", 2, 6),
    (ja.masked_softmax, {"scores": floats(2, 3, 5)}, "valid_lens", 2, 6),
    (ja.masked_log_softmax, {"scores": floats(2, 3, 5)}, "valid_lens", 2, 6),
    (ja.attend, {"scores": floats(2, 3, 5), "values": floats(2, 5, 4)}, "valid_lens", 2, 6),
    (ja.attention, {"query": floats(2, 3, 4), "key": floats(2, 5, 4), "value": floats(2, 5, 4)}, "valid_lens", 2, 6),
    (ja.blockwise_attention, INPUTS | {"score": ja.dot_score}, "valid_lens", 2, 6),
    (ja.masked_cross_entropy, {"logits": floats(2, 5, 4), "labels": ints(2, 5)}, "valid_lens", 2, 6),
    *((initialise(kind), INPUTS | {"settings": ATTENTIONS[kind]}, "valid_lens", 2, 6) for kind in ATTENTIONS),
    *((apply_cell(kind), {"inputs": floats(2, 5, 3)}, "valid_lens", 2, 6) for kind in (ja.LSTM, ja.GRU)),
    *(
        (call, fitting, "valid_lens", 2, 6)
        for call, fitting in ((encode, TOKENS), (encode, THROUGH), (decode, ENCODED))
    ),
    (initialise(ja.Embeddings), {"settings": {"d_model": 4, "vocab_size": 7}}, "tokens", 2, 7),
    (encode, {}, "tokens", (B, T), N),
    (decode, ENCODED, "targets", (B, 3), N),
    (decode, ENCODED, "tokens", (B,), N),
    (translate, SENTENCES, "sources", (B, T), N),
    (translate, SENTENCES, "targets", (B, 3), N),
    (over_a_table(greedy_search), SEARCH, "prefix", (3, 2), 6),
    (over_a_table(greedy_search), SEARCH | {"prefix": ints(3, 2)}, "prefix_lens", 3, 3),
    (over_a_table(beam_search), SEARCH, "source_lens", 3, 5),
]


@pytest.mark.parametrize(("call", "arguments", "name", "shape", "above"), OUT_OF_RANGE)
def test_lengths_and_ids_out_of_range_are_refused_outside_of_a_jit(call, arguments, name, shape, above):
    for wrong in (above, -1):
        values = np.ones(shape, np.int32)
        values.flat[0] = wrong
        refuses(call, arguments, {name: values}, "tokens|sources" if name == "sources" else name, str(wrong), False)


LABELS = [
    (ja.masked_cross_entropy, {"logits": floats(2, 3, 4)}, "labels", (2, 3), 4),
    (
        ja.projected_cross_entropy,
        {"features": floats(2, 3, 5), "kernel": floats(5, 4), "bias": floats(4), "weights": floats(2, 3)},
        "labels",
        (2, 3),
        4,
    ),
]


@pytest.mark.parametrize(("call", "arguments", "name", "shape", "above"), OUT_OF_RANGE + LABELS)
def test_integers_that_do_not_fit_jax_s_dtype_and_masked_arrays_are_refused(call, arguments, name, shape, above):
    named = "(tokens|sources)" if name == "sources" else name
    with pytest.raises(ValueError, match=f"{named} must fit int32, .*; got 4294967297"):
        call(**arguments | {name: np.full(shape, 2**32 + 1)})  # 1 as int32
    with pytest.raises(TypeError, match=f"{named} must not be a NumPy masked array"):
        call(**arguments | {name: np.ma.masked_array(np.ones(shape, np.int32), True)})


def test_scores_values_and_masks_that_are_masked_arrays_are_refused():
    arguments = {"scores": floats(2, 3, 5), "values": floats(2, 5, 4), "mask": bools(2, 3, 5)}
    for name, array in arguments.items():
        for wrong in (np.ma.masked_array(array, True), [np.ma.masked_array(part, True) for part in array]):
            with pytest.raises(TypeError, match=f"{name} must not be a NumPy masked array"):
                ja.attend(**arguments | {name: wrong})


def test_a_traced_sigma_or_temperature_is_not_read():
    queries, keys = floats(2, 3, 4), 2 * floats(2, 5, 4)
    for score in (ja.gaussian_score, ja.cosine_score):
        np.testing.assert_allclose(jax.jit(score)(queries, keys, 0.5), score(queries, keys, 0.5), rtol=1e-6)
        assert jax.jit(score)(queries, keys, -1.0).shape == (2, 3, 5)


@pytest.mark.parametrize("temperature", [0.0, -1.0, np.nan, 1j])
def test_a_module_refuses_a_first_temperature_that_is_not_above_0(temperature):
    with pytest.raises((TypeError, ValueError), match=r"temperature must be .*; got "):
        initialise(ja.CosineAttention)(**INPUTS, settings={"temperature": temperature})


LISTS = [
    *(
        (initialise(kind), INPUTS | {"settings": ATTENTIONS[kind]}, name)
        for kind in ATTENTIONS
        for name in ("queries", "keys")
    ),
    *((apply_cell(kind), {"inputs": floats(2, 5, 3)}, "inputs") for kind in (ja.LSTM, ja.GRU)),
    (apply_cell(ja.GRU), {"inputs": floats(2, 5, 3), "keep_masks": bools(2, 1, 5, 4)}, "keep_masks"),
    (encode, TOKENS, "tokens"),
    (encode, TOKENS | {"valid_lens": ints(B)}, "valid_lens"),
    (decode, ENCODED, "targets"),
    (decode, ENCODED, "outputs"),
    (translate, SENTENCES, "sources"),
    (ja.dot_score, PAIR, "keys"),
]


@pytest.mark.parametrize(("call", "arguments", "name"), LISTS)
def test_a_list_in_the_place_of_an_array_is_refused(call, arguments, name):
    named = "(tokens|sources)" if name == "sources" else name
    with pytest.raises(TypeError, match=f"{named} must be an array; got a list(\n|$)"):
        call(**arguments | {name: arguments[name].tolist()})


def test_a_list_in_the_place_of_an_encoder_s_state_is_refused():
    with pytest.raises(ValueError, match=r"state must be \[.*; got \[\]"):
        decode(**ENCODED | {"state": ENCODED["state"].tolist()})


def test_with_x64_integers_of_64_bits_fit(x64):
    np.testing.assert_array_equal(ja.sequence_mask(np.full((1, 2), 2**40), np.array([1])), [[2**40, 0]])


def test_a_length_that_is_nan_is_refused_outside_of_a_jit():
    refuses(ja.length_mask, {"size": 5}, {"valid_lens": np.array([np.nan, 1.0])}, got="nan", traced=False)
