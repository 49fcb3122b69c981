"""The kernel interpreted, lowered for CUDA, and (where there is a GPU) run. Its tiles are of 32 rows and columns."""

import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import AdditiveAttention, DotProductAttention, additive_score
from jax_attn.functional.additive import sum_of_tanh

KERNELS = {"rational_values", "rational_slopes", "tanh_values", "tanh_slopes"}
DEPRECATED = pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")


def with_gradients(**options):
    def run(queries, keys, w_v, gradient):
        scores, pull_back = jax.vjp(partial(additive_score, **options), queries, keys, w_v)
        return scores, *pull_back(gradient)

    return jax.jit(run)


run, run_kernel = with_gradients(), with_gradients(gpu_kernel=True)


def draw(*shape, scale=1.0, dtype=jnp.float64):
    """Queries, keys, w_v and a gradient of the scores, for shape `(*batch, Q, K, H)`."""
    *batch, num_queries, num_keys, num_hiddens = shape
    random = np.random.default_rng(shape)
    shapes = (*batch, num_queries, num_hiddens), (*batch, num_keys, num_hiddens), (num_hiddens,), shape[:-1]
    queries, keys, *more = (jnp.asarray(random.normal(size=size), dtype) for size in shapes)
    return queries * scale, keys * scale, *more


def distances(a, b):
    assert [(x.shape, x.dtype) for x in a] == [(x.shape, x.dtype) for x in b]
    return [float(jnp.abs(x - y).max() / jnp.abs(y).max()) for x, y in zip(a, b, strict=True)]


# With the scale 1e-3 the sum is taken over tanh itself, with 1 over exponentials.
@pytest.mark.parametrize("scale", [1, 1e-3])
def test_scores_and_every_gradient_are_those_of_the_form_for_xla(x64, scale):
    inputs = draw(2, 1, 37, 67, 33, scale=scale)
    assert max(distances(run_kernel(*inputs), run(*inputs))) < 1e-14


def test_one_key_is_a_tile_too(x64):
    """`additive_score` has another way for so few, but `sum_of_tanh` may be asked."""
    *inputs, gradient = draw(40, 1, 5)

    def answers(gpu_kernel):
        scores, pull_back = jax.vjp(lambda *inputs: sum_of_tanh(*inputs, gpu_kernel), *inputs)
        return scores, *pull_back(gradient)

    assert max(distances(*(jax.jit(answers, static_argnums=0)(by) for by in (True, False)))) < 1e-14


def test_of_no_examples_there_is_nothing_to_add():
    inputs = draw(0, 17, 19, 5, dtype=jnp.float32)
    for mine, theirs in zip(run_kernel(*inputs), run(*inputs), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_vmap_over_examples_and_over_weights_gives_the_same(x64):
    queries, keys, w_v, gradient = draw(2, 17, 35, 5)
    weights = jnp.stack([w_v, -2 * w_v])
    mapped = jax.jit(jax.vmap(run_kernel))(queries, keys, weights, gradient)
    for i in range(2):
        expected = run(queries[i], keys[i], weights[i], gradient[i])
        assert max(distances([x[i] for x in mapped], expected)) < 1e-14


@pytest.mark.parametrize("form", ["plain", "blockwise"])
def test_the_module_takes_its_scores_by_the_kernel(form):
    queries, keys, *_ = draw(2, 17, 35, 5, dtype=jnp.float32)

    def program(gpu_kernel):
        module = AdditiveAttention(4, form=form, gpu_kernel=gpu_kernel)
        return str(jax.make_jaxpr(partial(module.init, return_weights=False))(jax.random.key(0), queries, keys, keys))

    assert "sum_of_rational_values" in program(True)
    assert "sum_of_rational_values" not in program(False)


def test_a_second_derivative_is_refused():
    queries, keys, w_v, _ = draw(17, 16, 4, dtype=jnp.float32)
    slope = jax.grad(lambda keys: jnp.sum(jnp.sin(additive_score(queries, keys, w_v, gpu_kernel=True))))
    with pytest.raises(NotImplementedError, match="no second derivative with gpu_kernel=True"):
        jax.make_jaxpr(jax.grad(lambda keys: jnp.sum(slope(keys) ** 2)))(keys)


def test_it_is_refused_where_it_has_nothing_to_do():
    *inputs, _ = draw(17, 16, 4, dtype=jnp.float32)
    with pytest.raises(ValueError, match="needs use_tanh=True; got use_tanh=False"):
        additive_score(*inputs, use_tanh=False, gpu_kernel=True)
    with pytest.raises(TypeError, match="gpu_kernel"):
        DotProductAttention(gpu_kernel=True)


def lowered(function, dtype):
    """The program for a GPU that is not there; JAX asks from 0.11 on which it is."""
    device = jax.sharding.AbstractDevice("NVIDIA H200", None, "gpu")
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device)):
        return function.trace(*draw(2, 37, 67, 5, dtype=dtype)).lower(lowering_platforms=("cuda",)).as_text()


@DEPRECATED
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_for_cuda_every_sum_is_one_triton_kernel(x64, dtype):
    text = lowered(run_kernel, dtype)
    calls = [line for line in text.splitlines() if "__gpu$xla.gpu.triton" in line]
    assert len(calls) == 2 * 4  # by exponentials and by tanh: the scores, and three gradients
    assert {name for name in KERNELS for call in calls if f'name = "sum_of_{name}"' in call} == KERNELS
    assert all("num_warps = 2" in call for call in calls)
    grids = {tuple(f"grid_{axis} = {n} " in call for axis, n in zip("xyz", (3, 2, 2), strict=True)) for call in calls}
    assert (True, True, True) in grids  # of the scores: ⌈67 / 32⌉ columns, ⌈37 / 32⌉ rows, 2 examples


@DEPRECATED
def test_nothing_chooses_it_by_itself():
    assert "triton" not in lowered(run, jnp.float32)


def test_pallas_is_not_imported_before_it_is_asked_for():
    question = "import sys, jax_attn; sys.exit(any(name.startswith('jax.experimental.pallas') for name in sys.modules))"
    subprocess.run([sys.executable, "-c", question], check=True)


@DEPRECATED
@pytest.mark.parametrize("shape", [(8, 512, 512, 128), (3, 65, 190, 77)])
@pytest.mark.parametrize("scale", [1e-3, 1])
def test_on_a_gpu_it_is_as_exact_as_the_form_for_xla(x64, shape, scale):
    if jax.default_backend() != "gpu":
        pytest.skip("needs an NVIDIA GPU: the compiled kernel against the form for XLA")
    inputs = draw(*shape, scale=scale, dtype=jnp.float32)
    exact = [x.astype(jnp.float32) for x in run(*(x.astype(jnp.float64) for x in inputs))]
    mine, of_xla = (distances(answer(*inputs), exact) for answer in (run_kernel, run))
    for error, allowed in zip(mine, of_xla, strict=True):
        assert error <= 2 * allowed + 8 * float(jnp.finfo(jnp.float32).eps)
