"""The training step, and the loss of a batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float, Int

from jax_attn.functional import length_mask
from jax_attn.models import EncoderDecoder, KeepMasks
from train.data.batches import Examples
from train.machine.devices import DATA, placement, sum_over_data


class TrainState(NamedTuple):
    """Everything that a training step changes."""

    params: Any
    opt_state: optax.OptState
    step: Int[Array, ""]
    """The number of steps taken. With the seed it selects the dropout key."""
    average: Any = None
    """The exponential moving average of the parameters; None without one."""
    rate_factor: Float[Array, ""] | None = None
    """What the learning rate is multiplied by; None for a schedule that does not look at the validation."""


class Losses(NamedTuple):
    """The losses of a batch, as sums."""

    nats: Float[Array, ""]
    """Cross entropy, summed over the label tokens, without label smoothing."""
    tokens: Int[Array, ""]
    """The number of label tokens: the target's words and `<eos>`."""
    sentences: Float[Array, ""]
    """Each sentence's mean cross entropy over all label positions, padding included, summed over the batch: the book's
    measure is this sum, divided by the number of label tokens."""
    skipped: Int[Array, ""]
    """1 if the step was left out, since a gradient was NaN or infinite; then the other fields are 0."""


TrainSteps = Callable[[TrainState, Examples], tuple[TrainState, Losses]]


def label_lens(batch: Examples) -> Int[Array, "batch"]:
    """Return the number of labels of each target: every token but `<bos>`, and 0 for a padding row."""
    return jnp.maximum(batch.target_lens - 1, 0)


def batch_losses(
    model: EncoderDecoder,
    params: Any,
    batch: Examples,
    keep_masks: KeepMasks | None = None,
    label_smoothing: float = 0.0,
    scale: float | Array = 1.0,
) -> tuple[Array, Losses]:
    """Compute the loss by teacher forcing: the model reads target[:-1] and predicts target[1:].

    Returns:
        The scaled sum over the label tokens, which has the gradient, and the losses, which have none.
    """
    labels, lens = batch.targets[:, 1:], label_lens(batch)
    result: Any = model.apply(
        params,
        batch.sources,
        batch.targets[:, :-1],
        labels,
        jnp.where(length_mask(lens, labels.shape[1]), scale, 0.0),
        batch.source_lens,
        label_smoothing=label_smoothing,
        keep_masks=keep_masks,
        method="cross_entropy",
    )
    total, nats = result
    return total, Losses(nats.sum(), lens.sum(dtype=jnp.int32), nats.mean(axis=-1).sum(), jnp.zeros((), jnp.int32))


def make_init(
    model: EncoderDecoder,
    optimizer: optax.GradientTransformation,
    mesh: Mesh | None = None,
    *,
    average: bool = False,
    plateau: bool = False,
) -> Callable[[np.uint32, Examples], TrainState]:
    """Make a jitted function (seed, example) -> the state before the first step; only the example's shapes matter.

    On a mesh each device makes its part of the state alone; see `train.machine.devices.placement`.

    Args:
        average: whether the state has a moving average of the parameters.
        plateau: whether it has a factor of the learning rate.
    """

    def init(seed: Array, example: Examples) -> TrainState:
        params = model.init(jax.random.key(seed), example.sources, example.targets, example.source_lens)
        state = TrainState(
            params,
            optimizer.init(params),
            jnp.zeros((), jnp.int32),
            params if average else None,
            jnp.ones(()) if plateau else None,
        )
        return state if mesh is None else jax.lax.with_sharding_constraint(state, placement(state, mesh))

    return jax.jit(init)


def _over_data(function: Callable[..., Any], mesh: Mesh | None, num_whole: int) -> Callable[..., Any]:
    """Let each device along `data` compute a function of its rows alone, and return the sums of all.

    (XLA would divide the work by itself, but it adds up the gradients of a recurrent layer after each time step.) Along
    `model` XLA divides the work, by where the parameters are.

    Args:
        num_whole: the number of leading arguments that all devices get whole; the others are divided by rows.
    """
    if mesh is None or mesh.shape[DATA] == 1:
        return function

    def on_rows(*arguments: Any) -> Any:
        specs = [PartitionSpec() if i < num_whole else PartitionSpec(DATA) for i in range(len(arguments))]
        return jax.shard_map(
            lambda *own: sum_over_data(function(*own), mesh),
            mesh=mesh,
            in_specs=tuple(specs),
            out_specs=PartitionSpec(),
            axis_names={DATA},
            check_vma=False,
        )(*arguments)

    return on_rows


def make_train_steps(
    model: EncoderDecoder,
    optimizer: optax.GradientTransformation,
    loss: str = "tokens",
    seed: int = 0,
    label_smoothing: float = 0.0,
    mesh: Mesh | None = None,
    *,
    num_parts: int = 1,
    average_decay: float = 0.0,
) -> TrainSteps:
    """Make a jitted function (state, batches) -> (state, losses) that takes one step for each batch.

    The arrays of `batches` lead with `[steps, batch]`, those of the losses with `[steps]`. Batches that hold padding
    rows alone come last; no step is taken for them, and their losses are 0. The old state's memory is reused.

    On a mesh the devices along `data` compute the gradients of their rows of every batch, which are summed, and those
    along `model` have their parts of the state.

    A step whose gradients are not finite changes nothing but the number of steps.

    Args:
        loss: "tokens": the mean over the label tokens of a batch; "sentences": each sentence's mean over all label
            positions, summed over the batch, as in the book.
        seed: of dropout, with the number of the step.
        num_parts: compute the gradients of a batch in this many parts, one after another, which takes less memory.
        average_decay: of the moving average; it begins with less, (1 + t) / (10 + t) at step t.
    """

    def objective(params: Any, batch: Examples, keep_masks: KeepMasks, scale: Array) -> tuple[Array, Losses]:
        return batch_losses(model, params, batch, keep_masks, label_smoothing, scale)

    def gradients(params: Any, scale: Array, batch: Examples, keep_masks: KeepMasks) -> tuple[Any, Losses]:
        def of_part(part: tuple[Examples, KeepMasks]) -> tuple[Any, Losses]:
            return jax.grad(objective, has_aux=True)(params, *part, scale)

        if num_parts == 1:
            return of_part((batch, keep_masks))
        parts = jax.tree.map(lambda x: x.reshape(num_parts, -1, *x.shape[1:]), (batch, keep_masks))
        zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(of_part, (batch, keep_masks)))
        return jax.lax.scan(lambda so_far, part: (jax.tree.map(jnp.add, so_far, of_part(part)), None), zeros, parts)[0]

    gradients_of_all = _over_data(gradients, mesh, num_whole=2)

    def train_step(state: TrainState, batch: Examples) -> tuple[TrainState, Losses]:
        dropout_key = jax.random.fold_in(jax.random.key(seed), state.step)
        # Drawn for the whole batch, so that they do not depend on the number of devices.
        keep_masks = model.draw_keep_masks(dropout_key, batch.sources.shape, batch.targets[:, 1:].shape)
        if loss == "sentences":  # each one's mean over all label positions
            scale = jnp.asarray(1 / (batch.targets.shape[1] - 1))
        else:
            scale = 1 / jnp.maximum(label_lens(batch).sum(), 1)
        d_params, losses = gradients_of_all(state.params, scale, batch, keep_masks)
        updates, opt_state = optimizer.update(d_params, state.opt_state, state.params)
        if state.rate_factor is not None:
            updates = optax.tree.scale(state.rate_factor, updates)
        params, average = optax.apply_updates(state.params, updates), state.average
        if average is not None:
            decay = jnp.minimum(average_decay, (1.0 + state.step) / (10.0 + state.step))
            average = optax.incremental_update(params, average, 1 - decay)
        is_finite = jnp.isfinite(optax.tree.norm(d_params))
        new = TrainState(params, opt_state, state.step + 1, average, state.rate_factor)
        new = optax.tree.where(is_finite, new, state._replace(step=state.step + 1))
        none = jax.tree.map(jnp.zeros_like, losses)._replace(skipped=jnp.ones((), jnp.int32))
        return new, optax.tree.where(is_finite, losses, none)

    def train_steps(state: TrainState, batches: Examples) -> tuple[TrainState, Losses]:
        def add_step(i: Array, carry: tuple[TrainState, Losses]) -> tuple[TrainState, Losses]:
            state, loss = train_step(carry[0], jax.tree.map(lambda x: x[i], batches))
            return state, jax.tree.map(lambda losses, x: losses.at[i].set(x), carry[1], loss)

        num_steps = (batches.target_lens > 0).any(axis=-1).sum()
        nats, count = (jnp.zeros(len(batches.targets), dtype) for dtype in (None, jnp.int32))
        losses = Losses(nats, count, nats, count)
        state, losses = jax.lax.fori_loop(0, num_steps, add_step, (state, losses))
        if mesh is None:
            return state, losses
        everywhere = NamedSharding(mesh, PartitionSpec())
        where = placement(state, mesh), jax.tree.map(lambda _: everywhere, losses)
        return jax.lax.with_sharding_constraint((state, losses), where)

    return jax.jit(train_steps, donate_argnums=0)


def make_eval_step(model: EncoderDecoder, mesh: Mesh | None = None) -> Callable[[Any, Examples], Losses]:
    """Make a jitted function (params, batches) -> losses, without dropout; `[steps, batch]` as for a training step."""
    losses = _over_data(lambda params, batch: batch_losses(model, params, batch)[1], mesh, num_whole=1)
    return jax.jit(lambda params, batches: jax.lax.map(lambda batch: losses(params, batch), batches))
