"""Compare each optimiser with torch.optim: the parameters and the whole state at each of 30 steps."""

import inspect
import math
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from jax_attn.optim import OPTIMIZERS, SGD, Adagrad, Adam, AdamW, RMSprop, clip_by_global_norm, scale_by_adam

STEPS = 30
SHAPES = {"scalar": (), "bias": (5,), "weight": (3, 4), "embedding": (6, 2, 3), "one": (1,)}
ADAM_STATE = {"exp_avg": "mu", "exp_avg_sq": "nu"}
RMS_STATE = {"square_avg": "nu"}

Settings = dict[str, Any]
KINDS = list(dict.fromkeys(type(settings) for settings in OPTIMIZERS.values()))
CASES: list[tuple[type, Settings, dict[str, str]]] = [
    (Adam, {}, ADAM_STATE),
    (Adam, {"betas": (0.8, 0.95), "eps": 1e-2, "weight_decay": 0.1}, ADAM_STATE),
    (Adam, {"betas": (0.0, 0.5)}, ADAM_STATE),
    (AdamW, {}, ADAM_STATE),
    (AdamW, {"betas": (0.7, 0.99), "eps": 1e-3, "weight_decay": 0.3}, ADAM_STATE),
    (SGD, {}, {}),
    (SGD, {"momentum": 0.9}, {"momentum_buffer": "trace"}),
    (SGD, {"momentum": 0.8, "dampening": 0.4, "weight_decay": 0.1}, {"momentum_buffer": "trace"}),
    (SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, {"momentum_buffer": "trace"}),
    (RMSprop, {}, RMS_STATE),
    (RMSprop, {"alpha": 0.9, "eps": 1e-2, "weight_decay": 0.1}, RMS_STATE),
    (RMSprop, {"momentum": 0.9}, {**RMS_STATE, "momentum_buffer": "trace"}),
    (RMSprop, {"centered": True}, {**RMS_STATE, "grad_avg": "mu"}),
    (
        RMSprop,
        {"alpha": 0.8, "centered": True, "momentum": 0.7, "weight_decay": 0.1, "eps": 1e-3},
        {**RMS_STATE, "grad_avg": "mu", "momentum_buffer": "trace"},
    ),
    (Adagrad, {}, {"sum": "sum_of_squares"}),
    (
        Adagrad,
        {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.3, "eps": 1e-2},
        {"sum": "sum_of_squares"},
    ),
]
IDS = [f"{kind.__name__}-{'-'.join(settings) or 'defaults'}" for kind, settings, _ in CASES]


def torch_class(kind: type) -> type:
    """PyTorch's optimiser of the same name."""
    return getattr(torch.optim, kind.__name__)


def draw(seed: int) -> dict[str, np.ndarray]:
    """Draw tensors of several magnitudes; some rows are 0 at most steps."""
    rng = np.random.default_rng(seed)
    tensors = {name: np.asarray(rng.normal(size=shape) * 10.0 ** rng.integers(-3, 2)) for name, shape in SHAPES.items()}
    tensors["embedding"][rng.random(6) < 0.7] = 0.0
    return tensors


def run_torch(
    kind: type, settings: Settings, rates: list[float] | None = None, max_norm: float | None = None
) -> Iterator[tuple[dict[str, np.ndarray], dict[str, dict[str, np.ndarray]]]]:
    """Yield the parameters and the state, by its names and then by parameter, after each step."""
    parameters = {name: torch.nn.Parameter(torch.tensor(array)) for name, array in draw(0).items()}
    optimizer = torch_class(kind)(parameters.values(), **settings)
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


@pytest.mark.parametrize(("kind", "settings", "names"), CASES, ids=IDS)
def test_parameters_and_state_are_torchs(x64, kind, settings, names):
    for (ours, our_state), (twin, state) in zip(
        run_jax(kind(**settings).build()), run_torch(kind, settings), strict=True
    ):
        assert_close(ours, twin)
        assert names.keys() == state.keys() - {"step"}
        for torch_name, name in names.items():
            assert_close(optax.tree.get(our_state, name), state[torch_name])


@pytest.mark.parametrize("kind", KINDS)
def test_the_defaults_are_torchs(kind):
    theirs = inspect.signature(torch_class(kind)).parameters
    for field in fields(kind):
        assert field.default == theirs[field.name].default, field.name
    assert inspect.signature(kind.build).parameters["learning_rate"].default == theirs["lr"].default


def test_every_optimiser_of_the_registry_is_compared_and_momentum_is_that_of_sgd():
    assert {kind for kind, _, _ in CASES} == set(KINDS)
    assert OPTIMIZERS["momentum"] == SGD(momentum=0.9)
    others = {name: settings for name, settings in OPTIMIZERS.items() if name != "momentum"}
    assert all(settings == type(settings)() for settings in others.values())


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (AdamW, {}),
        (SGD, {"momentum": 0.9, "dampening": 0.5}),
        (RMSprop, {"momentum": 0.9}),
        (Adagrad, {"lr_decay": 0.1}),
    ],
)
def test_a_schedule_is_followed_from_its_beginning(x64, kind, settings):
    rates = [0.1 * 0.5 * (1 + math.cos(math.pi * step / STEPS)) for step in range(STEPS)]
    optimizer = kind(**settings).build(optax.cosine_decay_schedule(0.1, STEPS))
    for (ours, _), (twin, _) in zip(run_jax(optimizer), run_torch(kind, settings, rates), strict=True):
        assert_close(ours, twin)


def test_clipping_with_torchs_epsilon_is_torchs(x64):
    optimizer = optax.chain(clip_by_global_norm(0.5, eps=1e-6), SGD().build(1e-1))
    theirs = run_torch(SGD, {"lr": 1e-1}, max_norm=0.5)
    for (ours, _), (twin, _) in zip(run_jax(optimizer), theirs, strict=True):
        assert_close(ours, twin)


@pytest.mark.parametrize(("eps", "norm"), [(0.0, 1.0), (1e-6, 5 / (5 + 1e-6))])
def test_the_norm_that_clipping_leaves(x64, eps, norm):
    clip = clip_by_global_norm(1.0, eps)
    for gradients, expected in (([3.0, 4.0], norm), ([0.3, 0.4], 0.5), ([0.0, 0.0], 0.0)):
        clipped, _ = clip.update(jnp.array(gradients), clip.init(jnp.zeros(2)))
        assert float(jnp.linalg.norm(clipped)) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_large_gradients_of_float16_are_clipped_and_not_zero(eps):
    clip = clip_by_global_norm(1.0, eps)
    clipped, _ = clip.update(jnp.full(4, 300, jnp.float16), clip.init(jnp.zeros(4)))
    np.testing.assert_array_equal(clipped, np.full(4, 0.5, np.float16))


@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_a_largest_norm_of_zero_leaves_zeros(eps):
    for gradients in ([0.0, 0.0], [3.0, 4.0]):
        clipped, _ = clip_by_global_norm(0.0, eps).update(jnp.array(gradients), optax.EmptyState())
        np.testing.assert_array_equal(clipped, [0, 0])


@pytest.mark.parametrize("max_norm", [0.1, 1.0, 1e3])
def test_clipping_without_epsilon_is_optaxs(max_norm):
    draw = np.random.default_rng(0).standard_normal
    gradients = {"a": jnp.asarray(draw((3, 4)), jnp.float32), "b": [jnp.asarray(draw(5), jnp.float32)]}
    ours, theirs = (
        clip.update(gradients, optax.EmptyState())[0]
        for clip in (clip_by_global_norm(max_norm), optax.clip_by_global_norm(max_norm))
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), ours, theirs)


@pytest.mark.parametrize("max_norm", [-1.0, math.nan])
def test_a_norm_that_would_turn_the_gradients_round_is_refused(max_norm):
    for eps in (0.0, 1e-6):
        with pytest.raises(ValueError, match=f"max_norm must be at least 0; got {max_norm}"):
            clip_by_global_norm(max_norm, eps)
    with pytest.raises(ValueError, match="eps must be at least 0 and finite; got -1"):
        clip_by_global_norm(1.0, -1.0)


@pytest.mark.usefixtures("own_checks")
def test_a_norm_may_be_infinite_or_traced():
    def clipped(max_norm):
        return clip_by_global_norm(max_norm).update(jnp.array([3.0, 4.0]), optax.EmptyState())[0]

    np.testing.assert_array_equal(clipped(math.inf), [3, 4])
    np.testing.assert_allclose(jax.jit(clipped)(1.0), [0.6, 0.8], rtol=1e-6)


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


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (SGD, {"nesterov": True}),
        (SGD, {"nesterov": True, "momentum": 0.9, "dampening": 0.1}),
        (SGD, {"momentum": -0.1}),
        (Adam, {"betas": (1.0, 0.999)}),
        (Adam, {"eps": -1e-8}),
        (AdamW, {"weight_decay": -1.0}),
        (RMSprop, {"alpha": -0.1}),
        (Adagrad, {"lr_decay": -0.1}),
        (Adagrad, {"initial_accumulator_value": -0.1}),
    ],
)
def test_settings_that_torch_refuses_are_refused(kind, settings):
    with pytest.raises(ValueError, match=r"Invalid|requires"):
        torch_class(kind)([torch.nn.Parameter(torch.zeros(1))], **settings)
    with pytest.raises(ValueError, match=next(iter(settings))):
        kind(**settings)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(RMSprop, {"alpha": 1.5}), (Adam, {"weight_decay": math.nan}), (SGD, {"dampening": math.inf})],
)
def test_settings_that_could_only_diverge_are_refused(kind, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        kind(**settings)
