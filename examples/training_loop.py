"""Train a translator in a loop of your own, with Optax around the modules. It learns to write numbers backwards.

Run it: python examples/training_loop.py
"""

import jax
import numpy as np
import optax

from jax_attn import EncoderDecoder, Seq2SeqAttentionDecoder, Seq2SeqEncoder, greedy_search, masked_cross_entropy
from jax_attn.compiler import avoid_faults

PAD, BOS, EOS, VOCAB = 10, 11, 12, 13  # after the ten digits
STEPS = 300
encoder = Seq2SeqEncoder(VOCAB, embed_size=32, num_hiddens=16, bidirectional=True)
decoder = Seq2SeqAttentionDecoder(VOCAB, embed_size=32, num_hiddens=32)
model = EncoderDecoder(encoder, decoder)
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(2e-2, STEPS)))


def make_batch(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw 32 numbers of up to 5 digits, their lengths, and targets: <bos>, the digits backwards, <eos>."""
    lengths = random.integers(2, 6, 32)
    numbers, targets = np.full((32, 5), PAD), np.full((32, 7), PAD)
    for number, target, length in zip(numbers, targets, lengths, strict=True):
        number[:length] = random.integers(0, 10, length)
        target[: length + 2] = [BOS, *number[:length][::-1], EOS]
    return numbers, lengths, targets


def loss(params, numbers, lengths, targets):
    logits, _ = model.apply(params, numbers, targets[:, :-1], lengths)  # the decoder reads the right digits …
    return masked_cross_entropy(logits, targets[:, 1:], lengths + 1)  # … and predicts the next ones, and <eos>


@jax.jit
def train_step(params, state, batch):
    value, gradients = jax.value_and_grad(loss)(params, *batch)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(params, updates), state, value


def main() -> None:
    avoid_faults()  # of the compiler, in some versions of jaxlib
    random = np.random.default_rng(0)
    numbers, lengths, targets = make_batch(random)
    params = jax.jit(model.init)(jax.random.key(0), numbers, targets, lengths)
    state = optimizer.init(params)
    for _ in range(STEPS):
        params, state, value = train_step(params, state, make_batch(random))
    print(f"loss after {STEPS} steps: {value:.3f} nats a token")

    bound = model.bind(params)
    memory = bound.encode(numbers, lengths)
    first = bound.initial_state(memory)
    found = greedy_search(bound.step, first, memory, bos=BOS, eos=EOS, max_len=6, batch_size=32)
    for number, length, ids in zip(numbers[:5], lengths, found.ids[:, 0], strict=False):
        print(number[:length], "→", ids[:length])


if __name__ == "__main__":
    main()
