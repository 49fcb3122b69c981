"""The two programs of a training, kept from one run to the next."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jax_attn.models import EncoderDecoder
from train.config import TrainingConfig
from train.data.batches import Examples
from train.kept_program import kept
from train.optimizer import make_optimizer
from train.step import Losses, TrainState, make_init, make_train_epoch

Init = Callable[[np.uint32, Examples], TrainState]
TrainEpoch = Callable[[TrainState, Examples, Any], tuple[TrainState, Losses]]


def make_programs(
    model: EncoderDecoder, training: TrainingConfig, num_steps: int, seed: int, mesh: Mesh
) -> tuple[Init, TrainEpoch]:
    """`make_init` and `make_train_epoch` with the optimiser that is configured, in a training of so many steps."""
    optimizer = make_optimizer(training, num_steps)
    init = kept(make_init(model, optimizer), model, training, num_steps)
    train_epoch = kept(
        make_train_epoch(model, optimizer, training.loss, seed, mesh=mesh), model, training, num_steps, seed, mesh
    )
    init.load_ahead()
    train_epoch.load_ahead()  # side by side
    return init, train_epoch
