from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jax_attn.models import build_model
from jax_attn.settings import RecurrentConfig
from train.config import TrainingConfig
from train.data.batches import Examples
from train.training.optimizer import make_optimizer
from train.training.step import make_init, make_train_steps

MODEL = build_model(
    RecurrentConfig(attention="dot", embed_size=4, num_hiddens=8, dropout=0.3, bidirectional=False), 20, 20
)
SGD = optax.sgd(0.1)

RANDOM = np.random.default_rng(0)
IDS, LENS = RANDOM.integers(4, 20, (2, 3, 8, 6), np.int32), RANDOM.integers(2, 7, (2, 3, 8), np.int32)
BATCHES = Examples(IDS[0], LENS[0], IDS[1], LENS[1])


@cache
def first_state(average):
    """Return a state in float64."""
    init = make_init(MODEL, SGD, average=average)
    state = jax.device_get(init(np.uint32(0), jax.tree.map(lambda x: x[0], BATCHES)))
    return jax.tree.map(np.float64, state)._replace(step=state.step)


def start(**settings):
    """Return a state, which the steps may overwrite, and the jitted steps."""
    state = jax.tree.map(jnp.array, first_state("average_decay" in settings))
    return state, make_train_steps(MODEL, SGD, **settings)


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


@pytest.mark.slow
@pytest.mark.parametrize("query", ["new", "between"])
def test_a_model_with_everything_learns_in_bfloat16(query):
    dropouts = dict.fromkeys(("dropout", "dropout_words", "dropout_embedding", "dropout_output"), 0.1)
    settings = {"num_hiddens": 16, "embed_size": 8, "bidirectional": False, "variational": True, **dropouts}
    config = RecurrentConfig(**settings, query=query, tie_embeddings="all", dtype="bfloat16")
    model = build_model(config, 9, 9)
    optimizer = make_optimizer(TrainingConfig(learning_rate=0.03, schedule="constant"), 60)
    tokens, full = np.random.default_rng(0).integers(4, 9, (1, 4, 5)).astype(np.int32), np.full((1, 4), 5, np.int32)
    batches = Examples(*(x.repeat(60, 0) for x in (tokens, full, tokens, full)))
    state = make_init(model, optimizer)(np.uint32(0), jax.tree.map(lambda x: x[0], batches))
    state, losses = make_train_steps(model, optimizer, label_smoothing=0.1)(state, batches)
    assert losses.nats[-10:].mean() < 0.6 * losses.nats[0]
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype(jnp.float32)}
