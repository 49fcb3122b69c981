import jax
import numpy as np
import optax

from train.data.batches import Examples
from train.model import build_model
from train.model_config import RecurrentConfig
from train.training.step import make_init, make_train_steps

MODEL = build_model(
    RecurrentConfig(attention="dot", embed_size=4, num_hiddens=8, dropout=0.3, bidirectional=False), 20, 20
)


RANDOM = np.random.default_rng(0)
IDS, LENS = RANDOM.integers(4, 20, (2, 3, 8, 6), np.int32), RANDOM.integers(2, 7, (2, 3, 8), np.int32)
BATCHES = Examples(IDS[0], LENS[0], IDS[1], LENS[1])


def start(**settings):
    """Return a state in float64, and the jitted steps."""
    optimizer = optax.sgd(0.1)
    init = make_init(MODEL, optimizer, average="average_decay" in settings)
    state = init(np.uint32(0), jax.tree.map(lambda x: x[0], BATCHES))
    return optax.tree.cast(state, np.float64)._replace(step=state.step), make_train_steps(MODEL, optimizer, **settings)


def test_a_batch_in_parts_has_the_same_gradients_and_dropout(x64):
    (whole, losses), (parts, same) = (steps(state, BATCHES) for state, steps in (start(), start(num_parts=4)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-12), whole, parts)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), losses, same)


def test_the_average_follows_the_parameters_slowly_and_fast_at_the_beginning(x64):
    state, steps = start(average_decay=0.15)
    average = jax.tree.map(np.array, state.params)
    for step, decay in enumerate((1 / 10, 0.15, 0.15)):
        state, _ = steps(state, jax.tree.map(lambda x, step=step: x[step : step + 1], BATCHES))
        params = jax.tree.map(np.array, state.params)
        average = jax.tree.map(lambda old, new, d=decay: d * old + (1 - d) * new, average, params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-12), state.average, average)
