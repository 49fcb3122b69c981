from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn.functional import few_rows
from jax_attn.functional.few_rows import few_rows_product, transpose
from jax_attn.functional.scan import scan

rng = np.random.default_rng(0)
B, K, N, T = 3, 4, 5, 3


def normal(*shape):
    return jnp.asarray(rng.standard_normal(shape))


def close(ours, expected):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-11), ours, expected)


def ours(x, weight):
    return few_rows_product(x, weight, transpose(weight))


def usual(x, weight):
    return x @ weight


def total(product, x, weight):
    """In which the product has a cotangent of its own, and both operands second derivatives."""
    return jnp.sin(product(jnp.tanh(x), weight * weight)).sum()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "of",
    [
        lambda f, x, W: jax.value_and_grad(f, (0, 1))(x, W),
        lambda f, x, W: jax.jvp(f, (x, W), (W[:B, :1] * x, 2 * W)),
        lambda f, x, W: jax.hessian(f, (0, 1))(x, W),
        lambda f, x, W: jax.jacrev(jax.grad(f, (0, 1)), (0, 1))(x, W),
        lambda f, x, W: jax.vmap(jax.grad(f, (0, 1)), (0, None))(jnp.stack([x, -x]), W),
        lambda f, x, W: jax.vmap(f, (None, 0))(x, jnp.stack([W, -W])),
    ],
    ids=["gradient", "tangent", "hessian", "gradient of the gradient", "rows under vmap", "weights under vmap"],
)
def test_it_is_the_product_in_value_and_derivatives(of):
    x, weight = normal(B, K), normal(K, N)
    close(*(jax.jit(partial(of, partial(total, product)))(x, weight) for product in (ours, usual)))


@pytest.mark.usefixtures("x64")
def test_a_loop_takes_it_where_it_is_worth_it(monkeypatch):
    def run(weight, h, inputs):
        h, outputs = scan(lambda h, x: (jnp.tanh(h @ weight + x),) * 2, h, inputs)
        return jnp.sin(outputs).sum() + h.sum()

    def derivatives(weight, h, inputs):
        first = jax.value_and_grad(run, (0, 1, 2))(weight, h, inputs)
        return first, jax.jacfwd(jax.grad(run))(weight, h, inputs)

    def traced():
        return str(jax.make_jaxpr(lambda *given: run(*given))(*given))  # a function that JAX has not seen yet

    given = normal(K, K), normal(B, K), normal(T, B, K)
    expected = jax.jit(derivatives)(*given)
    assert "few_rows_product" not in traced()
    monkeypatch.setattr(few_rows, "SMALLEST_WEIGHT", K * K)
    assert "few_rows_product" in traced()
    close(jax.jit(lambda *given: derivatives(*given))(*given), expected)
    monkeypatch.setattr(few_rows, "MOST_ROWS", B - 1)
    assert "few_rows_product" not in traced()


def test_the_weight_stands_on_the_left_on_a_cpu_alone():
    def products(platform):
        lowered = jax.jit(jax.grad(partial(total, ours))).trace(normal(B, K), normal(K, N))
        text = lowered.lower(lowering_platforms=(platform,)).as_text()
        return [line.split(" : ")[1] for line in text.splitlines() if "stablehlo.dot_general" in line]

    forward, backward = products("cpu")
    assert forward.startswith(f"(tensor<{N}x{K}xf32>, tensor<{B}x{K}xf32>)")
    assert backward.startswith(f"(tensor<{K}x{N}xf32>, tensor<{B}x{N}xf32>)")
    forward, backward = products("cuda")
    assert forward.startswith(f"(tensor<{B}x{K}xf32>, tensor<{K}x{N}xf32>)")
    assert backward.startswith(f"(tensor<{B}x{N}xf32>, tensor<{N}x{K}xf32>)")
