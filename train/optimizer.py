"""The optimiser that a configuration describes."""

import optax
from optax import GradientTransformation

from jax_attn.optim import OPTIMIZERS, clip_by_global_norm
from train.config import TrainingConfig, optimizer_settings


def make_optimizer(config: TrainingConfig, num_steps: int) -> GradientTransformation:
    """The optimiser of a configuration, behind the clipping of the gradients' global norm.

    The learning rate is constant, or goes to zero along half a cosine within `num_steps`.
    """
    rate = optax.cosine_decay_schedule(config.learning_rate, num_steps) if config.decay else config.learning_rate
    optimizer = OPTIMIZERS[config.optimizer](rate, **optimizer_settings(config))
    return optax.chain(clip_by_global_norm(config.clip_norm, config.clip_epsilon), optimizer)
