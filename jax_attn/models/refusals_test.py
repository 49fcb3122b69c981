"""What encoder, decoder and translator refuse: wrong shapes, ranks, dtypes and settings, and values out of range."""

import jax
import numpy as np
import pytest

from jax_attn import DecoderKeepMasks, EncoderDecoder, EncoderOutput, Seq2SeqAttentionDecoder, Seq2SeqEncoder

BATCH, TIME, HIDDEN, VOCAB = 2, 5, 4, 7
SIZES = {"vocab_size": VOCAB, "embed_size": 3, "num_hiddens": HIDDEN, "num_layers": 2}


def floats(*shape):
    return np.ones(shape, np.float32)


def ints(*shape):
    return np.ones(shape, np.int32)


def bools(*shape):
    return np.ones(shape, bool)


def encode(settings=None, *, tokens, valid_lens=None, keep_masks=None):
    module = Seq2SeqEncoder(**SIZES | (settings or {}))
    return module.init(jax.random.key(0), tokens, valid_lens, keep_masks=keep_masks)


def decode(
    settings=None,
    *,
    outputs,
    state,
    targets,
    valid_lens=None,
    mask=None,
    keep_layers=None,
    keep_attention=None,
    tokens=None,
):
    """Prepare the memory, then take one step if there are tokens for it, else decode the targets."""

    def run(module):
        memory = module.prepare(EncoderOutput(outputs, state), valid_lens, mask)
        if tokens is not None:
            return module.step(tokens, module.initial_state(memory), memory)
        return module(targets, memory, keep_masks=DecoderKeepMasks(keep_layers, keep_attention))

    return Seq2SeqAttentionDecoder(**SIZES | (settings or {})).init(jax.random.key(0), method=run)


def translate(encoder=None, *, sources, targets, source_lens=None):
    decoder = Seq2SeqAttentionDecoder(**SIZES)
    module = EncoderDecoder(Seq2SeqEncoder(**SIZES | (encoder or {})), decoder)
    return module.init(jax.random.key(0), sources, targets, source_lens)


def encoded(layers=2, features=HIDDEN, parts=1, batch=BATCH):
    """What an encoder of one direction returns."""
    state = tuple(floats(layers, batch, features) for _ in range(parts))
    return {"outputs": floats(BATCH, TIME, features), "state": state if parts == 2 else state[0]}


TOKENS = {"tokens": ints(BATCH, TIME)}
ENCODED = {**encoded(), "targets": ints(BATCH, 3)}
SENTENCES = {"sources": ints(BATCH, TIME), "targets": ints(BATCH, 3)}
WRONG_SETTINGS = [("cell", "rnn"), ("num_layers", 0), ("num_hiddens", 0), ("dropout", 1.0), ("dropout", -0.5)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens", ints()),
        ("tokens", floats(BATCH, TIME)),
        ("tokens", bools(BATCH, TIME)),
        ("valid_lens", ints(3)),
        ("valid_lens", ints(BATCH, TIME)),
        ("valid_lens", bools(BATCH)),
        ("keep_masks", bools(2, BATCH, TIME, HIDDEN)),
        ("keep_masks", floats(1, BATCH, TIME, HIDDEN)),
    ],
)
def test_the_encoder_refuses(refuses, name, value):
    refuses(encode, TOKENS, {name: value})


@pytest.mark.parametrize("lens", [ints(3), bools(BATCH)])
def test_the_encoder_refuses_wrong_lengths_that_it_does_not_use(refuses, lens):
    refuses(encode, TOKENS | {"settings": {"stop_at_length": False}}, {"valid_lens": lens})


@pytest.mark.parametrize(("name", "value"), WRONG_SETTINGS)
@pytest.mark.parametrize(
    ("call", "arguments", "settings"),
    [(encode, TOKENS, {}), (decode, ENCODED, {}), (decode, ENCODED, {"attention": "none"})],
)
def test_wrong_settings_of_both_are_refused(refuses, call, arguments, settings, name, value):
    refuses(call, arguments, {"settings": settings | {name: value}}, name, str(value))


@pytest.mark.parametrize(
    ("settings", "argument", "got"),
    [
        ({"input_feeding": True}, "input_feeding", "previous"),
        ({"tie_embeddings": True}, "tie_embeddings", "3 and 4"),
        ({"attention": "concat"}, "attention", "concat"),
        ({"query": "next"}, "query", "next"),
    ],
)
def test_the_decoder_refuses_settings(refuses, settings, argument, got):
    refuses(decode, ENCODED, {"settings": settings}, argument, got)


@pytest.mark.parametrize(
    "wrong",
    [
        [{"outputs": floats(TIME, HIDDEN)}],
        [{"outputs": ints(BATCH, TIME, HIDDEN)}],
        [{"outputs": floats(BATCH, TIME, HIDDEN + 1)}, "state", "[2, 2, 4]"],
        [{"outputs": floats(BATCH, TIME, HIDDEN - 1)}, "state", "[2, 2, 4]"],
        [encoded(batch=3), "state", "[2, 3, 4]"],
        [{"state": floats(BATCH, HIDDEN)}],
        [{"valid_lens": ints(3)}],
        [{"valid_lens": ints(BATCH, 1)}],
        [{"valid_lens": bools(BATCH)}],
        [{"mask": ints(BATCH, 1, TIME)}],
        [{"mask": bools(BATCH, 1, TIME + 1)}],
        [{"mask": bools(BATCH, 3, TIME)}],
        [{"targets": ints(BATCH)}],
        [{"targets": ints(BATCH, 3, 1)}],
        [{"targets": ints(3, 3)}],
        [{"targets": floats(BATCH, 3)}],
        [{"keep_layers": bools(4, 1, BATCH, HIDDEN)}, "keep_masks"],
        [{"keep_layers": bools(3, 2, BATCH, HIDDEN)}, "keep_masks"],
        [{"keep_layers": floats(3, 1, BATCH, HIDDEN)}, "keep_masks"],
        [{"keep_attention": bools(3, BATCH, TIME + 1)}, "keep_masks"],
        [{"keep_attention": ints(3, BATCH, TIME)}, "keep_masks"],
        [{"tokens": ints(3)}],
        [{"tokens": ints(BATCH, 1)}],
        [{"tokens": floats(BATCH)}],
    ],
)
def test_the_decoder_refuses(refuses, wrong):
    refuses(decode, ENCODED, *wrong)


@pytest.mark.parametrize(
    ("settings", "given", "message"),
    [
        ({}, encoded(layers=1), "layers.*got 1 and 2"),
        ({}, encoded(layers=3), "layers.*got 3 and 2"),
        ({"bridge": True}, encoded(layers=1), "layers.*got 1 and 2"),
        ({}, encoded(parts=2), "cell='gru'.*must have 1 part.*got 2"),
        ({"cell": "lstm"}, encoded(), "cell='lstm'.*must have 2 parts; got 1"),
        ({}, encoded(features=HIDDEN + 1), "5 features.*num_hiddens.*4.*bridge=True"),
    ],
)
def test_the_decoder_refuses_an_encoder_that_does_not_fit(own_checks, settings, given, message):
    with pytest.raises(ValueError, match=message):
        decode(settings, **ENCODED | given)


def test_the_decoder_refuses_a_state_of_fewer_rows_than_tokens(own_checks):
    with pytest.raises((TypeError, ValueError), match=r"4.*2"):
        decode(**ENCODED, tokens=ints(2 * BATCH))


@pytest.mark.parametrize(
    "wrong",
    [
        [{"sources": ints(TIME)}, "outputs|sources", "]"],
        [{"sources": floats(BATCH, TIME)}, "tokens|sources"],
        [{"source_lens": ints(3)}, "valid_lens|source_lens"],
        [{"source_lens": bools(BATCH)}, "valid_lens|source_lens"],
        [{"targets": ints(3, 3)}],
        [{"targets": floats(BATCH, 3)}],
    ],
)
def test_the_translator_refuses(refuses, wrong):
    refuses(translate, SENTENCES, *wrong)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ({"num_layers": 1}, "layers.*got 1 and 2"),
        ({"cell": "lstm"}, "cell='gru'.*got 2"),
        ({"num_hiddens": HIDDEN + 1}, "5 features.*bridge=True"),
        ({"bidirectional": True}, "8 features.*bridge=True"),
    ],
)
def test_the_translator_refuses_an_encoder_that_does_not_fit(own_checks, encoder, message):
    with pytest.raises(ValueError, match=message):
        translate(encoder, **SENTENCES)


@pytest.mark.parametrize("wrong", [6, -1])
@pytest.mark.parametrize(
    ("call", "arguments"),
    [(encode, TOKENS), (encode, TOKENS | {"settings": {"stop_at_length": False}}), (decode, ENCODED)],
)
def test_lengths_out_of_range_are_refused_outside_a_jit(refuses, call, arguments, wrong):
    refuses(call, arguments, {"valid_lens": np.array([wrong, 1], np.int32)}, got=str(wrong), traced=False)


@pytest.mark.parametrize("wrong", [VOCAB, -1])
@pytest.mark.parametrize(
    ("call", "arguments", "name", "shape"),
    [
        (encode, {}, "tokens", (BATCH, TIME)),
        (decode, ENCODED, "targets", (BATCH, 3)),
        (decode, ENCODED, "tokens", (BATCH,)),
        (translate, SENTENCES, "sources", (BATCH, TIME)),
        (translate, SENTENCES, "targets", (BATCH, 3)),
    ],
)
def test_ids_outside_the_vocabulary_are_refused_outside_a_jit(refuses, call, arguments, name, shape, wrong):
    ids = np.full(shape, wrong, np.int32)
    argument = "tokens|sources" if name == "sources" else name
    refuses(call, arguments, {name: ids}, argument, str(wrong), traced=False)
