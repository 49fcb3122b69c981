"""Our training step, set up as `python -m train.nmt` does it.

The workload `start` also runs it in a fresh process, whose clock runs during the imports. So it imports no PyTorch.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.inputs import W1, W2, Translator, draw_training
from jax_attn.models import (
    EncoderDecoder,
    Seq2SeqAttentionDecoder,
    Seq2SeqEncoder,
    TransformerDecoder,
    TransformerEncoder,
)
from train.config import TrainingConfig
from train.data.batches import Examples
from train.machine.devices import distribute, make_mesh, shard_batches, start_jax
from train.training.optimizer import make_optimizer
from train.training.step import Losses, TrainState, make_init, make_train_steps

EXAMPLE = Examples(*(np.ones(shape, np.int32) for shape in ((1, 2), 1, (1, 2), 1)))
"""One sentence pair, whose shapes suffice to initialise a model."""


def make_model(translator: Translator, attention: str = "additive") -> EncoderDecoder:
    """Build a translator's model; a Transformer has an attention of its own."""
    if translator.family == "transformer":
        return EncoderDecoder(TransformerEncoder(**translator.encoder), TransformerDecoder(**translator.decoder))
    decoder = Seq2SeqAttentionDecoder(**translator.decoder, attention=attention)
    return EncoderDecoder(Seq2SeqEncoder(**translator.encoder), decoder)


class Training:
    """A translator in training on groups of batches, arrays `[steps, batch, ...]`."""

    def __init__(
        self, translator: Translator, groups: Sequence[Sequence[np.ndarray]], attention: str = "additive"
    ) -> None:
        self.model, settings = make_model(translator, attention), dict(translator.training)
        loss, smoothing = settings["loss"], settings.pop("label_smoothing")
        self.optimizer = make_optimizer(TrainingConfig(**settings, schedule="constant"), 1)
        self.mesh = make_mesh(batch_size=groups[0][0].shape[1])
        self.train_steps = make_train_steps(self.model, self.optimizer, loss, 0, smoothing, self.mesh)
        self.batches = [shard_batches(Examples(*group), self.mesh) for group in groups]

    def start(self, params: Any = None) -> TrainState:
        """Make the state before the first step: with a copy of these parameters, or initialised as usual."""
        state = make_init(self.model, self.optimizer)(np.uint32(0), EXAMPLE)
        if params is not None:
            state = state._replace(params=jax.tree.map(jnp.array, params))
        return distribute(state, self.mesh)

    def run(self, state: TrainState) -> tuple[TrainState, list[Losses]]:
        """Take the steps of all groups, and wait for the last one; the losses are those of each group."""
        losses = []
        for batches in self.batches:
            state, group_losses = self.train_steps(state, batches)
            losses.append(group_losses)
        return jax.block_until_ready((state, losses))


def take_first_step(name: str) -> None:
    """Take one step of a new model, W1's or W2's, with its first batch."""
    translator = {"w1": W1, "w2": W2}[name]
    start_jax(translator.decoder["num_hiddens"])
    training = Training(translator, [[x[:1] for x in draw_training(name)[0]]])
    state, _ = training.run(training.start())
    assert int(state.step) == 1
