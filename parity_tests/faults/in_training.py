"""Faults of an optimiser, planted one at a time on the JAX side: a forward and backward pass sees none of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
import pytest

from jax_attn import optim as optimizers
from parity_tests.training.training import TRAININGS, Training, TrainingComparison, free_running


@dataclass(frozen=True)
class TrainingFault:
    """`make(what was there)` in the place of `jax_attn.optim`' attribute."""

    name: str
    attribute: str
    make: Callable[[Any], Any]
    case: str = "training"
    side: Literal["JAX"] = "JAX"

    def run(self, training: Training, steps: int) -> TrainingComparison:
        """The free-running comparison while the fault is there."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(optimizers, self.attribute, self.make(getattr(optimizers, self.attribute)))
            return free_running(training, steps)

    def is_caught(self) -> bool:
        """Whether a few steps are enough to see it, in one of the trainings."""
        return any(self.run(training, 4).failed for training in TRAININGS)


def merged_biases(adam: Any) -> Any:
    """One recurrent bias instead of PyTorch's two, as in most cells of JAX: what Adam moves their sum by is half.

    The forward pass and both gradients are right. (The one that stays as it was stands for none.)
    """

    def wrong(*arguments: Any, **settings: Any) -> Any:
        right = adam(*arguments, **settings)

        def update(gradients: Any, state: Any, params: Any = None) -> Any:
            updates, state = right.update(gradients, state, params)
            return jax.tree_util.tree_map_with_path(
                lambda path, x: jnp.zeros_like(x) if "bias_hh" in path[-1].key else x, updates
            ), state

        return optax.GradientTransformation(right.init, update)

    return wrong


def epsilon_inside(_: Any) -> Any:
    """m / √(v + ε)."""
    return lambda betas, _: optax.scale_by_adam(*betas, eps=0.0, eps_root=1e-8)


def no_bias_correction(_: Any) -> Any:
    """m / (√v + ε), the moments as they are."""

    def wrong(*_: Any) -> Any:
        inner = optax.scale_by_adam()

        def update(gradients: Any, state: Any, params: Any = None) -> Any:
            _, state = inner.update(gradients, state, params)
            return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + 1e-8), state.mu, state.nu), state

        return optax.GradientTransformation(inner.init, update)

    return wrong


def with_decay(adam: Any) -> Any:
    """Optax's AdamW in the place of Adam."""
    return lambda *settings: optax.chain(adam(*settings), optax.add_decayed_weights(1e-4))


def other_epsilon(clip: Any) -> Any:
    """PyTorch's 1e-6 where it does not belong, and none where it does."""
    return lambda max_norm, eps: clip(max_norm, 0.0 if eps else 1e-6)


def each_on_its_own(_: Any) -> Any:
    """The norm of each tensor clipped, instead of the norm of all together."""

    def clip_one(gradient: Any, max_norm: float) -> Any:
        return gradient * jnp.minimum(1, max_norm / jnp.linalg.norm(gradient))

    return lambda max_norm, _: optax.stateless(
        lambda gradients, _: jax.tree.map(lambda gradient: clip_one(gradient, max_norm), gradients)
    )


TRAINING_FAULTS = (
    TrainingFault("both recurrent biases in one", "scale_by_adam", merged_biases),
    TrainingFault("Adam's epsilon inside of the root", "scale_by_adam", epsilon_inside),
    TrainingFault("no bias correction", "scale_by_adam", no_bias_correction),
    TrainingFault("decay of 1e-4, Optax's AdamW", "scale_by_adam", with_decay),
    TrainingFault("the clipping's epsilon", "clip_by_global_norm", other_epsilon),
    TrainingFault("each gradient clipped on its own", "clip_by_global_norm", each_on_its_own),
)
