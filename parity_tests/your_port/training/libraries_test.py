"""Training loops as libraries write them agree with PyTorch's: Optax's wrappers, Flax's TrainState, NNX, Equinox."""

from functools import cache
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from flax.training.train_state import TrainState

from parity_tests import compare_training

RATE, STEPS, PIECES = 1e-2, 5, 2
RNG = np.random.default_rng(0)
BATCHES = [{"x": RNG.normal(size=(8, 4)), "labels": RNG.integers(0, 3, 8)} for _ in range(STEPS)]
with torch.random.fork_rng():
    torch.manual_seed(0)
    WEIGHTS = torch.nn.Linear(4, 3).state_dict()


def torch_start(weights: Any) -> Any:
    """Accumulate two halves of the batch; keep an average that starts from zero and is corrected."""
    model = torch.nn.Linear(4, 3)
    model.load_state_dict(weights)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=1e-4)
    average, steps = {name: torch.zeros_like(p) for name, p in model.named_parameters()}, [0]

    def step(batch: Any) -> Any:
        optimizer.zero_grad()
        total = 0.0
        for x, labels in zip(batch["x"].chunk(PIECES), batch["labels"].chunk(PIECES), strict=True):
            loss = torch.nn.functional.cross_entropy(model(x), labels) / PIECES
            loss.backward()
            total += loss.detach()
        optimizer.step()
        steps[0] += 1
        for name, p in model.named_parameters():
            average[name].lerp_(p.detach(), 0.1)
        return {"loss": total, "ema": {name: x / (1 - 0.9 ** steps[0]) for name, x in average.items()}}

    return model, optimizer, step


def loss_of(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def multi_steps(weights: Any) -> Any:
    """Optax alone: `MultiSteps` accumulates, `ema` averages."""
    optimizer = optax.MultiSteps(optax.adamw(RATE), PIECES, accumulator_dtype=jnp.float64)
    average = optax.ema(0.9)

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        inner, averaged = state
        losses, gradients = [], []
        for part in range(PIECES):
            x, labels = (jnp.split(batch[name], PIECES)[part] for name in ("x", "labels"))
            loss, gradient = jax.value_and_grad(lambda p: loss_of(x @ p["kernel"] + p["bias"], labels))(params)  # noqa: B023
            updates, inner = optimizer.update(gradient, inner, params)
            params = optax.apply_updates(params, updates)
            losses.append(loss)
            gradients.append(gradient)
        shown, averaged = average.update(params, averaged)
        mean = jax.tree.map(lambda *xs: sum(xs) / PIECES, *gradients)
        return params, (inner, averaged), {"loss": sum(losses) / PIECES, "gradients": mean, "ema": shown}

    params = {"kernel": jnp.asarray(weights["weight"]).T, "bias": jnp.asarray(weights["bias"])}
    return params, (optimizer.init(params), average.init(params)), step


def train_state(weights: Any) -> Any:
    """Linen's TrainState, which is rebuilt in each step."""
    model, optimizer = nn.Dense(3, param_dtype=jnp.float64), optax.adamw(RATE)

    @jax.jit
    def step(params: Any, opt_state: Any, batch: Any) -> Any:
        state = TrainState(step=0, apply_fn=model.apply, params=params, tx=optimizer, opt_state=opt_state)
        compute = lambda params: loss_of(state.apply_fn({"params": params}, batch["x"]), batch["labels"])  # noqa: E731
        loss, gradients = jax.value_and_grad(compute)(state.params)
        state = state.apply_gradients(grads=gradients)
        return state.params, state.opt_state, {"loss": loss, "gradients": gradients}

    params = {"kernel": jnp.asarray(weights["weight"]).T, "bias": jnp.asarray(weights["bias"])}
    return params, optimizer.init(params), step


def nnx_optimizer(weights: Any) -> Any:
    """`nnx.Optimizer`, whose state is split from its graph."""
    model = nnx.Linear(4, 3, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    model.kernel[...], model.bias[...] = jnp.asarray(weights["weight"]).T, jnp.asarray(weights["bias"])
    optimizer = nnx.Optimizer(model, optax.adamw(RATE), wrt=nnx.Param)
    graph, params = nnx.split(model, nnx.Param)
    optimizer_graph, opt_state = nnx.split(optimizer)
    return params, opt_state, nnx_step(graph, optimizer_graph)


@cache
def nnx_step(graph: Any, optimizer_graph: Any) -> Any:
    @jax.jit
    def step(params: Any, opt_state: Any, batch: Any) -> Any:
        model, optimizer = nnx.merge(graph, params), nnx.merge(optimizer_graph, opt_state)
        compute = jax.value_and_grad(lambda params: loss_of(nnx.merge(graph, params)(batch["x"]), batch["labels"]))
        loss, gradients = compute(params)
        optimizer.update(model, gradients)
        return nnx.state(model, nnx.Param), nnx.state(optimizer), {"loss": loss, "gradients": gradients}

    return step


def equinox(weights: Any) -> Any:
    """Equinox, with the module itself as the parameters."""
    linear = eqx.nn.Linear(4, 3, key=jax.random.key(0))
    both = (jnp.asarray(weights["weight"]), jnp.asarray(weights["bias"]))
    params, rest = eqx.partition(eqx.tree_at(lambda m: (m.weight, m.bias), linear, both), eqx.is_array)
    optimizer = optax.adamw(RATE)

    @eqx.filter_jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        def compute(params: Any) -> Any:
            return loss_of(jax.vmap(eqx.combine(params, rest))(batch["x"]), batch["labels"])

        loss, gradients = eqx.filter_value_and_grad(compute)(params)
        updates, state = optimizer.update(gradients, state, params)
        return eqx.apply_updates(params, updates), state, {"loss": loss, "gradients": gradients}

    return params, optimizer.init(params), step


@pytest.mark.parametrize("start", [multi_steps, train_state, nnx_optimizer, equinox], ids=lambda start: start.__name__)
def test_the_loops_of_libraries_agree(start: Any) -> None:
    report = compare_training(torch_start, start, WEIGHTS, BATCHES, STEPS)
    assert not report.failed, str(report)
    expected = {"loss", "gradients", "exp_avg", "exp_avg_sq", "parameters"}
    assert report.errors.keys() == expected | ({"ema"} if start is multi_steps else set())
