"""The training loop."""

import math
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from jax_attn.models import build_model
from jax_attn.weights import from_torch, to_torch
from train.config import Config, num_widths
from train.data.batches import (
    PADDING_ROW,
    Bucket,
    Examples,
    Group,
    in_order,
    make_buckets,
    padding_share,
    plan,
    refill,
    take,
)
from train.data.dataset import Data
from train.data.prefetch import prefetch
from train.data.sentences import PairIds
from train.machine import memory
from train.machine.devices import DATA, MODEL, copy, distribute, gather, make_mesh, own_rows, placement, shard_batches
from train.machine.processes import Agreement
from train.setting import ConfigError
from train.training.optimizer import make_optimizer
from train.training.report import DivergenceError, Recorder, Report
from train.training.step import Losses, make_eval_step, make_init, make_train_steps
from train.translating.scoring import make_validation

GO_ON, SAVE, STOP = range(3)
"""What a process asks for after a call. All processes do the largest of these."""

STEPS_PER_CALL = 16
"""Training steps of one call. With one step a call, the demo was a third slower (two cores)."""

CALLS_IN_FLIGHT = 2
"""Calls that may be under way. XLA's devices on a CPU deadlock if many wait for each other's gradients."""

VALID_WIDTHS = 2
"""The widths that the validation pairs are padded to."""

SKIPPED_IN_A_ROW = 3
"""Steps without finite gradients, one after another, that end a training."""


class Position(NamedTuple):
    """Where a training stands, beside its state: the same position and state lead to the same end."""

    step: int = 0
    """Steps taken."""
    epoch: int = 0
    group: int = 0
    """The next group of the epoch's plan."""
    taken: int = 0
    """The steps of that group that are taken: a number of steps may end a training in the middle of a group."""
    # Sums since the last report:
    nats: float = 0.0
    tokens: int = 0
    sentences: float = 0.0
    skipped: int = 0
    seconds: float = 0.0
    reported: int = 0
    """The step of the last report."""
    reports: int = 0
    skipped_in_a_row: int = 0
    best: float | None = None
    """The best validation, as a number that is better if it is lower."""
    since_best: int = 0
    """Validations since the best one."""
    on_plateau: int = 0
    """Validations since the best one or since the learning rate fell."""


class JaxLearner:
    """The model of `jax_attn`, trained with Optax."""

    def __init__(self, config: Config, data: Data) -> None:
        self.config, self.data = config, data
        training = config.training
        self.model = build_model(config.model, len(data.source), len(data.target))
        by_tokens = training.batch_tokens is not None
        self.mesh = make_mesh(config.devices.shape(), None if by_tokens else training.batch_size // training.num_parts)
        self._multiple = self.mesh.shape[DATA] * training.num_parts
        self._buckets = make_buckets(
            data.train,
            num_widths(config),
            training.batch_size,
            training.batch_tokens,
            steps=config.corpus.steps,
        )
        self.steps_per_epoch = sum(-(-bucket.members.size // bucket.batch_size) for bucket in self._buckets)
        self._valid_buckets = make_buckets(data.valid, VALID_WIDTHS, training.batch_size) if len(data.valid) else ()
        optimizer = make_optimizer(training, self.num_steps)
        example = take(data.train, np.zeros(1, np.int32), self._buckets[-1])
        average, plateau = training.average > 0, training.schedule == "plateau"
        init = make_init(self.model, optimizer, self.mesh, average=average, plateau=plateau)
        _require_memory(jax.eval_shape(init, np.uint32(0), example))
        self.state = init(np.uint32(config.seed), example)
        self._train_steps = make_train_steps(
            self.model,
            optimizer,
            training.loss,
            config.seed,
            training.label_smoothing,
            self.mesh,
            num_parts=training.num_parts,
            average_decay=training.average,
        )
        self._eval_step = make_eval_step(self.model, self.mesh)
        self._score = None
        if training.best in ("bleu", "chrf") and len(data.valid):
            self._score = make_validation(self.model, data, source_end=config.model.source_end)
        self._position = Position()
        self._running: deque[Losses] = deque()
        self._compiled: set[Examples] = set()
        self._agreement = Agreement(self.mesh)

    @property
    def num_steps(self) -> int:
        """The steps of the whole training."""
        steps = self.steps_per_epoch * self.config.num_epochs
        return min(steps, self.config.max_steps or steps)

    @property
    def params(self) -> Any:
        """The parameters, or their moving average."""
        return self.state.params if self.state.average is None else self.state.average

    def batches(self) -> str:
        widths = ", ".join(f"{b.batch_size} × ({b.source_width} + {b.target_width})" for b in self._buckets)
        padding = padding_share(self._buckets, self.data.train)
        return f"batches of pairs × (source + target tokens): {widths}; {padding:.0%} is padding; one program for each"

    def fit(self, recorder: Recorder) -> bool:
        self._restore(recorder)
        saved = self._clock = time.perf_counter()
        epochs = self.data.epochs(self._position.epoch, self.config.num_epochs)
        while not self._is_done():
            for group, batches in self._rest_of_epoch(next(epochs)):
                self._take_steps(group, batches, recorder)
                if self._is_due():
                    self._report(recorder)
                is_late = time.perf_counter() - saved >= self.config.training.save_seconds
                agreed = self._agreement.ask(STOP if recorder.should_stop() else SAVE if is_late else GO_ON)
                if agreed >= SAVE:
                    self._save(recorder)
                    saved = time.perf_counter()
                if self._is_done():
                    break
                if agreed == STOP:
                    return False
        self._save(recorder)
        if self._position.best is not None:
            self.state = self.state._replace(params=self._distribute(recorder.kept()), average=None)
        return True

    def begin_with(self, weights: Mapping[str, np.ndarray]) -> None:
        # Twice, since a step reuses the memory of both.
        average = None if self.state.average is None else self._distribute(weights)
        self.state = self.state._replace(params=self._distribute(weights), average=average)

    def _distribute(self, weights: Mapping[str, np.ndarray]) -> Any:
        """Bring parameters by PyTorch's names to the devices."""
        is_divided = self.mesh.shape[MODEL] > 1  # then one device may be too small for all
        with jax.default_device(jax.local_devices(backend="cpu")[0]) if is_divided else nullcontext():
            return distribute(from_torch(weights, self.params), self.mesh)

    def _restore(self, recorder: Recorder) -> None:
        """Go on from the last checkpoint, if there is one."""
        where = placement(self.state, self.mesh)
        like = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), self.state, where)
        found = recorder.restore(like)
        if found is not None:
            if found[1].keys() != set(Position._fields):
                raise ConfigError("the checkpoint is of another version of this program; start a new run")
            self.state, self._position = distribute(found[0], self.mesh), Position(**found[1])

    def _save(self, recorder: Recorder) -> None:
        self._finish_calls(recorder)
        if self._position.best is None:  # there is no validation to choose by
            recorder.keep(self.weights())
        # On a CPU a copy, since the next step reuses the memory of the state; other devices copy it to the CPU's.
        state = jax.tree.map(copy, self.state) if jax.default_backend() == "cpu" else self.state
        recorder.save(self._position.step, state, self._with_time()._asdict())

    def _is_done(self) -> bool:
        position, patience = self._position, self.config.training.patience
        is_at_end = position.epoch >= self.config.num_epochs or position.step >= (self.config.max_steps or math.inf)
        return is_at_end or (patience is not None and position.since_best >= patience)

    def _rest_of_epoch(self, pairs: PairIds) -> Iterator[tuple[Group, Examples]]:
        """Yield the groups of the epoch that are still to come, with their batches, made in the background."""
        epoch = self._position.epoch
        buckets = self._buckets if pairs is self.data.train else refill(self._buckets, pairs)
        groups = plan(buckets, STEPS_PER_CALL, self.config.seed, epoch)
        for index, end, group, batches in prefetch(self._take_groups(pairs, groups, self._position)):
            is_whole = end == groups[index].num_steps
            is_last = is_whole and index + 1 == len(groups)
            self._position = self._position._replace(
                epoch=epoch + is_last, group=0 if is_last else index + is_whole, taken=0 if is_whole else end
            )
            yield group, batches

    def _take_groups(
        self, pairs: PairIds, groups: Sequence[Group], start: Position
    ) -> Iterator[tuple[int, int, Group, Examples]]:
        """Yield the index of a group, its steps until the end of the call, what the call takes, and the batches."""
        step, end = start.step, start.taken
        for index, group in enumerate(groups[start.group :], start.group):
            while (first := end) < group.num_steps:
                end = min(group.num_steps, first + self._steps_left(step, start.reported))
                if end == first:
                    return
                part = group.part(first, end)
                yield index, end, part, self._take_own(pairs, part.rows, part.bucket)
                step += end - first
            end = 0

    def _steps_left(self, step: int, reported: int) -> int:
        """Return the steps until the training ends, or until the next report is due, if there was one at `reported`."""
        left, every = (self.config.max_steps or sys.maxsize) - step, self.config.training.valid_every
        return left if every is None else min(left, every - (step - reported) % every)

    def _take_own(self, pairs: PairIds, rows: Int[np.ndarray, "step batch"], bucket: Bucket) -> Examples:
        """Take this process's rows of batches, which are filled up until all devices have as many rows."""
        missing = -rows.shape[1] % self._multiple
        rows = np.pad(rows, ((0, 0), (0, missing)), constant_values=PADDING_ROW)
        batches = take(pairs, rows[:, own_rows(self.mesh, rows.shape[1])], bucket)
        if self.config.model.source_end:
            return batches
        return batches._replace(source_lens=np.maximum(batches.source_lens - 1, 0))

    def _take_steps(self, group: Group, batches: Examples, recorder: Recorder) -> None:
        """Start the steps of a group, and wait for the steps of earlier ones if too many are under way."""
        if (shape := jax.tree.map(np.shape, batches)) not in self._compiled:
            self._compiled.add(shape)
            recorder.compiling(len(self._compiled), len(self._buckets))
        self.state, losses = self._train_steps(self.state, shard_batches(batches, self.mesh))
        self._running.append(losses)
        self._position = self._position._replace(step=self._position.step + group.num_steps)
        self._finish_calls(recorder, CALLS_IN_FLIGHT - 1)

    def _finish_calls(self, recorder: Recorder, still_running: int = 0) -> None:
        """Wait until at most `still_running` calls are under way, and add up the losses of the others."""
        while len(self._running) > still_running:
            losses = jax.device_get(self._running.popleft())
            total, position = _total(losses), self._position
            in_a_row = position.skipped_in_a_row
            for skipped, tokens in zip(losses.skipped.tolist(), losses.tokens.tolist(), strict=True):
                in_a_row = in_a_row + 1 if skipped else in_a_row * (tokens == 0)
                if in_a_row == SKIPPED_IN_A_ROW:
                    raise DivergenceError(f"the gradients of {in_a_row} steps in a row are NaN or infinite")
            self._position = position._replace(
                nats=position.nats + total.nats,
                tokens=position.tokens + int(total.tokens),
                sentences=position.sentences + total.sentences,
                skipped=position.skipped + int(total.skipped),
                skipped_in_a_row=in_a_row,
            )
            if total.tokens:
                recorder.progress(position.step, total.nats / total.tokens, int(total.tokens))

    def _is_due(self) -> bool:
        """Return whether it is time to report: at the end of an epoch, or after a number of steps."""
        every, position = self.config.training.valid_every, self._position
        return self._is_done() or (position.group == 0 if every is None else position.step - position.reported >= every)

    def _report(self, recorder: Recorder) -> None:
        """Validate, report, and keep the parameters if they are the best until now."""
        self._finish_calls(recorder)
        now = self._with_time()
        if not now.tokens:
            raise DivergenceError("no step since the last report had finite gradients")
        scores = None if self._score is None else self._score(self.params)
        report = Report(
            step=now.step,
            epoch=now.epoch + (now.group + now.taken > 0),
            loss=now.nats / now.tokens,
            loss_book=now.sentences / now.tokens,
            valid_loss=self._valid_loss(),
            tokens=now.tokens,
            seconds=now.seconds,
            skipped=now.skipped,
            bleu=scores and scores.bleu,
            chrf=scores and scores.chrf,
        )
        for loss in (report.loss, report.valid_loss):
            if loss is not None and not math.isfinite(loss):
                raise DivergenceError(f"the loss is {loss} in epoch {report.epoch}")
        self._position = now._replace(
            nats=0.0, tokens=0, sentences=0.0, skipped=0, seconds=0.0, reported=now.step, reports=now.reports + 1
        )
        self._choose(report, recorder)
        recorder.report(report)
        self._clock = time.perf_counter()

    def _choose(self, report: Report, recorder: Recorder) -> None:
        """Keep the parameters if their validation is the best until now; otherwise count, for patience and plateau."""
        training, position = self.config.training, self._position
        value = {"loss": report.valid_loss, "bleu": report.bleu, "chrf": report.chrf, "last": None}[training.best]
        if value is None:
            return
        value = value if training.best == "loss" else -value
        if position.best is None or value < position.best:
            self._position = position._replace(best=value, since_best=0, on_plateau=0)
            recorder.keep(self.weights())
            return
        on_plateau = position.on_plateau + 1
        if self.state.rate_factor is not None and on_plateau > training.plateau_patience:
            factor = jnp.asarray(self.state.rate_factor) * training.plateau_factor
            self.state, on_plateau = self.state._replace(rate_factor=factor), 0
        self._position = position._replace(since_best=position.since_best + 1, on_plateau=on_plateau)

    def _with_time(self) -> Position:
        """Return the position with the seconds until now, and start the clock again."""
        now = time.perf_counter()
        self._position = self._position._replace(seconds=self._position.seconds + now - self._clock)
        self._clock = now
        return self._position

    def _valid_loss(self) -> float | None:
        valid, losses = self.data.valid, []
        if not len(valid):
            return None
        for bucket in self._valid_buckets:
            for rows in in_order(len(bucket.members), bucket.batch_size):
                members = np.where(rows == PADDING_ROW, PADDING_ROW, bucket.members[rows])
                batches = shard_batches(self._take_own(valid, members[None], bucket), self.mesh)
                losses.append(jax.device_get(self._eval_step(self.params, batches)))
        total = _total(jax.tree.map(lambda *x: np.array(x), *losses))
        return total.nats / total.tokens

    def weights(self) -> dict[str, np.ndarray]:
        return to_torch(jax.tree.map(gather, self.params))


def _require_memory(state: Any) -> None:
    """Raise ConfigError if parameters, gradients and the optimiser's state are larger than the memory of the CPU."""
    sizes = [sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree)) for tree in (state, state.params)]
    needed, available = sum(sizes), memory.total()
    if jax.default_backend() == "cpu" and available is not None and needed > available:
        raise ConfigError(
            f"the training needs at least {needed / 1e9:.1f} GB, and this machine has {available / 1e9:.1f} GB: lower "
            "--model.num-hiddens, --model.embed-size or --model.num-layers"
        )


def _total(losses: Losses) -> Any:
    """Sum the losses of steps in float64."""
    return jax.tree.map(lambda x: float(np.sum(x, dtype=np.float64)), losses)
