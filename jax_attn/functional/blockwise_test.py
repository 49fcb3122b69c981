import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import (
    additive_score,
    attend,
    bilinear_score,
    blockwise_attention,
    dot_score,
    gaussian_score,
    scaled_dot_score,
)
from jax_attn.functional.blockwise import inner_products, scaled_inner_products

random = np.random.default_rng(0)
B, Q, K, D = 2, 7, 10, 4
BLOCK = 4  # of 7 queries two blocks, the second short of one; of 10 keys three, the third short of two
QUERIES, KEYS, VALUES = (random.normal(size=(B, length, size)) for length, size in ((Q, D), (K, D), (K, 3)))
W, W_V = random.normal(size=(D, D)), random.normal(size=D)
MASK = random.random((B, Q, K)) < 0.6
MASK[0, 2] = False  # an empty row

SCORES = {
    "scaled_dot": (scaled_dot_score, ()),
    "bilinear": (bilinear_score, (W,)),
    "additive": (additive_score, (W_V,)),
    "gaussian": (partial(gaussian_score, sigma=0.7), ()),
}
MASKINGS = {
    "nothing": {},
    "lengths": {"valid_lens": np.array([5.5, 0])},
    "lengths of each query": {"valid_lens": random.integers(0, K + 1, (B, Q))},
    "mask": {"mask": MASK},
    "mask of keys": {"mask": MASK[:, 1:2]},
    "mask of queries": {"mask": MASK[1, :, :1]},
    "mask of keys, lengths of each query": {"mask": MASK[0, 0], "valid_lens": random.integers(0, K + 1, (B, Q))},
    "mask and lengths": {"mask": MASK, "valid_lens": np.array([4, 10])},
}


def plain(score, queries, keys, values, parameters=(), **options):
    return attend(score(queries, keys, *parameters), values, **options)[0]


def with_gradients(function, score, **options):
    """Context, and the gradients of queries, keys, values and parameters, along one random direction."""
    options = {name: jnp.asarray(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}

    def run(queries, keys, values, parameters):
        def context(*inputs):
            return function(score, *inputs[:3], parameters=inputs[3], **options)

        result, pull_back = jax.vjp(context, queries, keys, values, parameters)
        direction = np.random.default_rng(1).normal(size=result.shape)
        return result, pull_back(jnp.asarray(direction, result.dtype))

    return jax.jit(run)


def both(score, inputs, block_size=BLOCK, **options):
    by_blocks = with_gradients(partial(blockwise_attention, block_size=block_size), score, **options)(*inputs)
    return by_blocks, with_gradients(plain, score, **options)(*inputs)


def close(a, b, tolerance=1e-12):
    def check(a, b):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert np.abs(np.asarray(a, float) - np.asarray(b, float)).max() <= tolerance * max(
            np.abs(np.asarray(b, float)).max(), 1e-3
        )

    jax.tree.map(check, a, b)


def make_inputs(name="additive", dtype=jnp.float64):
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), (QUERIES, KEYS, VALUES, SCORES[name][1]))


@pytest.mark.parametrize("name", SCORES)
def test_every_score_gives_the_plain_form_s_context_and_gradients(x64, name):
    block_size = {"bilinear": 1, "gaussian": 100}.get(name, BLOCK)
    close(*both(SCORES[name][0], make_inputs(name), block_size, **MASKINGS["lengths of each query"]))


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("masking", "empty_row"),
    [
        ("nothing", "zero"),
        slow("lengths", "zero"),
        ("lengths", "uniform"),
        slow("lengths of each query", "zero"),
        slow("mask", "zero"),
        slow("mask of keys", "zero"),
        ("mask of queries", "zero"),
        ("mask of keys, lengths of each query", "zero"),
        ("mask and lengths", "zero"),
        slow("mask and lengths", "uniform"),
    ],
)
def test_every_masking_does_so_too(x64, masking, empty_row):
    close(*both(dot_score, make_inputs("scaled_dot"), empty_row=empty_row, **MASKINGS[masking]))


def test_blocks_large_enough_for_additive_scores_term_by_term(x64, monkeypatch):
    monkeypatch.setattr("jax_attn.functional.sum_of_tanh.CHAIN", 4)  # and so two chains of five hidden units
    queries, keys, values = (random.normal(size=(length, 5)) for length in (17, 33, 33))
    inputs = jax.tree.map(jnp.asarray, (queries, keys, values, (random.normal(size=5),)))
    close(*both(additive_score, inputs, 18, valid_lens=np.array(30)))


def test_dropout_keeps_what_the_mask_keeps(x64):
    keep = random.random((B, Q, K)) < 0.7
    options = {"mask": MASK, "keep_mask": keep, "dropout_rate": 0.3, "empty_row": "uniform"}
    close(*both(dot_score, make_inputs("scaled_dot"), **options))


def test_any_leading_axes_and_masks_that_broadcast_over_them(x64):
    arrays = [random.normal(size=(3, 1, 2, *shape)) for shape in ((Q, D), (K, D), (K, 3))]
    lens, mask = random.integers(0, K + 1, (3, 1, 2)), random.random((3, 1, 1, 1, K)) < 0.6  # as with several heads
    close(*both(dot_score, (*map(jnp.asarray, arrays), ()), mask=mask, valid_lens=lens))


@pytest.mark.parametrize("sizes", [(D, 0), (0, 3)], ids=["no features of a value", "nor of a key"])
def test_a_last_axis_may_be_empty(x64, sizes):
    arrays = [random.normal(size=shape) for shape in ((Q, sizes[0]), (K, sizes[0]), (K, sizes[1]))]
    by_blocks, plain = both(dot_score, (*map(jnp.asarray, arrays), ()))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12), by_blocks, plain)


@pytest.mark.parametrize("masking", ["lengths", "mask", "mask and lengths"])
def test_a_batch_may_be_empty(x64, masking):
    inputs = [x[:0] if x.shape[:1] == (B,) else x for x in make_inputs()[:3]]
    by_blocks, plain = both(dot_score, (*inputs, ()), **{name: x[:0] for name, x in MASKINGS[masking].items()})
    jax.tree.map(np.testing.assert_array_equal, by_blocks, plain)
    assert by_blocks[0].shape == (0, Q, 3)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32])
def test_lengths_beyond_the_keys_are_all_keys_under_jit(dtype):
    """They cannot be checked there. The last block is filled up with zeros, whose scores are no scores."""
    inputs, lens = make_inputs("scaled_dot", jnp.float32)[:3], np.array([200, 3], dtype)

    @jax.jit
    def by_blocks(lens):
        return blockwise_attention(dot_score, *inputs, lens, block_size=BLOCK)

    np.testing.assert_array_equal(by_blocks(lens), by_blocks(np.array([K, 3], dtype)))


def test_vmap_gives_the_same(x64):
    inputs, lens = make_inputs(), jnp.asarray(MASKINGS["lengths"]["valid_lens"])

    def run(queries, keys, values, lens):
        return blockwise_attention(
            additive_score, queries, keys, values, lens, parameters=(jnp.asarray(W_V),), block_size=BLOCK
        )

    grad = jax.value_and_grad(lambda *a: jnp.sum(jnp.sin(run(*a))), argnums=(0, 1, 2))
    mapped, plain = jax.jit(jax.vmap(grad))(*inputs[:3], lens), jax.jit(grad)(*inputs[:3], lens)
    close((mapped[0].sum(), mapped[1]), plain)


def test_keys_and_values_that_no_query_attends_to_reach_neither_result_nor_gradient():
    queries, keys, values, _ = make_inputs(dtype=jnp.float32)
    lens = jnp.array([5, 8])
    seen = (jnp.arange(K) < lens[:, None])[..., None]
    score = partial(blockwise_attention, block_size=BLOCK)
    run = with_gradients(score, dot_score, valid_lens=lens, empty_row="uniform")
    clean = run(queries, keys, values, ())
    for poison in (jnp.nan, jnp.inf):
        poisoned = run(queries, jnp.where(seen, keys, poison), jnp.where(seen, values, poison), ())
        jax.tree.map(np.testing.assert_array_equal, poisoned, clean)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(clean))


def test_scores_of_1e4_overflow_nowhere_not_even_where_a_block_is_filled_up(x64):
    queries, keys, values, _ = make_inputs()
    close(*both(dot_score, (1e4 * queries, keys, values, ())), tolerance=1e-9)


def test_scores_and_softmax_are_computed_in_float32_and_rounded_once(x64):
    dtype = jnp.bfloat16
    inputs = make_inputs(dtype=dtype)
    result = jax.jit(partial(blockwise_attention, additive_score, block_size=BLOCK))(*inputs[:3], parameters=inputs[3])
    assert result.dtype == dtype
    exact = plain(additive_score, *(jax.tree.map(lambda x: x.astype(jnp.float64), inputs)))
    np.testing.assert_allclose(result.astype(jnp.float64), exact, rtol=2 * float(jnp.finfo(dtype).eps), atol=1e-6)


def largest_array(function, *shapes):
    """Elements of the largest array of the compiled program that is not an operation inside a fused loop."""
    text = jax.jit(function).lower(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).compile().as_text()
    outside = re.sub(r"^%?(fused|wrapped)\S* .*?^\}", "", text, flags=re.S | re.M)
    arrays = re.findall(r"(?:f32|pred|s32)\[([\d,]+)\]", outside)
    return max(int(np.prod([int(size) for size in array.split(",")])) for array in arrays)


def test_nothing_of_all_pairs_is_made_by_the_result_or_its_gradient(full_compilation):
    shapes, options = ((512, 8), (640, 8), (640, 8), (8,)), {"valid_lens": jnp.arange(512)}

    def total(function):
        def run(queries, keys, values, w_v):
            return jnp.sum(jnp.sin(function(additive_score, queries, keys, values, parameters=(w_v,), **options)))

        return run

    by_blocks = partial(blockwise_attention, block_size=128)
    assert largest_array(jax.grad(total(by_blocks), argnums=(0, 1, 2, 3)), *shapes) <= 2 * 128 * 128
    assert largest_array(total(plain), *shapes) >= 512 * 640


# Dot products have a gradient in a form of their own.


def einsum(queries, keys):
    return jnp.einsum("...qd,...kd->...qk", queries, keys)


def products_with_gradients(function):
    def run(queries, keys, gradient):
        scores, pull_back = jax.vjp(function, queries, keys)
        return scores, *pull_back(gradient)

    return jax.jit(run)


@pytest.mark.parametrize("example", [slice(None), 0], ids=["a batch", "no leading axis"])
def test_products_and_their_gradients_are_those_of_the_einsum(x64, example):
    inputs = [jnp.asarray(x[example]) for x in (QUERIES, KEYS, random.normal(size=(B, Q, K)))]
    expected = products_with_gradients(einsum)(*inputs)
    close(products_with_gradients(inner_products)(*inputs), expected, 1e-13)
    scaled = [x / 2 for x in expected]
    close(products_with_gradients(scaled_inner_products)(*inputs), tuple(scaled), 1e-13)
    if inputs[0].ndim == 3:
        close(jax.jit(jax.vmap(products_with_gradients(inner_products)))(*inputs), expected, 1e-13)


def test_the_second_derivative_of_products_is_right(x64):
    queries, keys = jnp.asarray(QUERIES), jnp.asarray(KEYS)

    def curvature(function):
        slope = jax.grad(lambda keys: jnp.sum(jnp.sin(function(queries, keys))))
        return jax.jit(jax.grad(lambda keys: jnp.sum(slope(keys) ** 2)))(keys)

    close(curvature(inner_products), curvature(einsum))


@pytest.mark.parametrize("batch", [(), (3,)])
def test_the_compiler_takes_the_keys_gradient_in_the_fast_form(full_compilation, batch):
    def has_slow_product(function):
        """Whether the compiled program has a product of 640 rows of 64, those of the keys' gradient, row by row."""
        shapes = [jax.ShapeDtypeStruct((*batch, *shape), jnp.float32) for shape in ((512, 64), (640, 64), (512, 640))]
        text = products_with_gradients(function).lower(*shapes).compile().as_text()
        return bool(re.search(r"640,64\]\{(2,)?1,0\S* dot\(", text))

    assert not has_slow_product(inner_products)
    assert has_slow_product(einsum), "the compiler has become better: is the form still needed?"


def test_forward_mode_is_refused():
    inputs = tuple(map(jnp.asarray, (QUERIES, KEYS, VALUES)))
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(partial(blockwise_attention, dot_score), inputs, inputs)


@pytest.mark.parametrize("empty_row", ["zero", "uniform"])
def test_no_keys_and_nan_are_what_attend_makes_of_them(empty_row):
    queries, values = jnp.ones((1, 2, 4)), jnp.arange(6.0).reshape(1, 3, 2)
    keys = jnp.ones((1, 3, 4)).at[0, 0, 0].set(jnp.nan)

    @jax.jit
    def both_ways(keys, values, lens):
        context = blockwise_attention(scaled_dot_score, queries, keys, values, lens, empty_row=empty_row)
        return context, attend(scaled_dot_score(queries, keys), values, lens, empty_row=empty_row)[0]

    for inputs in ((keys, values, jnp.array([2])), (keys[:, :0], values[:, :0], jnp.array([0]))):
        np.testing.assert_array_equal(*both_ways(*inputs))
