from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_attn import (
    EncoderDecoder,
    KeepMasks,
    Seq2SeqAttentionDecoder,
    Seq2SeqEncoder,
    beam_search,
    greedy_search,
    masked_cross_entropy,
)
from jax_attn.conftest import random_params
from jax_attn.models import build_model
from jax_attn.settings import RecurrentConfig, TransformerConfig

random = np.random.default_rng(0)
SOURCES, TARGETS = jnp.asarray(random.integers(0, 9, (3, 5))), jnp.asarray(random.integers(0, 7, (3, 4)))
LENS = jnp.array([5, 2, 0])


def build(dtype=None, **settings):
    encoder = Seq2SeqEncoder(9, 6, 4, dtype=dtype, **settings)
    return EncoderDecoder(encoder, Seq2SeqAttentionDecoder(7, 6, 4, dtype=dtype, **settings))


model = build()
params = random_params(model, SOURCES, TARGETS, LENS)
apply = jax.jit(model.apply)
encode = jax.jit(partial(model.apply, method="encode"))


def close(a, b):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), a, b)


def test_it_is_the_decoder_on_the_memory_of_the_encoder_s_outputs():
    p = params["params"]
    assert set(p) == {"encoder", "decoder"}
    encoded = jax.jit(model.encoder.apply)({"params": p["encoder"]}, SOURCES, LENS)
    prepare = jax.jit(partial(model.decoder.apply, method="prepare"))
    memory = prepare({"params": p["decoder"]}, encoded, LENS)
    close(encode(params, SOURCES, LENS), memory)
    decoded = jax.jit(model.decoder.apply)({"params": p["decoder"]}, TARGETS, memory)
    close(apply(params, SOURCES, TARGETS, LENS), decoded)


@pytest.mark.parametrize("settings", [RecurrentConfig(), TransformerConfig()], ids=["recurrent", "transformer"])
def test_a_batch_may_have_no_sentences(settings):
    model = build_model(settings, 9, 7)
    shapes = jax.eval_shape(partial(model.init_with_output, jax.random.key(0)), SOURCES[:0], TARGETS[:0], LENS[:0])
    assert jax.tree.leaves(shapes[0])[0].shape == (0, 4, 7)


@pytest.mark.parametrize(("tie_embeddings", "label_lens"), [(False, [4, 1, 2]), (True, [1, 2, 0])])
def test_its_cross_entropy_is_that_of_its_logits(tie_embeddings, label_lens):
    encoder, decoder = Seq2SeqEncoder(9, 6, 6), Seq2SeqAttentionDecoder(7, 6, 6, tie_embeddings=tie_embeddings)
    model = EncoderDecoder(encoder, decoder)
    params = random_params(model, SOURCES, TARGETS, LENS)
    label_lens = jnp.array(label_lens)
    weights = jnp.where(jnp.arange(3) < label_lens[:, None], 1 / 7, 0.0)

    def by_logits(params):
        logits, _ = model.apply(params, SOURCES, TARGETS[:, :-1], LENS)
        options = {"label_smoothing": 0.1, "reduction": "none"}
        return masked_cross_entropy(logits, TARGETS[:, 1:], jnp.minimum(label_lens, 3), **options).sum() / 7

    def at_once(params):
        given = SOURCES, TARGETS[:, :-1], TARGETS[:, 1:], weights, LENS
        return model.apply(params, *given, label_smoothing=0.1, method="cross_entropy")[0]

    close(*(jax.jit(jax.value_and_grad(loss))(params) for loss in (at_once, by_logits)))


RATES = {"dropout": 0.4, "dropout_words": 0.3, "dropout_embedding": 0.2}


@pytest.mark.parametrize("variational", [pytest.param(False, marks=pytest.mark.slow), True])
def test_every_dropout_changes_the_loss_and_its_masks_can_be_drawn_before(variational):
    encoder = Seq2SeqEncoder(9, 6, 4, 2, **RATES, variational=variational)
    more = {"dropout_output": 0.1, "query": "between", "tie_embeddings": True, "variational": variational}
    model = EncoderDecoder(encoder, Seq2SeqAttentionDecoder(7, 6, 4, 2, **RATES, **more))
    params = random_params(model, SOURCES, TARGETS, LENS)

    @jax.jit
    def loss(keep_masks):
        given = SOURCES, TARGETS[:, :-1], TARGETS[:, 1:], jnp.ones((3, 3)), LENS
        return model.apply(params, *given, keep_masks=keep_masks, method="cross_entropy")[0]

    masks = model.draw_keep_masks(jax.random.key(3), SOURCES.shape, (3, 3))
    assert all(mask.shape[0] == 3 for mask in jax.tree.leaves(masks))
    keep_all = jax.tree.map(jnp.ones_like, masks)
    reference = loss(keep_all)
    for half in KeepMasks._fields:
        for name, mask in getattr(masks, half)._asdict().items():
            if mask is not None:
                changed = getattr(keep_all, half)._replace(**{name: jnp.zeros_like(mask)})
                assert abs(loss(keep_all._replace(**{half: changed})) - reference) > 1e-3, (half, name)
    assert len(jax.tree.leaves(masks)) == 8


def test_one_matrix_may_serve_as_all_three_embeddings():
    def tied(source_vocab_size):
        decoder = Seq2SeqAttentionDecoder(7, 6, 4, query="new", input_feeding=True, tie_embeddings=True)
        return EncoderDecoder(Seq2SeqEncoder(source_vocab_size, 6, 4), decoder, share_embedding=True)

    with pytest.raises(ValueError, match=r"share_embedding needs .* got \[9, 6\] and \[7, 6\]"):
        tied(9)
    params = random_params(tied(7), TARGETS, TARGETS)["params"]
    assert set(params["encoder"]) == {"rnn"}
    assert "dense" not in params["decoder"]
    matrix = params["decoder"]["embedding"]["embedding"]
    own = {"params": {**params, "encoder": params["encoder"] | {"embedding": {"embedding": matrix}}}}
    apart = EncoderDecoder(tied(7).encoder, tied(7).decoder)
    close(*(jax.jit(m.apply)(p, TARGETS, TARGETS) for m, p in ((tied(7), {"params": params}), (apart, own))))


def test_a_token_changes_no_logits_before_it():
    logits, _ = apply(params, SOURCES, TARGETS, LENS)
    changed, _ = apply(params, SOURCES, TARGETS.at[:, 2].add(1) % 7, LENS)
    np.testing.assert_array_equal(changed[:, :2], logits[:, :2])
    assert (np.abs(changed[:, 2] - logits[:, 2]).max(axis=-1) > 1e-4).all()


@pytest.mark.parametrize("search", [greedy_search, partial(beam_search, beam_size=3)])
def test_search_returns_what_teacher_forcing_says_of_its_sentences(search):
    @jax.jit
    def translate(params):
        memory = model.apply(params, SOURCES, LENS, method="encode")
        state = model.apply(params, memory, method="initial_state")
        step = partial(model.apply, params, method="step")
        return search(step, state, memory, bos=1, eos=2, max_len=6, batch_size=3)

    result = translate(params)
    for n in range(result.ids.shape[1]):
        ids = result.ids[:, n]
        logits, weights = apply(params, SOURCES, jnp.pad(ids[:, :-1], ((0, 0), (1, 0)), constant_values=1), LENS)
        counts = np.arange(6) < result.lengths[:, n, None]
        log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], axis=-1)[..., 0]
        close(result.token_scores[:, n], jnp.where(counts, log_p, 0))
        close(result.weights[:, n], jnp.where(counts[..., None], weights, 0))


def test_dropout_is_off_unless_asked_and_then_runs_through_both_halves():
    dropping = build(num_layers=2, dropout=0.5)
    params = random_params(dropping, SOURCES, TARGETS)
    plain = jax.jit(dropping.apply)(params, SOURCES, TARGETS)[0]
    close(plain, jax.jit(build(num_layers=2).apply)(params, SOURCES, TARGETS)[0])
    rngs = {"dropout": jax.random.key(1)}
    dropped = jax.jit(partial(dropping.apply, deterministic=False))(params, SOURCES, TARGETS, rngs=rngs)[0]
    assert np.abs(dropped - plain).max() > 0.01


@pytest.mark.parametrize("cell", ["gru", pytest.param("lstm", marks=pytest.mark.slow)])
def test_a_model_computes_in_bfloat16_with_parameters_in_float32(cell):
    half = build(dtype=jnp.bfloat16, cell=cell)
    params = random_params(half, SOURCES, TARGETS, LENS)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    assert jax.eval_shape(half.apply, params, SOURCES, TARGETS, LENS)[0].dtype == jnp.bfloat16

    def loss(params, model):
        given = SOURCES, TARGETS[:, :-1], TARGETS[:, 1:], jnp.ones((3, 3)), LENS
        return model.apply(params, *given, label_smoothing=0.1, method="cross_entropy")[0]

    gradients, wide = (jax.jit(partial(jax.grad(loss), model=model))(params) for model in (half, build(cell=cell)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=0.05 * np.abs(b).max() + 0.1), gradients, wide)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradients)} == {jnp.dtype(jnp.float32)}


def test_the_model_works_in_nnx_through_the_bridge():
    @nnx.jit
    def create():
        return nnx.bridge.ToNNX(build(), rngs=nnx.Rngs(0)).lazy_init(SOURCES, TARGETS, LENS)

    in_nnx = create()
    variables = {"params": nnx.to_pure_dict(nnx.state(in_nnx, nnx.Param))}
    found = nnx.jit(lambda module, *inputs: module(*inputs))(in_nnx, SOURCES, TARGETS, LENS)
    close(found, apply(variables, SOURCES, TARGETS, LENS))


@pytest.mark.parametrize(("encoder_dtype", "decoder_dtype"), [(jnp.bfloat16, None), (None, jnp.bfloat16)])
def test_encoder_and_decoder_may_compute_in_different_dtypes(encoder_dtype, decoder_dtype):
    model = EncoderDecoder(
        Seq2SeqEncoder(5, 4, 6, dtype=encoder_dtype),
        Seq2SeqAttentionDecoder(7, 4, 6, query="new", input_feeding=True, dtype=decoder_dtype),
    )
    tokens = jnp.ones((2, 3), int)
    params = random_params(model, tokens, tokens)
    logits, _ = jax.eval_shape(model.apply, params, tokens, tokens)  # a loop whose state changed its dtype would raise
    assert logits.dtype == (decoder_dtype or jnp.float32)
