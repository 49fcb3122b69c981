"""One training step, and an epoch of them in a single program."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Float, Int

from jax_attn.functional import length_mask
from jax_attn.models import EncoderDecoder
from train.data.batches import NOBODY, Examples


class TrainState(NamedTuple):
    """What training changes."""

    params: Any
    optimizer: optax.OptState
    step: Int[Array, ""]
    """Steps taken: with the seed, the position in the plan of batches and in the stream of dropout."""


class Losses(NamedTuple):
    """What a batch cost."""

    nats: Float[Array, ""]
    """Cross entropy, summed over the tokens that count."""
    tokens: Int[Array, ""]
    """How many tokens count: the target's words and `<eos>`."""
    sentences: Float[Array, ""]
    """The book's sum: each sentence's mean over all label positions, padding counted in."""

    def per_token(self) -> Array:
        """Nats a token."""
        return self.nats / jnp.maximum(self.tokens, 1)


def select(examples: Examples, rows: Int[Array, "batch"]) -> Examples:
    """The examples of a row of the plan; `NOBODY` has length 0."""
    batch = Examples(*(jnp.take(column, rows, axis=0, mode="clip") for column in examples))
    present = rows != NOBODY
    return batch._replace(
        source_lens=jnp.where(present, batch.source_lens, 0), target_lens=jnp.where(present, batch.target_lens, 0)
    )


def label_lens(batch: Examples) -> Int[Array, "batch"]:
    """How many tokens of each target are predicted: all but `<bos>`, and none of nobody's."""
    return jnp.maximum(batch.target_lens - 1, 0)


def batch_losses(
    model: EncoderDecoder,
    params: Any,
    batch: Examples,
    dropout_key: Array | None = None,
    label_smoothing: float = 0.0,
    scale: float | Array = 1.0,
) -> tuple[Array, Losses]:
    """Teacher forcing: read target[:-1], predict target[1:]. The scaled sum over the tokens, and what they cost."""
    labels, lens = batch.targets[:, 1:], label_lens(batch)
    found: Any = model.apply(
        params,
        batch.sources,
        batch.targets[:, :-1],
        labels,
        jnp.where(length_mask(lens, labels.shape[1]), scale, 0.0),
        batch.source_lens,
        label_smoothing=label_smoothing,
        deterministic=dropout_key is None,
        rngs=None if dropout_key is None else {"dropout": dropout_key},
        method="cross_entropy",
    )
    total, nats = found
    return total, Losses(nats.sum(), lens.sum(), nats.mean(axis=-1).sum())


def make_init(
    model: EncoderDecoder, optimizer: optax.GradientTransformation
) -> Callable[[np.uint32, Examples], TrainState]:
    """A jitted function (seed, example) -> the state before the first step; of the example only the shapes matter."""

    def init(seed: Array, example: Examples) -> TrainState:
        params = model.init(jax.random.key(seed), example.sources, example.targets, example.source_lens)
        return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))

    return jax.jit(init)


def make_train_epoch(
    model: EncoderDecoder,
    optimizer: optax.GradientTransformation,
    loss: str,
    seed: int,
    label_smoothing: float = 0.0,
    mesh: Mesh | None = None,
) -> Callable[[TrainState, Examples, Any], tuple[TrainState, Losses]]:
    """A jitted function (state, examples, plan of the epoch) -> (state, losses of each step, smoothed as trained).

    A whole epoch is one program, so that the host has nothing to do between steps; the old state's buffers are reused.
    On a mesh each device takes its rows of every batch, filled up with nobody if need be, and gradients are summed.
    """
    axis = None if mesh is None or mesh.size == 1 else mesh.axis_names[0]

    def total(x: Any) -> Any:
        return x if axis is None else jax.lax.psum(x, axis)

    def objective(params: Any, batch: Examples, key: Array) -> tuple[Array, Losses]:
        if loss == "sentences":  # each one's mean over all label positions
            scale = 1 / (batch.targets.shape[1] - 1)
        else:
            scale = 1 / jnp.maximum(total(label_lens(batch).sum()), 1)
        return batch_losses(model, params, batch, key, label_smoothing, scale)

    def gradients(params: Any, batch: Examples, key: Array) -> tuple[Any, Losses]:
        if axis is not None:
            key = jax.random.fold_in(key, jax.lax.axis_index(axis))
        return total(jax.grad(objective, has_aux=True)(params, batch, key))

    if axis is not None:
        whole, rows = PartitionSpec(), PartitionSpec(axis)
        gradients = jax.shard_map(gradients, mesh=mesh, in_specs=(whole, rows, whole), out_specs=whole, check_vma=False)

    def train_step(state: TrainState, batch: Examples) -> tuple[TrainState, Losses]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        of_loss, losses = gradients(state.params, batch, key)
        updates, opt_state = optimizer.update(of_loss, state.optimizer, state.params)
        return TrainState(optax.apply_updates(state.params, updates), opt_state, state.step + 1), losses

    def train_epoch(state: TrainState, examples: Examples, rows: Array) -> tuple[TrainState, Losses]:
        if mesh is not None:
            rows = jnp.pad(rows, ((0, 0), (0, -rows.shape[1] % mesh.size)), constant_values=NOBODY)
        return jax.lax.scan(lambda state, row: train_step(state, select(examples, row)), state, rows)

    return jax.jit(train_epoch, donate_argnums=0)


def make_evaluate(model: EncoderDecoder) -> Callable[[Any, Examples, Any], Losses]:
    """A function (params, examples, plan) -> losses of each batch, without dropout."""

    def evaluate(params: Any, examples: Examples, rows: Array) -> Losses:
        return jax.lax.map(lambda row: batch_losses(model, params, select(examples, row))[1], rows)

    return jax.jit(evaluate)


def make_force_decode(model: EncoderDecoder) -> Callable[[Any, Examples, Any], Array | None]:
    """A function (params, examples, plan) -> attention weights `[examples, T, S]` as the references are read."""

    def attend(params: Any, batch: Examples) -> Any:
        _, weights = model.apply(params, batch.sources, batch.targets[:, :-1], batch.source_lens)
        return weights

    def force_decode(params: Any, examples: Examples, rows: Array) -> Array | None:
        weights = jax.lax.map(lambda row: attend(params, select(examples, row)), rows)
        return None if weights is None else weights.reshape(-1, *weights.shape[2:])

    return jax.jit(force_decode)
