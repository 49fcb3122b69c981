from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.errors import InvalidRngError

from jax_attn import (
    AdditiveAttention,
    DotProductAttention,
    MultiHeadAttention,
    PositionalEncoding,
    additive_score,
    attend,
    bilinear_score,
    dot_score,
    gaussian_score,
    scaled_dot_score,
)
from jax_attn.conftest import random_params
from jax_attn.modules.attention import ATTENTIONS, make_attention

random = np.random.default_rng(0)
QUERIES, KEYS = (jnp.asarray(random.normal(size=(2, q, 4)), jnp.float32) for q in (3, 5))
VALUES = jnp.asarray(random.normal(size=(2, 5, 6)), jnp.float32)
INPUTS = QUERIES, KEYS, VALUES
BY_EXAMPLE, BY_QUERY = jnp.array([2, 4]), jnp.array([[1, 2, 0], [3, 4, 4]])

FIELDS = {"gaussian": {"sigma": 2.0}, "multi_head": {"use_bias": True}}
MODULES = {name: partial(make_attention, name, 8, num_heads=2, **FIELDS.get(name, {})) for name in ATTENTIONS}
each_module = pytest.mark.parametrize("name", MODULES)
one_head_and_several = pytest.mark.parametrize("name", ["additive", "multi_head"])


@cache
def get_params(name):
    """The parameters for INPUTS; they depend on neither dropout nor `empty_row`."""
    return random_params(MODULES[name](), *INPUTS)


@cache
def applied(name, dtype=jnp.float32):
    """The compiled call, which the tests share."""
    return jax.jit(MODULES[name](param_dtype=dtype).apply)


def close(a, b, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **({"rtol": 1e-5, "atol": 1e-6} | tolerance)), a, b)


@pytest.mark.parametrize("module", [AdditiveAttention(8, dropout=0.1), DotProductAttention(dropout=0.5)])
def test_the_book_s_example_weighs_equal_keys_equally(module):
    queries = jax.random.normal(jax.random.key(1), (2, 1, 20 if isinstance(module, AdditiveAttention) else 2))
    keys, lens = jnp.ones((2, 10, 2)), jnp.array([2, 6])
    values = jnp.tile(jnp.arange(40.0).reshape(1, 10, 4), (2, 1, 1))
    context, weights = jax.jit(module.apply)(random_params(module, queries, keys, values), queries, keys, values, lens)
    np.testing.assert_allclose(context, [[[2, 3, 4, 5]], [[10, 11, 12, 13]]], rtol=1e-6)
    expected = [[[1 / 2] * 2 + [0] * 8], [[1 / 6] * 6 + [0] * 4]]
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "score"),
    [
        (
            "additive",
            lambda p, q, k: additive_score(
                q @ p["W_q"]["kernel"], k @ p["W_k"]["kernel"], p["w_v"]["kernel"][:, 0]
            ),
        ),
        ("scaled_dot", lambda p, q, k: scaled_dot_score(q, k)),
        ("dot", lambda p, q, k: dot_score(q, k)),
        ("bilinear", lambda p, q, k: bilinear_score(q, k, p["W"]["kernel"].T)),
        ("gaussian", lambda p, q, k: gaussian_score(q, k, 2.0)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("lens", [BY_EXAMPLE, BY_QUERY])
def test_a_module_is_its_scoring_function_with_its_own_parameters(name, score, lens):
    # The additive equation also tells W_q from W_k: exchanged they would give other scores.
    params = get_params(name)
    expected = attend(score(params.get("params"), QUERIES, KEYS), VALUES, lens)
    close(applied(name)(params, *INPUTS, lens), expected)


@pytest.mark.parametrize("name", ["additive", "bilinear"])
def test_queries_keys_and_values_may_differ_in_size(name):
    module, inputs = MODULES[name](), (QUERIES, KEYS[..., :2], VALUES)
    context, weights = jax.jit(module.apply)(random_params(module, *inputs), *inputs)
    assert (context.shape, weights.shape) == ((2, 3, 6), (2, 3, 5))


def test_every_head_attends_by_itself_and_the_lengths_hold_for_each():
    params = get_params("multi_head")
    mask = jnp.asarray(random.random((2, 3, 5)) < 0.7)
    context, weights = applied("multi_head")(params, *INPUTS, BY_EXAMPLE, mask)
    layers = params["params"]
    q, k, v = (x @ layers[f"W_{n}"]["kernel"] + layers[f"W_{n}"]["bias"] for n, x in zip("qkv", INPUTS, strict=True))
    heads = [
        attend(scaled_dot_score(q[..., h], k[..., h]), v[..., h], BY_EXAMPLE, mask) for h in (slice(4), slice(4, 8))
    ]
    joined = jnp.concatenate([context for context, _ in heads], axis=-1)
    close(context, joined @ layers["W_o"]["kernel"] + layers["W_o"]["bias"])
    close(weights, jnp.stack([weights for _, weights in heads], axis=1))


@each_module
def test_prepare_and_attend_are_the_call(name):
    lens = BY_QUERY
    module = MODULES[name]()
    params = get_params(name)

    def in_two_steps(params, queries, keys, values, lens):
        memory = module.apply(params, keys, values, lens, query_size=4, method="prepare")
        return module.apply(params, queries, memory, method="attend")

    close(jax.jit(in_two_steps)(params, *INPUTS, lens), applied(name)(params, *INPUTS, lens))


@one_head_and_several
def test_an_empty_row_has_no_context_and_finite_gradients_or_is_uniform(name):
    module, lens = MODULES[name](), jnp.array([0, 5])
    params = get_params(name)

    def total(params):
        context, weights = module.apply(params, *INPUTS, lens)
        return context.sum(), (context, weights)

    gradients, (context, weights) = jax.jit(jax.grad(total, has_aux=True))(params)
    no_context = params["params"]["W_o"]["bias"] if name == "multi_head" else 0
    np.testing.assert_array_equal(context[0], jnp.zeros_like(context[0]) + no_context)
    assert (weights[0] == 0).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))

    uniform = MODULES[name](empty_row="uniform")
    context, weights = jax.jit(uniform.apply)(params, *INPUTS, lens)
    np.testing.assert_allclose(weights[0], jnp.full_like(weights[0], 0.2), rtol=1e-6)
    if name != "multi_head":
        close(context[0], jnp.broadcast_to(VALUES[0].mean(0), (3, 6)))


@one_head_and_several
def test_dropout_needs_its_stream_drops_by_the_rate_and_leaves_the_weights_returned(name):
    module = MODULES[name](dropout=0.5)
    params = get_params(name)
    plain = jax.jit(module.apply)(params, *INPUTS)
    close(plain, applied(name)(params, *INPUTS))  # deterministic unless asked
    drop = jax.jit(lambda key: module.apply(params, *INPUTS, deterministic=False, rngs={"dropout": key}))
    one, again, other = drop(jax.random.key(1)), drop(jax.random.key(1)), drop(jax.random.key(2))
    jax.tree.map(np.testing.assert_array_equal, one, again)
    assert np.abs(one[0] - other[0]).max() > 0.01
    close(one[1], plain[1])
    with pytest.raises(InvalidRngError):
        module.apply(params, *INPUTS, deterministic=False)


@one_head_and_several
def test_a_keep_mask_is_used_instead_of_a_drawn_one(name):
    module = MODULES[name](dropout=0.5)
    params = get_params(name)
    _, weights = applied(name)(params, *INPUTS)
    run = jax.jit(lambda keep, deterministic=True: module.apply(params, *INPUTS, keep_mask=keep)[0])
    keep = jnp.asarray(random.random(weights.shape) < 0.5)
    if name == "multi_head":
        everything, nothing = run(jnp.ones_like(keep)), run(jnp.zeros_like(keep))
        bias = params["params"]["W_o"]["bias"]
        np.testing.assert_array_equal(nothing, jnp.zeros_like(nothing) + bias)
        close(run(keep) + run(~keep), everything + bias)
    else:
        close(run(keep), jnp.where(keep, 2 * weights, 0) @ VALUES)


@each_module
def test_half_precision_goes_in_and_out(x64, name):
    dtype = jnp.dtype(jnp.bfloat16)
    module, inputs = MODULES[name](param_dtype=dtype), [x.astype(dtype) for x in INPUTS]
    params = random_params(module, *inputs)
    results = applied(name, dtype)(params, *inputs, BY_EXAMPLE)
    assert {leaf.dtype for leaf in jax.tree.leaves((params, results))} == {dtype}
    wide = jax.tree.map(lambda x: x.astype(jnp.float64), (params, *inputs))
    exact = applied(name, jnp.float64)(*wide, BY_EXAMPLE)
    close(jax.tree.map(lambda x: x.astype(jnp.float64), results), exact, rtol=0, atol=8 * float(jnp.finfo(dtype).eps))


@one_head_and_several
def test_the_module_works_in_nnx_through_the_bridge(name):
    module = nnx.bridge.ToNNX(MODULES[name](), rngs=nnx.Rngs(0)).lazy_init(*INPUTS)
    params = nnx.to_pure_dict(nnx.state(module, nnx.Param))
    expected = MODULES[name]().apply({"params": params}, *INPUTS, BY_QUERY)
    jax.tree.map(np.testing.assert_array_equal, module(*INPUTS, BY_QUERY), expected)


def test_numpy_s_float64_is_taken_without_a_warning(own_checks):
    inputs = [np.asarray(x, np.float64) for x in INPUTS]
    context, weights = DotProductAttention().apply({}, *inputs, np.array([2, 4]))
    assert context.dtype == weights.dtype == jnp.float32
    assert PositionalEncoding(4).apply({}, inputs[0]).dtype == jnp.float32


def test_the_number_of_heads_has_a_default_and_every_module_gets_the_rate_of_dropout():
    assert all(make_attention(name, 8, 0.1).dropout == 0.1 for name in ATTENTIONS)
    assert make_attention("multi_head", 8) == MultiHeadAttention(8, 4)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"attention must be one of \('additive', .*'sum', 'none'\); got 'cosinus'"):
        make_attention("cosinus", 8)


OTHER_FIELDS = ("sum", "dot", "scaled_bilinear")
"""Names whose class has another name too."""


@pytest.mark.parametrize(
    ("name", "empty_row"),
    [
        *((name, "zero") for name in MODULES if name not in (*OTHER_FIELDS, "multi_head")),
        *(pytest.param(name, "zero", marks=pytest.mark.slow) for name in OTHER_FIELDS),
        ("multi_head", "uniform"),
    ],
)
def test_by_blocks_the_context_and_every_gradient_are_the_plain_form_s(x64, name, empty_row):
    forms = [MODULES[name](form=form, empty_row=empty_row, dropout=0.5) for form in ("plain", "blockwise")]
    params, *inputs = jax.tree.map(lambda x: x.astype(jnp.float64), (get_params(name), *INPUTS))
    lens = jnp.array([[1, 0, 5], [3, 4, 4]])
    keep = jnp.asarray(random.random((2, 2, 3, 5) if name == "multi_head" else (2, 3, 5)) < 0.6)

    def total(module, params, *inputs):
        context, weights = module.apply(params, *inputs, lens, keep_mask=keep, return_weights=False)
        assert weights is None
        return jnp.sum(jnp.sin(context))

    plain, blockwise = (
        jax.jit(jax.value_and_grad(lambda *a, m=module: total(m, *a), argnums=(0, 1, 2, 3)))(params, *inputs)
        for module in forms
    )
    close(plain, blockwise, rtol=1e-11, atol=1e-12)


def test_large_shapes_go_by_blocks_unless_the_weights_are_wanted_or_the_plain_form_is_asked_for(full_compilation):
    def largest(form, return_weights):
        shapes = jax.ShapeDtypeStruct((8, 512, 4), jnp.float32)
        module = AdditiveAttention(8, form=form)
        params = jax.eval_shape(module.init, jax.random.key(0), *[jnp.ones((1, 2, 4))] * 3)
        run = jax.jit(lambda *inputs: module.apply(*inputs, return_weights=return_weights))
        memory = run.lower(params, shapes, shapes, shapes).compile().memory_analysis()
        return memory.temp_size_in_bytes + memory.output_size_in_bytes

    scores = 4 * 8 * 512**2
    assert largest("auto", False) < 0.7 * scores
    assert min(largest("plain", False), largest("auto", True)) > scores
