import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn.functional.products import inner_products, scaled_inner_products, transposed_product

random = np.random.default_rng(0)
QUERIES, KEYS, GRADIENT = (random.normal(size=shape) for shape in ((2, 7, 4), (2, 5, 4), (2, 7, 5)))


def plain(queries, keys):
    return jnp.einsum("...qd,...kd->...qk", queries, keys)


def with_gradients(function):
    def run(queries, keys, gradient):
        scores, pull_back = jax.vjp(function, queries, keys)
        return scores, *pull_back(gradient)

    return jax.jit(run)


def close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-13, atol=1e-13), a, b)


@pytest.mark.parametrize("example", [slice(None), 0], ids=["a batch", "no leading axis"])
def test_products_and_their_gradients_are_those_of_the_einsum(x64, example):
    inputs = [jnp.asarray(x[example]) for x in (QUERIES, KEYS, GRADIENT)]
    close(with_gradients(inner_products)(*inputs), with_gradients(plain)(*inputs))
    close(with_gradients(scaled_inner_products)(*inputs), with_gradients(lambda q, k: plain(q, k) / 2)(*inputs))
    close(jax.jit(transposed_product)(inputs[2], inputs[0]), jnp.swapaxes(inputs[2], -1, -2) @ inputs[0])


def test_vmap_gives_the_same(x64):
    inputs = [jnp.asarray(x) for x in (QUERIES, KEYS, GRADIENT)]
    close(jax.jit(jax.vmap(with_gradients(inner_products)))(*inputs), with_gradients(inner_products)(*inputs))


def test_the_second_derivative_is_right(x64):
    queries, keys = jnp.asarray(QUERIES), jnp.asarray(KEYS)

    def curvature(function):
        slope = jax.grad(lambda keys: jnp.sum(jnp.sin(function(queries, keys))))
        return jax.jit(jax.grad(lambda keys: jnp.sum(slope(keys) ** 2)))(keys)

    close(curvature(inner_products), curvature(plain))


def test_forward_mode_is_refused():
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda keys: inner_products(jnp.asarray(QUERIES), keys), (jnp.asarray(KEYS),), (jnp.asarray(KEYS),))


@pytest.mark.parametrize("batch", [(), (1,), (3,)])
def test_the_compiler_takes_the_keys_gradient_in_the_fast_form(batch):
    def has_slow_product(function):
        """Whether the compiled program has a product of 640 rows of 64, those of the keys' gradient, row by row."""
        shapes = [jax.ShapeDtypeStruct((*batch, *shape), jnp.float32) for shape in ((512, 64), (640, 64), (512, 640))]
        text = with_gradients(function).lower(*shapes).compile().as_text()
        return bool(re.search(r"640,64\]\{(2,)?1,0\S* dot\(", text))

    assert not has_slow_product(inner_products)
    assert has_slow_product(plain), "the compiler has become better: is the form still needed?"
