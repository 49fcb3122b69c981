import jax
import numpy as np
import optax
import pytest

from train.config import ModelConfig
from train.data.batches import Examples
from train.model import build_model
from train.step import make_init, make_train_steps

MODEL = build_model(ModelConfig(embed_size=4, num_hiddens=8, dropout=0.3, dropout_words=0.3), 20, 20)


RANDOM = np.random.default_rng(0)
IDS, LENS = RANDOM.integers(4, 20, (2, 3, 8, 6), np.int32), RANDOM.integers(2, 7, (2, 3, 8), np.int32)
BATCHES = Examples(IDS[0], LENS[0], IDS[1], LENS[1])


def train(steps: int = 3, **settings):
    optimizer = optax.sgd(0.1)
    init = make_init(MODEL, optimizer, average="average_decay" in settings)
    state = init(np.uint32(0), jax.tree.map(lambda x: x[0], BATCHES))
    state = optax.tree.cast(state, np.float64)._replace(step=state.step)
    start = jax.tree.map(np.array, state)
    state, losses = make_train_steps(MODEL, optimizer, **settings)(state, jax.tree.map(lambda x: x[:steps], BATCHES))
    return start, jax.tree.map(np.array, state), losses


@pytest.mark.parametrize("loss", ["tokens", "sentences"])
def test_a_batch_in_parts_has_the_same_gradients_and_dropout(x64, loss):
    (_, whole, losses), (_, parts, same) = (train(loss=loss, num_parts=n) for n in (1, 4))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-12), whole, parts)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), losses, same)


def test_the_average_follows_the_parameters_slowly_and_fast_at_the_beginning(x64):
    decay, steps = 0.15, 3
    average = train(1)[0].params
    for step in range(steps):
        params = train(step + 1)[1].params  # those after this step
        d = np.float32(min(decay, (1 + step) / (10 + step)))
        average = jax.tree.map(lambda old, new, d=d: d * old + (1 - d) * new, average, params)
    found = train(steps, average_decay=decay)[1].average
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-12), found, average)
