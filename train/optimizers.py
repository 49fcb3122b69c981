"""Optimisers, of Optax's parts."""

import optax

from train.config import TrainingConfig


def make_optimizer(config: TrainingConfig, num_steps: int) -> optax.GradientTransformation:
    """Clip the gradients' global norm, then Adam (Kingma & Ba, 2015), if asked for with half a cosine of decay."""
    rate = optax.cosine_decay_schedule(config.learning_rate, num_steps) if config.decay else config.learning_rate
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), optax.adam(rate))
