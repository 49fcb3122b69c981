"""Write attention for one sentence, map it over heads and over a batch, and differentiate it.

Run it: python examples/attention.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import jax_attn
from jax_attn.compiler import avoid_faults


def attend(query: jax.Array, key: jax.Array, value: jax.Array, valid_len: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute softmax(Q Kᵀ / √D) V for `[Q, D]` queries, over the first `valid_len` of `[K, D]` keys."""
    scores = query @ key.T / jnp.sqrt(query.shape[-1])  # [Q, K]
    weights = jax_attn.masked_softmax(scores, valid_len)  # [Q, K]: each row sums to 1, and is 0 past the length
    return weights @ value, weights


over_heads = jax.vmap(attend, in_axes=(0, 0, 0, None))  # the heads of a sentence share its length
over_batch = jax.jit(jax.vmap(over_heads))  # each sentence has its own length


def main() -> None:
    avoid_faults()  # of the compiler, in some versions of jaxlib
    random = np.random.default_rng(0)
    query = random.normal(size=(2, 4, 3, 8))  # 2 sentences, 4 heads, 3 queries, 8 features
    key, value = random.normal(size=(2, 2, 4, 5, 8))  # 5 keys
    valid_lens = np.array([5, 2])

    context, weights = over_batch(query, key, value, valid_lens)
    print("context", context.shape, "weights", weights.shape)
    show("weights of a query in the second sentence, which has 2 words", weights[1, 0, 0])

    # A value moves the sum of the contexts as much as it is attended to. What is masked does not move it.
    gradient = jax.grad(lambda value: over_batch(query, key, value, valid_lens)[0].sum())(value)
    show("attention that each word gets from all queries", weights[1, 0].sum(0))
    show("gradient of the sum of the contexts", gradient[1, 0, :, 0])

    # The library's functions take any number of leading axes, and need no vmap.
    same, _ = jax_attn.attention(query, key, value, valid_lens=np.repeat(valid_lens[:, None], 4, axis=1))
    print("the same as jax_attn.attention:", np.allclose(context, same, atol=1e-6))


def show(name: str, numbers: jax.Array) -> None:
    print(f"{name}:", *(f"{x:.3f}" for x in numbers))


if __name__ == "__main__":
    main()
