"""Our training step, set up as `python -m train.nmt` does it.

`benchmarks.start` also runs this file in a fresh process. So it imports nothing of parity_tests, which would
import PyTorch.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_attn.models import EncoderDecoder, Seq2SeqAttentionDecoder, Seq2SeqEncoder
from train.config import TrainingConfig
from train.data.batches import Examples
from train.training.devices import distribute, make_mesh, shard_batches, start_jax
from train.training.optimizer import make_optimizer
from train.training.step import Losses, TrainState, make_init, make_train_steps

EXAMPLE = Examples(*(np.ones(shape, np.int32) for shape in ((1, 2), 1, (1, 2), 1)))
"""One sentence pair, whose shapes suffice to initialise a model."""


def make_model(encoder: Mapping[str, Any], decoder: Mapping[str, Any], attention: str = "additive") -> EncoderDecoder:
    """Build a translator's model."""
    return EncoderDecoder(Seq2SeqEncoder(**encoder), Seq2SeqAttentionDecoder(**decoder, attention=attention))


class Training:
    """A model in training."""

    def __init__(
        self, model: EncoderDecoder, batch_size: int, *, loss: Any, learning_rate: float, label_smoothing: float
    ) -> None:
        self.model = model
        self.optimizer = make_optimizer(TrainingConfig(learning_rate=learning_rate, schedule="constant", loss=loss), 1)
        self.mesh = make_mesh(batch_size=batch_size)
        self.train_steps = make_train_steps(model, self.optimizer, loss, 0, label_smoothing, self.mesh)

    def start(self, params: Any = None) -> TrainState:
        """Make the state before the first step: with a copy of these parameters, or initialised as usual."""
        state = make_init(self.model, self.optimizer)(np.uint32(0), EXAMPLE)
        if params is not None:
            state = state._replace(params=jax.tree.map(jnp.array, params))
        return distribute(state, self.mesh)

    def place(self, batches: Sequence[np.ndarray]) -> Examples:
        """Put the batches of several steps, arrays `[steps, batch, ...]`, on the devices, as `run` takes them."""
        return shard_batches(Examples(*batches), self.mesh)

    def run(self, state: TrainState, placed: Sequence[Examples]) -> tuple[TrainState, list[Losses]]:
        """Take the steps of all groups of batches, and wait for the last one."""
        losses = []
        for batches in placed:
            state, group_losses = self.train_steps(state, batches)
            losses.append(group_losses)
        return jax.block_until_ready((state, losses))


def take_first_step(settings: Mapping[str, Any]) -> int:
    """Take one step of a new model, and return how many were taken.

    `encoder` and `decoder` are the model's settings, `training` the keywords of `Training`. `shape` is the batch size,
    the source length and the target length; every sentence is full.
    """
    start_jax(settings["decoder"]["num_hiddens"])
    B, S, T = settings["shape"]
    full = partial(np.full, dtype=np.int32)
    batch = full((1, B, S), 4), full((1, B), S), full((1, B, T), 4), full((1, B), T)
    training = Training(make_model(settings["encoder"], settings["decoder"]), B, **settings["training"])
    state, _ = training.run(training.start(), [training.place(batch)])
    return int(state.step)
