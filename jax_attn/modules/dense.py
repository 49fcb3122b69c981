"""Dense layers that are cheap to train."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from flax.typing import Initializer
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float


def project(
    x: Float[Array, "*batch feature"],
    kernel: Float[Array, "feature output"],
    bias: Float[Array, "output"] | None = None,
) -> Float[Array, "*batch output"]:
    """Return x W + b, where the gradients of W and b are cheap on a CPU, too.

    There all axes but the last become one axis of rows. With two or more, XLA copies the transposed gradient of the
    result for that of W, and each of these copies computes that gradient once more, from the last layer on: a step of
    a Transformer of four layers takes twice as long. And the bias is a product with a column of ones, so that its
    gradient is a product, too. As the sum of all rows it takes up to a tenth of a step.

    An array whose axes are divided among devices (`AxisType.Explicit`) keeps its axes. With `AxisType.Auto` this is not
    known here: on a CPU, XLA then gathers an array whose time axis is divided.
    """
    if jax.default_backend() != "cpu" or any(jax.typeof(x).sharding.spec):
        return x @ kernel if bias is None else x @ kernel + bias
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    result = rows @ kernel
    if bias is not None:
        result += jnp.ones((len(rows), 1), bias.dtype) @ bias[None]
    return result.reshape(*x.shape[:-1], kernel.shape[-1])


class Dense(nn.Module):
    """`flax.linen.Dense` by `project`: the same parameters, `kernel` and `bias`, and arguments."""

    features: int
    use_bias: bool = True
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    kernel_init: Initializer = nn.initializers.lecun_normal()

    @nn.compact
    def __call__(self, inputs: Float[Array, "*batch feature"]) -> Float[Array, "*batch output"]:
        kernel = self.param("kernel", self.kernel_init, (inputs.shape[-1], self.features), self.param_dtype)
        bias = self.param("bias", nn.initializers.zeros, (self.features,), self.param_dtype) if self.use_bias else None
        return project(*promote_dtype(inputs, kernel, bias, dtype=self.dtype))
