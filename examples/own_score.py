"""Give the decoder a scoring function of your own: the distance of a query and a key, a(q, k) = −s Σ |q − k|.

Run it: python examples/own_score.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import jax_attn
from jax_attn.compiler import avoid_faults


def distance_score(queries, keys, scale):
    """Score `[..., Q, D]` queries against `[..., K, D]` keys: the result is `[..., Q, K]`."""
    return -scale * jnp.abs(queries[..., :, None, :] - keys[..., None, :, :]).sum(-1)


class DistanceAttention(jax_attn.Attention):
    """Masks, softmax, dropout and the memory of keys come from the base class, only parameters and score are ours."""

    dropout: float = 0.0

    def setup(self):
        self.scale = self.param("scale", jax.nn.initializers.ones, ())

    def scoring(self):
        return distance_score, (self.scale,)  # the function, and what it takes after queries and keys


encoder = jax_attn.Seq2SeqEncoder(vocab_size=20, embed_size=8, num_hiddens=16)
decoder = jax_attn.Seq2SeqAttentionDecoder(vocab_size=20, embed_size=8, num_hiddens=16, attention=DistanceAttention())
model = jax_attn.EncoderDecoder(encoder, decoder)


def loss(params, sources, targets, source_lens):
    logits, weights = model.apply(params, sources, targets[:, :-1], source_lens)
    return jax_attn.masked_cross_entropy(logits, targets[:, 1:]), weights


def main() -> None:
    avoid_faults()  # of the compiler, in some versions of jaxlib
    random = np.random.default_rng(0)
    sources, targets, source_lens = random.integers(0, 20, (3, 6)), random.integers(0, 20, (3, 5)), np.array([6, 3, 1])
    params = jax.jit(model.init)(jax.random.key(0), sources, targets, source_lens)
    (_, weights), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params, sources, targets, source_lens)
    print("weights", weights.shape, "of the second sentence, which has 3 words:", *(f"{x:.2f}" for x in weights[1, 0]))
    print(f"gradient of the scale: {gradients['params']['decoder']['attention']['scale']:.3f}")

    bound = model.bind(params)
    memory = bound.encode(sources, source_lens)
    state = bound.initial_state(memory)
    found = jax_attn.greedy_search(bound.step, state, memory, bos=0, eos=1, max_len=5, batch_size=3)
    print("translations of the untrained model:", *found.ids[:, 0].tolist())


if __name__ == "__main__":
    main()
