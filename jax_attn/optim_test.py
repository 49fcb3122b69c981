"""Each optimiser against torch.optim's own class: the parameters and the whole state, at each of 50 steps."""

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from jax_attn.optim import (
    OPTIMIZERS,
    adagrad,
    adam,
    adamw,
    clip_by_global_norm,
    rmsprop,
    scale_by_adam,
    sgd,
)
from train.config import Config, ConfigError, TrainingConfig, check, optimizer_settings
from train.optimizer import make_optimizer

STEPS = 50
SHAPES = {"scalar": (), "bias": (5,), "weight": (3, 4), "embedding": (6, 2, 3), "one": (1,)}
ADAM_STATE = {"exp_avg": "mu", "exp_avg_sq": "nu"}
RMS_STATE = {"square_avg": "nu"}

Settings = dict[str, Any]
CASES: list[tuple[Callable[..., Any], type, Settings, dict[str, str]]] = [
    (adam, torch.optim.Adam, {}, ADAM_STATE),
    (adam, torch.optim.Adam, {"betas": (0.8, 0.95), "eps": 1e-2, "weight_decay": 0.1}, ADAM_STATE),
    (adam, torch.optim.Adam, {"betas": (0.0, 0.5)}, ADAM_STATE),
    (adamw, torch.optim.AdamW, {}, ADAM_STATE),
    (adamw, torch.optim.AdamW, {"betas": (0.7, 0.99), "eps": 1e-3, "weight_decay": 0.3}, ADAM_STATE),
    (sgd, torch.optim.SGD, {}, {}),
    (sgd, torch.optim.SGD, {"weight_decay": 0.2}, {}),
    (sgd, torch.optim.SGD, {"momentum": 0.9}, {"momentum_buffer": "trace"}),
    (sgd, torch.optim.SGD, {"momentum": 0.8, "dampening": 0.4, "weight_decay": 0.1}, {"momentum_buffer": "trace"}),
    (sgd, torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, {"momentum_buffer": "trace"}),
    (rmsprop, torch.optim.RMSprop, {}, RMS_STATE),
    (rmsprop, torch.optim.RMSprop, {"alpha": 0.9, "eps": 1e-2, "weight_decay": 0.1}, RMS_STATE),
    (rmsprop, torch.optim.RMSprop, {"momentum": 0.9}, {**RMS_STATE, "momentum_buffer": "trace"}),
    (rmsprop, torch.optim.RMSprop, {"centered": True}, {**RMS_STATE, "grad_avg": "mu"}),
    (
        rmsprop,
        torch.optim.RMSprop,
        {"alpha": 0.8, "centered": True, "momentum": 0.7, "weight_decay": 0.1, "eps": 1e-3},
        {**RMS_STATE, "grad_avg": "mu", "momentum_buffer": "trace"},
    ),
    (adagrad, torch.optim.Adagrad, {}, {"sum": "sum_of_squares"}),
    (
        adagrad,
        torch.optim.Adagrad,
        {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.3, "eps": 1e-2},
        {"sum": "sum_of_squares"},
    ),
]
IDS = [f"{torch_class.__name__}-{'-'.join(settings) or 'defaults'}" for _, torch_class, settings, _ in CASES]


def draw(seed: int) -> dict[str, np.ndarray]:
    """Numbers of several sizes; some are 0, and some come back only after many steps."""
    rng = np.random.default_rng(seed)
    tensors = {name: rng.normal(size=shape) * 10.0 ** rng.integers(-3, 2) for name, shape in SHAPES.items()}
    tensors["embedding"][rng.random(6) < 0.7] = 0.0
    return tensors


def run_torch(
    torch_class: type, settings: Settings, rates: list[float] | None = None, max_norm: float | None = None
) -> Iterator[tuple[dict[str, np.ndarray], dict[str, dict[str, np.ndarray]]]]:
    """(parameters, state by its names and by the parameters') after each step."""
    parameters = {name: torch.nn.Parameter(torch.tensor(array)) for name, array in draw(0).items()}
    optimizer = torch_class(parameters.values(), **settings)
    for step in range(STEPS):
        for name, gradient in draw(step + 1).items():
            parameters[name].grad = torch.tensor(gradient)
        if rates is not None:
            optimizer.param_groups[0]["lr"] = rates[step]
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters.values(), max_norm)
        optimizer.step()
        state: dict[str, dict[str, np.ndarray]] = {}
        for name, parameter in parameters.items():
            for key, value in optimizer.state[parameter].items():
                if value is not None:
                    state.setdefault(key, {})[name] = value.detach().numpy().copy()
        yield {name: parameter.detach().numpy().copy() for name, parameter in parameters.items()}, state


def run_jax(optimizer: optax.GradientTransformation) -> Iterator[tuple[dict[str, jax.Array], Any]]:
    parameters = jax.tree.map(jnp.asarray, draw(0))
    state = optimizer.init(parameters)

    @jax.jit
    def take_step(parameters: Any, state: Any, gradients: Any) -> Any:
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state

    for step in range(STEPS):
        parameters, state = take_step(parameters, state, draw(step + 1))
        yield parameters, state


def assert_close(ours: dict[str, Any], twin: dict[str, np.ndarray], bound: float = 1e-12) -> None:
    assert ours.keys() == twin.keys()
    for name, expected in twin.items():
        assert ours[name].dtype == expected.dtype
        np.testing.assert_allclose(
            ours[name], expected, rtol=0, atol=bound * max(np.abs(expected).max(), 1e-300), err_msg=name
        )


@pytest.mark.parametrize(("make", "torch_class", "settings", "names"), CASES, ids=IDS)
def test_parameters_and_state_are_torchs(x64, make, torch_class, settings, names):
    for (ours, our_state), (twin, state) in zip(
        run_jax(make(**settings)), run_torch(torch_class, settings), strict=True
    ):
        assert_close(ours, twin)
        assert names.keys() == state.keys() - {"step"}
        for torch_name, name in names.items():
            assert_close(optax.tree.get(our_state, name), state[torch_name])


@pytest.mark.parametrize("make", [adam, adamw, sgd, rmsprop, adagrad])
def test_the_defaults_are_torchs(make):
    torch_class = next(torch_class for function, torch_class, _, _ in CASES if function is make)
    theirs = inspect.signature(torch_class).parameters
    for name, parameter in inspect.signature(make).parameters.items():
        assert parameter.default == theirs["lr" if name == "learning_rate" else name].default, name


@pytest.mark.parametrize(
    ("make", "torch_class", "settings"),
    [
        (adamw, torch.optim.AdamW, {}),
        (sgd, torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5}),
        (rmsprop, torch.optim.RMSprop, {"momentum": 0.9}),
        (adagrad, torch.optim.Adagrad, {"lr_decay": 0.1}),
    ],
)
def test_a_schedule_is_followed_from_its_beginning(x64, make, torch_class, settings):
    rates = [0.1 * 0.5 * (1 + math.cos(math.pi * step / STEPS)) for step in range(STEPS)]
    optimizer = make(optax.cosine_decay_schedule(0.1, STEPS), **settings)
    for (ours, _), (twin, _) in zip(run_jax(optimizer), run_torch(torch_class, settings, rates), strict=True):
        assert_close(ours, twin)


def test_clipping_with_torchs_epsilon_is_torchs(x64):
    optimizer = optax.chain(clip_by_global_norm(0.5, eps=1e-6), sgd(1e-1))
    for (ours, _), (twin, _) in zip(
        run_jax(optimizer), run_torch(torch.optim.SGD, {"lr": 1e-1}, max_norm=0.5), strict=True
    ):
        assert_close(ours, twin)


@pytest.mark.parametrize(("eps", "norm"), [(0.0, 1.0), (1e-6, 5 / (5 + 1e-6))])
def test_the_norm_that_clipping_leaves(x64, eps, norm):
    clip = clip_by_global_norm(1.0, eps)
    for gradients, expected in (([3.0, 4.0], norm), ([0.3, 0.4], 0.5), ([0.0, 0.0], 0.0)):
        clipped, _ = clip.update(jnp.array(gradients), clip.init(jnp.zeros(2)))
        assert float(jnp.linalg.norm(clipped)) == pytest.approx(expected, abs=1e-15)


def test_adams_first_steps_are_right_to_a_few_roundoffs_in_float32():
    """With a constant gradient each step is g / (|g| + ε), in exact arithmetic 1; Optax's is 6e-6 and 1e-5 too long."""
    gradient = jnp.ones(1)
    far = {}
    for name, transformation in (("ours", scale_by_adam(eps=1e-8)), ("optax", optax.scale_by_adam(eps=1e-8))):
        state, far[name] = transformation.init(gradient), 0.0
        update = jax.jit(transformation.update)
        for _ in range(200):
            direction, state = update(gradient, state)
            far[name] = max(far[name], abs(float(direction[0]) - 1))
    assert far["ours"] <= 2e-6
    assert far["optax"] >= 6e-6


def test_settings_that_torch_refuses_are_refused():
    parameters = [torch.nn.Parameter(torch.zeros(1))]
    for make, settings in (
        (sgd, {"nesterov": True}),
        (sgd, {"nesterov": True, "momentum": 0.9, "dampening": 0.1}),
        (sgd, {"momentum": -0.1}),
        (adam, {"betas": (1.0, 0.999)}),
        (adamw, {"weight_decay": -1.0}),
        (rmsprop, {"alpha": -0.1}),
        (adagrad, {"lr_decay": -0.1}),
        (adagrad, {"initial_accumulator_value": -0.1}),
    ):
        torch_class = next(torch_class for function, torch_class, _, _ in CASES if function is make)
        with pytest.raises(ValueError, match=r"Invalid|requires"):
            torch_class(parameters, **settings)
        with pytest.raises(ValueError, match=next(iter(settings))):
            make(**settings)


# The configuration


def test_the_default_is_adam_behind_the_books_clipping(x64):
    ours = make_optimizer(TrainingConfig(decay=False), num_steps=STEPS)
    optaxs = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.005))
    for (parameters, state), (expected, expected_state) in zip(run_jax(ours), run_jax(optaxs), strict=True):
        assert_close(parameters, jax.device_get(expected))
        assert jax.tree.structure(state) == jax.tree.structure(expected_state)


def test_every_setting_is_one_of_the_optimisers_and_the_other_way_round():
    for name, make in OPTIMIZERS.items():
        known = set(inspect.signature(make).parameters) - {"learning_rate"}
        for setting in ("weight_decay", "betas", "eps", "momentum", "dampening", "alpha", "lr_decay",
                        "initial_accumulator_value", "nesterov", "centered"):  # fmt: skip
            value = {"betas": (0.5, 0.5), "nesterov": True, "centered": True}.get(setting, 0.5)
            training = TrainingConfig(optimizer=name, **{setting: value})
            if setting not in known or (name == "sgd" and setting != "weight_decay"):
                with pytest.raises(ConfigError, match=f"{setting.replace('_', '-')} belongs to optimizer"):
                    check(Config(training=training))
            else:
                check(Config(training=training))
                assert optimizer_settings(training)[setting] == value
                make_optimizer(training, 1)


def test_a_setting_of_0_is_a_setting_and_the_default_is_torchs():
    assert optimizer_settings(TrainingConfig()) == {}
    assert optimizer_settings(TrainingConfig(optimizer="momentum")) == {"momentum": 0.9}
    assert optimizer_settings(TrainingConfig(optimizer="momentum", momentum=0.0)) == {"momentum": 0.0}
    assert optimizer_settings(TrainingConfig(optimizer="adamw", weight_decay=0.0)) == {"weight_decay": 0.0}


@pytest.mark.parametrize(
    ("settings", "torch_class", "torch_settings"),
    [
        ({"optimizer": "adamw"}, torch.optim.AdamW, {}),
        ({"optimizer": "sgd"}, torch.optim.SGD, {}),
        ({"optimizer": "momentum"}, torch.optim.SGD, {"momentum": 0.9}),
        ({"optimizer": "momentum", "nesterov": True}, torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        ({"optimizer": "rmsprop", "centered": True}, torch.optim.RMSprop, {"centered": True}),
        ({"optimizer": "adagrad", "weight_decay": 0.1}, torch.optim.Adagrad, {"weight_decay": 0.1}),
    ],
)
def test_a_configuration_gives_torchs_optimiser_with_clipping(x64, settings, torch_class, torch_settings):
    training = TrainingConfig(decay=False, learning_rate=0.1, clip_norm=0.5, clip_epsilon=1e-6, **settings)
    theirs = run_torch(torch_class, {"lr": 0.1, **torch_settings}, max_norm=0.5)
    for (ours, _), (twin, _) in zip(run_jax(make_optimizer(training, STEPS)), theirs, strict=True):
        assert_close(ours, twin)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optimizer": "adamw", "betas": (0.9, 1.0)}, r"training.betas must be in \[0, 1\)"),
        ({"optimizer": "momentum", "nesterov": True, "momentum": 0.0}, "nesterov needs training.momentum > 0"),
        ({"optimizer": "momentum", "nesterov": True, "dampening": 0.5}, "training.dampening 0"),
        ({"weight_decay": -0.1}, r"training.weight-decay must be in \[0, 1000.0\]; got -0.1"),
        ({"optimizer": "rmsprop", "alpha": 1.5}, r"training.alpha must be in \[0, 1\]; got 1.5"),
        ({"eps": 0.0}, "training.eps must be in"),
        ({"clip_epsilon": -1.0}, "training.clip-epsilon must be in"),
    ],
)
def test_settings_that_no_run_could_use_are_told(settings, said):
    with pytest.raises(ConfigError, match=said):
        check(Config(training=TrainingConfig(**settings)))
