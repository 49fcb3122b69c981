"""Use an attention module in a Flax NNX model, which learns to find the largest of a few numbers.

Run it: python examples/nnx_bridge.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jax_attn import AdditiveAttention
from jax_attn.compiler import avoid_faults


class FindLargest(nnx.Module):
    """A learnt query attends to the numbers, and the context is the answer."""

    def __init__(self, num_hiddens: int, rngs: nnx.Rngs):
        self.query = nnx.Param(rngs.normal((1, num_hiddens)))
        self.embed = nnx.Linear(1, num_hiddens, rngs=rngs)
        self.attention = nnx.bridge.ToNNX(AdditiveAttention(num_hiddens), rngs=rngs)
        # Linen makes parameters from the inputs, so it has to see some of the same shapes once.
        self.attention.lazy_init(jnp.ones((1, 1, num_hiddens)), jnp.ones((1, 5, num_hiddens)), jnp.ones((1, 5, 1)))

    def __call__(self, numbers: jax.Array, lengths: jax.Array) -> tuple[jax.Array, jax.Array]:
        values = numbers[..., None]  # [B, K, 1]
        queries = jnp.broadcast_to(self.query[...], (len(numbers), *self.query.shape))
        context, weights = self.attention(queries, self.embed(values), values, lengths)
        return context[:, 0, 0], weights[:, 0]


def make_batch(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    numbers, lengths = random.normal(size=(64, 5)), random.integers(1, 6, 64)
    return numbers, lengths, np.max(numbers, axis=1, where=np.arange(5) < lengths[:, None], initial=-np.inf)


@nnx.jit
def train_step(model: FindLargest, optimizer: nnx.Optimizer, numbers, lengths, largest) -> jax.Array:
    def loss(params: nnx.State) -> jax.Array:
        return jnp.mean((nnx.merge(graph, params, others, copy=True)(numbers, lengths)[0] - largest) ** 2)

    graph, params, others = nnx.split(model, nnx.Param, ...)  # the others are the keys of the dropout
    value, gradients = jax.value_and_grad(loss)(params)
    optimizer.update(model, gradients)
    return value


def main() -> None:
    avoid_faults()  # of the compiler, in some versions of jaxlib
    random, model = np.random.default_rng(0), FindLargest(16, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    for _ in range(300):
        error = train_step(model, optimizer, *make_batch(random))
    print(f"squared error after 300 steps: {error:.4f}")
    numbers = np.array([[0.5, -1.0, 2.0, 1.0, 3.0]])
    largest, weights = model(numbers, np.array([4]))
    print(f"of the first four of {numbers[0]}: {largest[0]:.2f}; weights:", *(f"{x:.2f}" for x in weights[0]))


if __name__ == "__main__":
    main()
