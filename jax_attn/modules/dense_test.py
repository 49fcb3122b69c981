"""Dense layers: the same as Flax's, however the inputs are divided among devices."""

import flax.linen as nn
import jax
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from jax_attn.modules.dense import Dense

X = jax.random.normal(jax.random.key(1), (2, 3, 4))


def outputs_and_gradients(module, x):
    params = module.init(jax.random.key(0), X)
    return jax.jit(jax.value_and_grad(lambda p, x: (module.apply(p, x) ** 2).sum(), argnums=(0, 1)))(params, x)


@pytest.mark.parametrize(
    "spec", [None, PartitionSpec("rows"), PartitionSpec(None, "rows"), PartitionSpec("rows", "time")]
)
@pytest.mark.parametrize("use_bias", [True, False])
def test_it_is_flax_s_dense(spec, use_bias):
    expected = outputs_and_gradients(nn.Dense(5, use_bias), X)
    if spec is None:
        found = outputs_and_gradients(Dense(5, use_bias), X)
    else:
        mesh = jax.make_mesh((1, 1), ("rows", "time"), axis_types=(AxisType.Explicit,) * 2)
        with jax.set_mesh(mesh):
            x = jax.device_put(X, jax.NamedSharding(mesh, spec))
            found = outputs_and_gradients(Dense(5, use_bias), x)
        assert found[1][1].sharding.spec == jax.typeof(x).sharding.spec
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)
