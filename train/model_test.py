from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn.weights import to_torch
from train.config import Config, TrainingConfig, check
from train.data.batches import Examples
from train.model import build_model
from train.model_config import RecurrentConfig, TransformerConfig
from train.setting import ConfigError
from train.training.optimizer import make_optimizer
from train.training.step import make_init, make_train_steps

DROPOUTS = {"dropout": 0.1, "dropout_words": 0.1, "dropout_embedding": 0.1, "dropout_output": 0.1}


@pytest.mark.slow
@pytest.mark.parametrize("query", ["new", "between"])
def test_a_model_with_everything_learns_in_bfloat16(query):
    sizes = {"num_hiddens": 16, "embed_size": 8, "bidirectional": False}
    config = RecurrentConfig(**sizes, **DROPOUTS, query=query, tie_embeddings="all", variational=True, dtype="bfloat16")
    model = build_model(config, 9, 9)
    optimizer = make_optimizer(TrainingConfig(learning_rate=0.03, schedule="constant"), 60)
    tokens, full = np.random.default_rng(0).integers(4, 9, (1, 4, 5)).astype(np.int32), np.full((1, 4), 5, np.int32)
    batches = Examples(*(x.repeat(60, 0) for x in (tokens, full, tokens, full)))
    state = make_init(model, optimizer)(np.uint32(0), jax.tree.map(lambda x: x[0], batches))
    state, losses = make_train_steps(model, optimizer, label_smoothing=0.1)(state, batches)
    assert losses.nats[-10:].mean() < 0.6 * losses.nats[0]
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype(jnp.float32)}


def test_the_encoder_may_have_a_size_of_its_own_behind_a_bridge():
    config = RecurrentConfig(embed_size=4, num_hiddens=6, encoder_hiddens=5)
    token = np.zeros((1, 1), np.int32)
    weights = to_torch(jax.jit(build_model(config, 9, 9).init)(jax.random.key(0), token, token))
    assert weights["encoder.rnn.weight_hh_l0_reverse"].shape == (15, 5)
    assert weights["decoder.bridge_h.weight"].shape == (6, 10)
    with pytest.raises(ConfigError, match="bridge be set; got 10 and 6"):
        check(Config(model=replace(config, bridge=False)))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (RecurrentConfig(family="transformer"), "model.family must be recurrent in RecurrentConfig; got transformer"),
        (TransformerConfig(family="recurrent"), "model.family must be transformer in TransformerConfig; got recurrent"),
        (TransformerConfig(num_heads=5), "model.embed-size must be a multiple of model.num-heads; got 64 for 5 heads"),
        (TransformerConfig(activation="tanh"), r"activation must be one of \('relu', 'gelu', 'silu'\); got 'tanh'"),
    ],
)
def test_settings_that_no_model_can_have_are_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        build_model(config, 9, 9)


@pytest.mark.parametrize("name", DROPOUTS)
def test_a_rate_of_one_is_refused(name):
    with pytest.raises(ConfigError, match=rf"model.{name.replace('_', '-')} must be in \[0, 1\); got 1.0"):
        check(Config(model=RecurrentConfig(**{name: 1.0})))
