"""Our training, as `python -m train.nmt` runs it: `make_train_epoch` over batches that are one program."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jax_attn.models import EncoderDecoder, Seq2SeqAttentionDecoder, Seq2SeqEncoder
from jax_attn.weights import from_torch, to_torch
from parity_tests.speed import jax_device
from parity_tests.speed.translation import (
    COMPARED,
    TRANSLATORS,
    Group,
    Translator,
    draw_training,
    draw_weights,
)
from parity_tests.speed.workload import Program
from train.config import TrainingConfig
from train.data.batches import Examples, in_order
from train.devices import batch_mesh, on_each
from train.optimizer import make_optimizer
from train.step import TrainState, make_train_epoch


def build_model(translator: Translator, attention: str) -> EncoderDecoder:
    """The model of a translator, with any attention."""
    decoder = Seq2SeqAttentionDecoder(**translator.decoder, attention=attention)
    return EncoderDecoder(Seq2SeqEncoder(**translator.encoder), decoder)


def init_params(model: EncoderDecoder) -> Any:
    """Its weights as it initialises them."""
    example = np.zeros((1, 2), np.int32), np.zeros((1, 2), np.int32), np.ones(1, np.int32)
    return jax.jit(model.init)(jax.random.key(0), *example)


def draw_params(model: EncoderDecoder, name: str, scales: Any = None) -> Any:
    """Its weights as they are drawn by PyTorch's names."""
    params = init_params(model)
    shapes = {of: x.shape for of, x in to_torch(params).items()}
    return from_torch(draw_weights(name, shapes, scales), params)


class Training:
    """A model in training: a call is one pass over the batches."""

    def __init__(self, translator: Translator, attention: str, batch_size: int) -> None:
        self.model = build_model(translator, attention)
        self.params = draw_params(self.model, translator.name)
        settings = TrainingConfig(learning_rate=translator.learning_rate, decay=False, loss=translator.loss)
        self.optimizer = make_optimizer(settings, 1)
        self.mesh = batch_mesh(batch_size)
        smoothing = {"label_smoothing": translator.label_smoothing} if translator.label_smoothing else {}
        self.train_epoch = make_train_epoch(self.model, self.optimizer, translator.loss, 0, **smoothing, mesh=self.mesh)

    def start(self) -> TrainState:
        """Before the first step; with arrays of its own, since the first step takes them over."""

        @jax.jit
        def begin(params: Any) -> TrainState:
            return TrainState(jax.tree.map(jnp.copy, params), self.optimizer.init(params), jnp.zeros((), jnp.int32))

        return on_each(begin(self.params), self.mesh)

    def run(self, state: TrainState, groups: list[Any]) -> tuple[TrainState, list[Any]]:
        """One program for each shape of batches; waits for the last."""
        losses = []
        for examples, rows in groups:
            state, of_steps = self.train_epoch(state, examples, rows)
            losses.append(of_steps)
        return jax.block_until_ready((state, losses))


def on_devices(group: Group, mesh: Mesh) -> tuple[Examples, np.ndarray]:
    """The examples of a group, and the plan of an epoch that reads them in order."""
    flat = Examples(*(part.reshape(-1, *part.shape[2:]) for part in group))
    rows = in_order(len(flat.sources), group.sources.shape[1])
    return on_each(flat, mesh), rows


def build(device: str, *, translator: str, attention: str = "additive") -> Program:
    """Training, whose outputs are the losses of the first steps, without dropout."""
    of = TRANSLATORS[translator]
    jax_device.for_training(device, of.decoder["num_hiddens"])
    groups = draw_training(translator)
    batch_size = groups[0].sources.shape[1]
    training = Training(of, attention, batch_size)
    batches = [on_devices(group, training.mesh) for group in groups]
    state = training.start()

    def step() -> None:
        nonlocal state
        state, _ = training.run(state, batches)

    def first_losses() -> dict[str, np.ndarray]:
        sober = Training(of.without("dropout"), attention, batch_size) if of.dropout else training
        _, (losses, *_) = sober.run(sober.start(), batches[:1])
        return {"losses": np.asarray(losses.per_token())[:COMPARED]}

    return Program(step, first_losses)
