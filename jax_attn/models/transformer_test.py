import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import (
    EncoderDecoder,
    KeepMasks,
    Seq2SeqAttentionDecoder,
    Seq2SeqEncoder,
    TransformerDecoder,
    TransformerEncoder,
    beam_search,
    ensemble,
    greedy_search,
    sample_search,
)
from jax_attn.conftest import random_params
from jax_attn.models.interface import Decoder, Encoder

N, D, F = 11, 8, 6
SOURCES, LENS = jnp.array([[1, 2, 3, 4, 5], [3, 2, 0, 0, 0], [5, 0, 0, 0, 0]]), jnp.array([5, 2, 1])
TARGETS = jnp.array([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 1, 2]])
SETTINGS = {
    "the paper": {},
    "before each sublayer": {"norm": "pre", "activation": "gelu", "use_bias": False},
    "learnt positions": {"positions": "learnt", "max_len": 7, "scale_embedding": False},
    "halves, tied": {"positions": "halves", "activation": "silu", "tie_embeddings": True},
    "first layer, one head": {"alignment_layer": 0, "alignment_head": 1, "output_bias": False},
}
OF_DECODER = ("tie_embeddings", "output_bias", "alignment_layer", "alignment_head")


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@cache
def make_model(name="the paper", dtype=None, dropout=0.0):
    rates = dict.fromkeys(("dropout", "dropout_attention", "dropout_hidden"), dropout)
    settings = {"num_heads": 2, "dtype": dtype, **rates, **SETTINGS[name]}
    shared = {key: value for key, value in settings.items() if key not in OF_DECODER}
    return EncoderDecoder(TransformerEncoder(N, D, F, 1, **shared), TransformerDecoder(N, D, F, 2, **settings))


@cache
def make_params(name="the paper"):
    """Parameters of which none is zero, and whose logits differ much."""
    shapes = jax.eval_shape(make_model(name).init, jax.random.key(0), SOURCES, TARGETS, LENS)
    random = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: jnp.asarray(random.normal(0, 0.7, leaf.shape), jnp.float32), shapes)


@partial(jax.jit, static_argnames=("name", "dtype"))
def run(params, sources, targets, lens, keep_masks=None, name="the paper", dtype=None):
    """Return logits and weights by teacher forcing; masks that are given drop 3 of 10."""
    model = make_model(name, dtype, 0.0 if keep_masks is None else 0.3)
    return model.apply(params, sources, targets, lens, keep_masks=keep_masks)


def start(params, name="the paper", max_len=7):
    """Return what a search needs."""
    model = make_model(name)
    memory = model.apply(params, SOURCES, LENS, method="encode")
    state = model.apply(params, memory, max_len, method="initial_state")
    return partial(model.apply, params, method="step"), state, memory


def find(search, name="the paper", max_len=7, **options):
    """Encode and search in one program; `max_len` is that of the cache."""

    def program(params):
        return search(*start(params, name, max_len), bos=1, eos=2, max_len=7, batch_size=3, **options)

    return jax.jit(program)(make_params(name))


def close(a, b, **tolerance):
    np.testing.assert_allclose(a, b, **({"rtol": 1e-4, "atol": 1e-5} | tolerance))


# The proof against PyTorch has all settings, with a step after each token.
@pytest.mark.parametrize("name", ["the paper", *(slow(name) for name in SETTINGS if name != "the paper")])
def test_the_step_repeated_is_teacher_forcing(name):
    @jax.jit
    def steps(params):
        step, state, memory = start(params, name)

        def take(state, tokens):
            log_probs, state, weights = step(tokens, state, memory)
            return state, (log_probs, weights)

        return jax.lax.scan(take, state, TARGETS.T)[1]

    log_probs, weights = (jnp.swapaxes(x, 0, 1) for x in steps(make_params(name)))
    logits, expected = run(make_params(name), SOURCES, TARGETS, LENS, name=name)
    close(log_probs, jax.nn.log_softmax(logits))
    close(weights, expected)


@pytest.mark.parametrize("halves", [("encoder", "decoder"), ("encoder",)], ids=["all", "encoder"])
def test_the_cache_has_the_dtype_of_parameters_that_were_made_wider(x64, halves):
    wide = {half: jax.tree.map(lambda x: x.astype(jnp.float64), make_params()["params"][half]) for half in halves}
    token = TARGETS[:, :1]

    @jax.jit
    def both_ways(params):
        step, state, memory = start(params, max_len=1)
        return step(token[:, 0], state, memory)[0], make_model().apply(params, SOURCES, token, LENS)[0]

    log_probs, logits = both_ways({"params": make_params()["params"] | wide})
    assert log_probs.dtype == jnp.float64
    close(log_probs, jax.nn.log_softmax(logits[:, 0]))


BEAM, SAMPLES = partial(beam_search, beam_size=4), partial(sample_search, num_samples=4)


@pytest.mark.parametrize(
    ("name", "search", "beam_size"),
    [
        ("the paper", BEAM, 4),
        slow("learnt positions", BEAM, 4),
        slow("the paper", greedy_search, 1),
        slow("the paper", SAMPLES, 4),
    ],
    ids=["beam", "beam, learnt positions", "greedy", "samples"],
)
def test_search_over_the_cache_finds_what_teacher_forcing_says_of_its_sentences(name, search, beam_size):
    """Each hypothesis must read its own ancestors in the cache, which is not reordered with the beam."""
    key = {"key": jax.random.split(jax.random.key(0), 3)} if search is SAMPLES else {}
    found = find(search, name, **key)
    origins = {tuple(ids[:1].tolist()) for ids in found.ids.reshape(-1, 7)}
    assert beam_size == 1 or len(origins) > 1
    inputs = jnp.concatenate([jnp.ones((3, beam_size, 1), jnp.int32), found.ids[..., :-1]], -1).reshape(-1, 7)
    of_rows = np.arange(3).repeat(beam_size)
    logits, weights = run(make_params(name), SOURCES[of_rows], inputs, LENS[of_rows], name=name)
    ids, log_probs = found.ids.reshape(-1, 7, 1), jax.nn.log_softmax(logits)
    is_token = np.arange(7) < found.lengths.reshape(-1, 1)
    expected = np.where(is_token, jnp.take_along_axis(log_probs, ids, -1)[..., 0], 0)
    close(found.token_scores.reshape(-1, 7), expected)
    close(found.weights.reshape(-1, 7, 5), np.where(is_token[..., None], weights, 0))


def test_greedy_search_is_a_beam_of_one_and_a_larger_cache_changes_nothing():
    greedy, beam = find(greedy_search), find(beam_search, max_len=12, beam_size=1)
    np.testing.assert_array_equal(greedy.ids, beam.ids)
    close(greedy.token_scores, beam.token_scores)


def test_padding_reaches_neither_result_nor_gradient():
    padding = 0  # this id occurs as padding alone

    def loss(params, sources):
        logits, weights = run(params, sources, TARGETS, LENS)
        return (logits**2).mean(), (logits, weights)

    def with_table(value):
        params = jax.tree.map(lambda leaf: leaf, make_params())
        table = params["params"]["encoder"]["embedding"]["embedding"]
        params["params"]["encoder"]["embedding"]["embedding"] = table.at[padding].set(value)
        return params

    gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (_, expected), d_expected = gradients(with_table(0.0), SOURCES)
    (_, found), d_found = gradients(with_table(np.nan), SOURCES)
    jax.tree.map(np.testing.assert_array_equal, (found, d_found), (expected, d_expected))
    assert not np.any(d_found["params"]["encoder"]["embedding"]["embedding"][padding])
    longer = jnp.pad(SOURCES, ((0, 0), (0, 3)), constant_values=7)
    close(loss(make_params(), longer)[1][0], loss(make_params(), SOURCES)[1][0])


def test_a_token_changes_no_logits_before_it():
    later = TARGETS.at[:, 2].set(7)
    first, second = (run(make_params(), SOURCES, targets, LENS)[0] for targets in (TARGETS, later))
    np.testing.assert_array_equal(first[:, :2], second[:, :2])
    assert (first[:, 2:] != second[:, 2:]).any()


def test_the_first_parameters_are_those_of_the_paper_s_code():
    model = EncoderDecoder(TransformerEncoder(500, 64, 128, 1), TransformerDecoder(500, 64, 128, 1))
    params = jax.jit(model.init)(jax.random.key(0), SOURCES, TARGETS, LENS)["params"]
    close(params["encoder"]["embedding"]["embedding"].std(), 64**-0.5, rtol=0.02)
    layer = params["decoder"]["layers_0"]
    for kernel in (layer["self_attention"]["W_q"]["kernel"], layer["feed_forward"]["dense1"]["kernel"]):
        highest = (6 / sum(kernel.shape)) ** 0.5
        assert 0.95 * highest < abs(kernel).max() <= highest
    assert not layer["cross_attention"]["W_o"]["bias"].any()
    assert set(layer["feed_forward_norm"]) == {"scale", "bias"}


def test_dropout_changes_the_result_and_its_masks_can_be_drawn_before():
    model, params = make_model(dropout=0.3), make_params()
    draw = jax.jit(model.draw_keep_masks, static_argnums=(1, 2))
    keep = draw(jax.random.key(0), SOURCES.shape, TARGETS.shape)
    assert [*map(np.shape, keep.decoder)] == [
        (3, 4, 8),
        (3, 2, 3, 4, 8),
        (3, 2, 4, 6),
        (3, 2, 2, 4, 4),
        (3, 2, 2, 4, 5),
    ]
    all_kept = jax.tree.map(jnp.ones_like, keep)
    plain, _ = run(params, SOURCES, TARGETS, LENS, all_kept)
    for masks in (KeepMasks(keep.encoder, all_kept.decoder), KeepMasks(all_kept.encoder, keep.decoder)):
        assert (run(params, SOURCES, TARGETS, LENS, masks)[0] != plain).any()
    drawn = jax.jit(partial(model.apply, deterministic=False))
    one, other = (drawn(params, SOURCES, TARGETS, LENS, rngs={"dropout": jax.random.key(seed)})[0] for seed in (1, 2))
    assert (one != other).any()


def test_it_computes_in_bfloat16_with_parameters_in_float32():
    logits, _ = run(make_params(), SOURCES, TARGETS, LENS, dtype=jnp.bfloat16)
    expected, _ = run(make_params(), SOURCES, TARGETS, LENS)
    assert logits.dtype == jnp.bfloat16
    close(logits, expected, rtol=0.1, atol=0.3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_heads": 3}, "embed_size must be a multiple of num_heads; got 8 for 3 heads"),
        ({"norm": "both"}, "norm must be one of ('post', 'pre'); got 'both'"),
        (
            {"positions": "rotary"},
            "positions must be one of ('interleaved', 'halves', 'opennmt', 'fairseq', 'learnt'); got 'rotary'",
        ),
        ({"dropout_hidden": 1.0}, "dropout_hidden must be in [0, 1); got 1.0"),
        ({"alignment_layer": 2}, "alignment_layer must be one of 2 layers, counted from 0; got 2"),
        ({"alignment_head": 2, "num_heads": 2}, "alignment_head must be one of 2 heads, counted from 0; got 2"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.usefixtures("own_checks")
def test_a_setting_that_cannot_be_is_refused(settings, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        TransformerDecoder(N, D, F, 2, **{"num_heads": 2, **settings})


def test_a_sentence_longer_than_the_learnt_positions_is_refused():
    long = jnp.ones((3, 8), jnp.int32)
    with pytest.raises(ValueError, match=r"^max_len = 7 positions are learnt; got 8 tokens"):
        jax.eval_shape(make_model("learnt positions").apply, make_params("learnt positions"), long, TARGETS)
    with pytest.raises(ValueError, match=r"^max_len = 7 positions are learnt; got 8 tokens"):
        find(greedy_search, "learnt positions", max_len=8)


def test_a_step_for_which_the_cache_has_no_room_gives_nan():
    with pytest.raises(ValueError, match=r"^initial_state needs max_len, the most tokens that a search may take"):
        find(greedy_search, max_len=None)
    assert np.isnan(find(greedy_search, max_len=2, min_len=7).scores).all()


def test_a_recurrent_model_and_a_transformer_search_together():
    recurrent = EncoderDecoder(Seq2SeqEncoder(N, 4, 4), Seq2SeqAttentionDecoder(N, 4, 4))
    params = random_params(recurrent, SOURCES, TARGETS, LENS)

    @jax.jit
    def search(params, own_params):
        memory = recurrent.apply(params, SOURCES, LENS, method="encode")
        state = recurrent.apply(params, memory, 7, method="initial_state")
        step, own_state, own_memory = start(own_params)
        both = ensemble([partial(recurrent.apply, params, method="step"), step])
        inputs = both, (state, own_state), (memory, own_memory)
        return beam_search(*inputs, bos=1, eos=2, max_len=7, batch_size=3, beam_size=3)

    found = search(params, make_params())
    ids = found.ids[:, 0]
    given = jnp.concatenate([jnp.ones((3, 1), jnp.int32), ids[:, :-1]], 1)
    logits = jax.jit(recurrent.apply)(params, SOURCES, given, LENS)[0], run(make_params(), SOURCES, given, LENS)[0]
    mean = jnp.log(sum(jax.nn.softmax(each) for each in logits) / 2)
    expected = jnp.take_along_axis(mean, ids[..., None], -1)[..., 0]
    close(found.token_scores[:, 0], np.where(np.arange(7) < found.lengths[:, :1], expected, 0))


@pytest.mark.parametrize("parts", [(Seq2SeqEncoder, Seq2SeqAttentionDecoder), (TransformerEncoder, TransformerDecoder)])
def test_each_family_has_the_methods_that_training_and_search_call(parts):
    assert issubclass(parts[0], Encoder)
    assert issubclass(parts[1], Decoder)
    assert not issubclass(parts[0], Decoder)


def test_rows_that_the_state_has_no_place_for_are_refused():
    def search(step, state, memory, **settings):
        step(jnp.zeros(6, jnp.int32), state, memory)

    with pytest.raises(ValueError, match=r"^tokens must be \[3 · beam\], as many as the state has rows, 3; got \[6\]"):
        find(search)


@pytest.mark.parametrize("renormalize", [True, False])
def test_tokens_that_are_never_produced_take_no_probability_of_the_others(renormalize):
    decoder = TransformerDecoder(N, D, F, 1, never=(0, 3), renormalize=renormalize)
    model = EncoderDecoder(TransformerEncoder(N, D, F, 1), decoder)
    never = jnp.isin(jnp.arange(N), jnp.array([0, 3]))

    @jax.jit
    def run(params):
        memory = model.apply(params, SOURCES, LENS, method="encode")
        state = model.apply(params, memory, 1, method="initial_state")
        step = partial(model.apply, method="step")
        log_probs, pull = jax.vjp(lambda params: step(params, TARGETS[:, 0], state, memory)[0], params)
        (gradient,) = pull(jnp.where(never, jnp.ones_like(log_probs), 0))
        return log_probs, model.apply(params, SOURCES, TARGETS[:, :1], LENS)[0][:, 0], gradient

    log_probs, logits, gradient = run(random_params(model, SOURCES, TARGETS, LENS))
    after = jax.nn.log_softmax(jnp.where(never, -jnp.inf, logits))
    before = jnp.where(never, -jnp.inf, jax.nn.log_softmax(logits))
    assert not np.allclose(after, before, rtol=1e-3)
    np.testing.assert_allclose(log_probs, after if renormalize else before, rtol=1e-5)
    assert not any(x.any() for x in jax.tree.leaves(gradient))  # -inf is a constant


def test_a_fixed_start_gets_no_gradient_but_that_of_the_output():
    def gradient(**settings):
        model = EncoderDecoder(TransformerEncoder(N, D, F, 1), TransformerDecoder(N, D, F, 1, **settings))
        targets = jnp.array([[1, 2, 3]] * 3)
        differentiate = jax.jit(jax.grad(lambda params: (model.apply(params, SOURCES, targets, LENS)[0] ** 2).sum()))
        found = differentiate(random_params(model, SOURCES, TARGETS, LENS))
        return np.abs(found["params"]["decoder"]["embedding"]["embedding"]).max(axis=1) > 0

    assert gradient()[:5].tolist() == [False, True, True, True, False]
    assert gradient(fixed_start=True)[:5].tolist() == [False, False, True, True, False]
