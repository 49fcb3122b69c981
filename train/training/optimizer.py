"""The optimiser of a configuration."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, make_dataclass
from typing import Any

import jax.numpy as jnp
import optax
import tyro
from optax import GradientTransformation

from jax_attn.optim import OPTIMIZERS, Optimizer, clip_by_global_norm
from jax_attn.settings import OptimizerName
from train.config import TrainingConfig
from train.config_file import read_settings
from train.setting import ConfigError, setting_name


def make_optimizer(config: TrainingConfig, num_steps: int) -> GradientTransformation:
    """Make the optimiser, with clipping of the gradients' global norm before it.

    Args:
        config: the optimiser's settings.
        num_steps: the steps of the whole training, where the schedule cosine ends.
    """
    clip = clip_by_global_norm(config.clip_norm, config.clip_epsilon)
    return optax.chain(clip, chosen_optimizer(config).build(make_schedule(config, num_steps)))


def make_schedule(config: TrainingConfig, num_steps: int) -> optax.Schedule | float:
    """Make the learning rate r as a function of the step t, counted from 0, with w steps of warm-up.

    t < w           r (t + 1) / w
    constant        r; plateau as well, which the training lowers by a factor of its own
    cosine          r (1 + cos(π (t − w) / (num_steps − w))) / 2
    inverse_sqrt    r √(w' / (t + 1)), w' = max(w, 1)
    """
    rate, warmup = config.learning_rate, config.warmup
    schedules: dict[str, optax.Schedule] = {
        "cosine": optax.cosine_decay_schedule(rate, max(1, num_steps - warmup)),
        "inverse_sqrt": lambda count: rate * jnp.sqrt(max(warmup, 1) / (jnp.asarray(count, float) + 1 + warmup)),
    }
    after = schedules.get(config.schedule, optax.constant_schedule(rate))
    if warmup:
        return optax.join_schedules([lambda count: rate * (count + 1) / warmup, after], [warmup])
    return after if config.schedule in schedules else rate


def chosen_optimizer(config: TrainingConfig) -> Optimizer:
    """Find the optimiser and change its settings; ConfigError for a setting or a value that it cannot use."""
    for name in config.optimizer_settings:
        require_setting(config.optimizer, name)
    default = OPTIMIZERS[config.optimizer]
    try:
        chosen = read_settings(type(default), vars(default) | config.optimizer_settings)
    except ValueError as error:
        raise ConfigError(f"training.{error}") from error
    if getattr(chosen, "eps", 1) == 0:
        raise ConfigError("training.eps must be above 0; got 0.0")
    return chosen


def setting_names(optimizer: str) -> list[str]:
    """List the settings of an optimiser."""
    return [field.name for field in fields(OPTIMIZERS[optimizer])]


def require_setting(optimizer: str, name: str) -> None:
    """Raise ConfigError if `name` is a setting of other optimisers only, or of none."""
    owners = [other for other in OPTIMIZERS if name in setting_names(other)]
    if optimizer not in owners:
        option = setting_name("training", name)
        raise ConfigError(f"{option} belongs to optimizer {' or '.join(owners) or 'none'}; got {optimizer}")


def read_options(
    optimizer: OptimizerName, known: Mapping[str, Any], arguments: Sequence[str], prog: str
) -> tuple[dict[str, Any], list[str]]:
    """Read options such as `--training.weight-decay 0.01`; return what they change, and the other arguments.

    Args:
        known: the settings before.
    """
    chosen = chosen_optimizer(TrainingConfig(optimizer=optimizer, optimizer_settings=dict(known)))
    before = vars(chosen)
    settings = make_dataclass("Settings", [(f.name, f.type, before[f.name]) for f in fields(chosen)])
    options = make_dataclass("Options", [("training", settings)])
    found, rest = tyro.cli(options, default=options(settings()), args=arguments, prog=prog, return_unknown_args=True)
    return {name: value for name, value in vars(found.training).items() if value != before[name]}, rest
