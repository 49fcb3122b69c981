"""Mistakes in an optimiser, planted in `jax_attn.optim`: one forward and backward pass shows none of them."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from parity_tests.this_library.faults.fault import Fault, around, given, instead


@around
def merged_biases(adam: Any, *arguments: Any, **settings: Any) -> Any:
    """Use one recurrent bias instead of PyTorch's two, as most cells of JAX: Adam moves their sum half as far.

    The forward pass and both gradients are right. (The bias that never moves stands for no bias.)
    """
    right = adam(*arguments, **settings)

    def update(gradients: Any, state: Any, params: Any = None) -> Any:
        updates, state = right.update(gradients, state, params)
        return {name: jnp.zeros_like(x) if "bias_hh" in name else x for name, x in updates.items()}, state

    return optax.GradientTransformation(right.init, update)


def no_bias_correction(betas: tuple[float, float], eps: float) -> Any:
    """Compute m / (√v + ε), the moments as they are."""
    inner = optax.scale_by_adam(*betas, eps)

    def update(gradients: Any, state: Any, params: Any = None) -> Any:
        _, state = inner.update(gradients, state, params)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), state.mu, state.nu), state

    return optax.GradientTransformation(inner.init, update)


def each_on_its_own(max_norm: float, _: float) -> Any:
    """Clip the norm of each tensor, instead of the norm of all together."""

    def clip_one(gradient: Any) -> Any:
        return gradient * jnp.minimum(1, max_norm / jnp.linalg.norm(gradient))

    return optax.stateless(lambda gradients, _: jax.tree.map(clip_one, gradients))


inside_of_root = instead(lambda betas, eps: optax.scale_by_adam(*betas, eps=0.0, eps_root=eps))
with_decay = around(lambda adam, *given: optax.chain(adam(*given), optax.add_decayed_weights(1e-4)))
other_epsilon = given(eps=lambda eps: 0.0 if eps else 1e-6)
"""PyTorch's where it does not belong, and none where it does."""

ADAM, CLIP = "optim:scale_by_adam", "optim:clip_by_global_norm"
TRAINING_FAULTS = (
    Fault("both recurrent biases in one", "training", merged_biases, ADAM),
    Fault("Adam's epsilon inside of the root", "training", inside_of_root, ADAM),
    Fault("no bias correction", "training", instead(no_bias_correction), ADAM),
    Fault("decay of 1e-4, Optax's AdamW", "training", with_decay, ADAM),
    Fault("the clipping's epsilon", "training", other_epsilon, CLIP),
    Fault("each gradient clipped on its own", "training", instead(each_on_its_own), CLIP),
)
