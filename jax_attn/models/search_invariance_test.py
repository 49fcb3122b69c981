"""A sentence's translations do not depend on its batch: the same bits at one shape, the same tokens at any shape."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import (
    EncoderDecoder,
    Seq2SeqAttentionDecoder,
    Seq2SeqEncoder,
    TransformerDecoder,
    TransformerEncoder,
    beam_search,
    greedy_search,
    sample_search,
)

SENTENCES, LONGEST, VOCAB, BOS, EOS, MAX_LEN = 32, 11, 40, 1, 2, 12
RNG = np.random.default_rng(23)
LENGTHS = RNG.integers(0, LONGEST + 1, SENTENCES)
SOURCES = np.where(np.arange(LONGEST) < LENGTHS[:, None], RNG.integers(3, VOCAB, (SENTENCES, LONGEST)), 0)
PREFIX, PREFIX_LENS = RNG.integers(3, VOCAB, (SENTENCES, 3)), RNG.integers(0, 4, SENTENCES)
KEYS = jax.random.split(jax.random.key(0), SENTENCES)

RECURRENT = EncoderDecoder(
    Seq2SeqEncoder(VOCAB, 16, 16, bidirectional=True),
    Seq2SeqAttentionDecoder(VOCAB, 16, 16, bridge=True),
)
TRANSFORMER = EncoderDecoder(TransformerEncoder(VOCAB, 16, 32), TransformerDecoder(VOCAB, 16, 32))


def greedy(step, state, memory, lens, extra, **ends):
    return greedy_search(step, state, memory, **ends)


def beam(step, state, memory, lens, extra, **ends):
    return beam_search(step, state, memory, beam_size=5, length_penalty=1.0, **ends)


def everything(step, state, memory, lens, extra, **ends):
    return beam_search(
        step,
        state,
        memory,
        beam_size=5,
        length_penalty=0.6,
        length_norm="gnmt",
        coverage_penalty=0.2,
        source_lens=lens,
        min_len=6,
        no_repeat_ngram=2,
        prefix=extra["prefix"],
        prefix_lens=extra["prefix_lens"],
        **ends,
    )


def sampled(step, state, memory, lens, extra, **ends):
    return sample_search(step, state, memory, key=extra["key"], num_samples=2, top_k=10, top_p=0.9, **ends)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


each_search = pytest.mark.parametrize(
    ("model", "setting"),
    [
        (RECURRENT, everything),
        (RECURRENT, sampled),  # shares its loop with greedy search
        (TRANSFORMER, everything),
        slow(RECURRENT, greedy),
        slow(RECURRENT, beam),
        slow(TRANSFORMER, sampled),
        slow(TRANSFORMER, greedy),
        slow(TRANSFORMER, beam),
    ],
    ids=lambda value: type(value.decoder).__name__ if isinstance(value, EncoderDecoder) else value.__name__,
)


@cache
def parameters(model):
    """Return random parameters, sharpened so that sentences have many lengths and no ties."""
    token = jnp.zeros((1, LONGEST), jnp.int32)
    params = jax.jit(model.init)(jax.random.key(4), token, token)
    dense = params["params"]["decoder"]["dense"]
    dense["kernel"] *= 4.0
    if model is TRANSFORMER:  # else hardly any of its sentences ends before the longest
        dense["bias"] = dense["bias"].at[EOS].add(5.0)
    return params


@cache
def program(model, setting):
    @jax.jit
    def run(params, sources, lens, extra):
        memory = model.apply(params, sources, lens, method="encode")
        state = model.apply(params, memory, MAX_LEN, method="initial_state")
        step = partial(model.apply, params, method="step")
        return setting(step, state, memory, lens, extra, bos=BOS, eos=EOS, max_len=MAX_LEN, batch_size=sources.shape[0])

    return run


def translate(model, setting, order, batch_size, rows, width=LONGEST):
    """Translate `batch_size` sentences at a time in `rows` rows of `width`; return the results by sentence number."""
    found = {}
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        sources, lens = np.zeros((rows, width), np.int32), np.ones(rows, np.int32)
        prefix, prefix_lens = np.zeros((rows, 3), np.int32), np.zeros(rows, np.int32)
        sources[: len(chosen), :LONGEST], lens[: len(chosen)] = SOURCES[chosen], LENGTHS[chosen]
        prefix[: len(chosen)], prefix_lens[: len(chosen)] = PREFIX[chosen], PREFIX_LENS[chosen]
        keys = KEYS[np.resize(chosen, rows)]
        extra = {"prefix": prefix, "prefix_lens": prefix_lens, "key": keys}
        result = program(model, setting)(parameters(model), sources, lens, jax.tree.map(jnp.asarray, extra))
        result = jax.tree.map(np.asarray, result)
        for row, sentence in enumerate(chosen):
            own = jax.tree.map(lambda x, row=row: x[row], result)
            found[int(sentence)] = own._replace(weights=own.weights[..., :LONGEST])
    return found


@pytest.mark.usefixtures("same_bits")
@each_search
def test_at_one_shape_all_bits_are_the_same(model, setting):
    in_order = np.arange(SENTENCES)
    alone = translate(model, setting, in_order, 1, SENTENCES)
    lengths = np.concatenate([found.lengths for found in alone.values()])
    assert len(set(lengths.tolist())) > 4
    assert all(np.isfinite(found.scores).all() for found in alone.values())
    different = 0
    for batch_size, order in ((7, np.random.default_rng(7).permutation(SENTENCES)), (SENTENCES, in_order[::-1])):
        found = translate(model, setting, order, batch_size, SENTENCES)
        for sentence in range(SENTENCES):
            one, other = jax.tree.leaves(alone[sentence]), jax.tree.leaves(found[sentence])
            different += any(a.tobytes() != b.tobytes() for a, b in zip(one, other, strict=True))
    assert different == 0


@each_search
def test_at_other_shapes_the_tokens_are_the_same(model, setting):
    order = np.random.default_rng(3).permutation(SENTENCES)
    reference = translate(model, setting, np.arange(SENTENCES), SENTENCES, SENTENCES)
    found = translate(model, setting, order, 1, 1, LONGEST + 6)
    different = 0
    for sentence in range(SENTENCES):
        one, other = reference[sentence], found[sentence]
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
        if np.array_equal(one.ids, other.ids):
            np.testing.assert_allclose(one.token_scores, other.token_scores, atol=1e-5)
            np.testing.assert_allclose(one.weights, other.weights, atol=1e-5)
        else:
            different += 1
    assert different == 0  # no two hypotheses lie within 1e-5 here
