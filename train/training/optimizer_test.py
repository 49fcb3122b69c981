"""The optimiser of a configuration, against torch.optim with PyTorch's own clipping."""

from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from jax_attn.optim import OPTIMIZERS
from jax_attn.settings import OptimizerName
from train.config import TrainingConfig
from train.setting import ConfigError
from train.training.optimizer import chosen_optimizer, make_optimizer, make_schedule, setting_names

START = np.random.default_rng(0).normal(size=(3, 4))
GRADIENTS = np.random.default_rng(1).normal(size=(20, 3, 4))


def run_jax(optimizer: optax.GradientTransformation) -> tuple[jax.Array, Any]:
    @jax.jit
    def take_step(params: jax.Array, state: Any, gradient: jax.Array) -> tuple[jax.Array, Any]:
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    params = jnp.asarray(START)
    state = jax.jit(optimizer.init)(params)
    for gradient in GRADIENTS:
        params, state = take_step(params, state, gradient)
    return params, state


def run_torch(kind: type, settings: dict[str, Any], max_norm: float) -> np.ndarray:
    params = torch.nn.Parameter(torch.tensor(START))
    optimizer = kind([params], **settings)
    for gradient in GRADIENTS:
        params.grad = torch.tensor(gradient)
        torch.nn.utils.clip_grad_norm_([params], max_norm)
        optimizer.step()
    return params.detach().numpy()


@pytest.mark.parametrize(
    ("name", "settings", "kind", "torch_settings"),
    [
        ("adamw", {"betas": (0.8, 0.95)}, torch.optim.AdamW, {"betas": (0.8, 0.95)}),
        ("momentum", {"nesterov": True}, torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    ],
)
def test_a_configuration_gives_torchs_optimiser_with_clipping(x64, name, settings, kind, torch_settings):
    training = TrainingConfig(
        optimizer=name,
        optimizer_settings=settings,
        schedule="constant",
        learning_rate=0.1,
        clip_norm=0.5,
        clip_epsilon=1e-6,
    )
    ours, _ = run_jax(make_optimizer(training, len(GRADIENTS)))
    np.testing.assert_allclose(ours, run_torch(kind, {"lr": 0.1, **torch_settings}, 0.5), rtol=0, atol=1e-12)


def test_the_default_is_adam_behind_the_books_clipping(x64):
    ours, state = run_jax(make_optimizer(TrainingConfig(schedule="constant"), num_steps=1))
    expected, expected_state = run_jax(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.005)))
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12)
    assert jax.tree.structure(state) == jax.tree.structure(expected_state)


def test_the_learning_rate_decays_to_zero(x64):
    training = TrainingConfig(optimizer="sgd", learning_rate=1.0, clip_norm=1e9)
    optimizer = make_optimizer(training, num_steps=2)
    state, take_step = optimizer.init(np.zeros(1)), jax.jit(optimizer.update)
    for expected in (1.0, 0.5, 0.0):
        update, state = take_step(np.ones(1), state, np.zeros(1))
        assert float(-update[0]) == pytest.approx(expected, abs=1e-15)


def test_the_command_line_names_every_optimiser():
    assert set(get_args(OptimizerName)) == set(OPTIMIZERS)


def test_every_setting_is_known_to_its_optimisers_and_refused_by_the_others():
    values = {"betas": (0.5, 0.5), "nesterov": False, "centered": True}
    for setting in sorted({setting for name in OPTIMIZERS for setting in setting_names(name)}):
        for name in OPTIMIZERS:
            training = TrainingConfig(optimizer=name, optimizer_settings={setting: values.get(setting, 0.5)})
            if setting in setting_names(name):
                chosen_optimizer(training)
            else:
                with pytest.raises(ConfigError, match=f"{setting.replace('_', '-')} belongs to optimizer"):
                    chosen_optimizer(training)


@pytest.mark.parametrize("warmup", [0, 3])
def test_the_learning_rate_has_the_digits_of_float64_under_x64(x64, warmup):
    schedule = make_schedule(TrainingConfig(schedule="inverse_sqrt", learning_rate=0.1, warmup=warmup), num_steps=10)
    for step in range(10):
        expected = 0.1 * (step + 1) / warmup if step < warmup else 0.1 * (max(warmup, 1) / (step + 1)) ** 0.5
        assert float(schedule(jnp.asarray(step, jnp.int32))) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("momentum", {"nesterov": True, "dampening": 0.5}, "training.nesterov needs momentum > 0 and dampening 0"),
        ("adam", {"eps": 0.0}, "training.eps must be above 0"),
    ],
)
def test_settings_that_no_run_could_use_are_refused(name, settings, message):
    with pytest.raises(ConfigError, match=message):
        chosen_optimizer(TrainingConfig(optimizer=name, optimizer_settings=settings))
