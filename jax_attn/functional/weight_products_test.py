import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn.functional.weight_products import dot_general, product

rng = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


CASES = {
    "rows in three axes": ((2, 3, 5, 4), (4, 6), (((3,), (0,)), ((), ()))),
    "a weight of three axes": ((2, 3, 4), (5, 4, 6), (((2,), (1,)), ((), ()))),
    "an axis that is not the last": ((2, 4, 3), (4, 6), (((1,), (0,)), ((), ()))),
    "an axis of batch": ((2, 3, 4), (2, 4, 6), (((2,), (1,)), ((0,), (0,)))),
    "one row": ((4,), (4, 6), (((0,), (0,)), ((), ()))),
    "no rows": ((0, 3, 4), (4, 6), (((2,), (0,)), ((), ()))),
}


@pytest.mark.parametrize(("x", "weight", "numbers"), CASES.values(), ids=CASES)
def test_it_is_lax_dot_general_in_value_and_gradient(x, weight, numbers):
    x, weight = normal(*x), normal(*weight)

    def run(function):
        y, pull = jax.vjp(lambda x, weight: function(x, weight, numbers), x, weight)
        return y, pull(jnp.cos(y))

    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)  # noqa: E731
    jax.tree.map(close, run(dot_general), run(jax.lax.dot_general))


def test_a_product_sums_over_the_last_axis():
    x, weight = normal(2, 3, 4), normal(4, 6)
    np.testing.assert_allclose(product(x, weight), x @ weight, rtol=1e-6)
